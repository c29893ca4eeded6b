"""Pickle functions with their source, so that a traceback in another process shows its lines.

cloudpickle drops the name of the file, and another process does not have the cells of a notebook.
"""

import inspect
import linecache
import marshal
from types import CodeType
from typing import Any

import cloudpickle


class SourcePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that adds the source of each function."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to make an object again."""
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        try:
            lines, first = inspect.getsourcelines(obj)
        except OSError:
            lines, first = [], 1
        return _code_with_source, (marshal.dumps(obj), lines, first)


def _code_with_source(code: bytes, lines: list[str], first: int) -> CodeType:
    loaded: CodeType = marshal.loads(code)  # noqa: S302  # The digest of the pickle is right.
    name = loaded.co_filename
    known = [*linecache.getlines(name)]  # Another function of the same cell.
    known += ["\n"] * (first - 1 - len(known))
    known[first - 1 : first - 1 + len(lines)] = lines
    linecache.cache[name] = (0, None, known, name)
    return loaded
