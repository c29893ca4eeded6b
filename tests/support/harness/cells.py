"""Execute code as a notebook does: in a module __main__ without a file, cell by cell."""

import itertools
import linecache

_numbers = itertools.count(1)


class Notebook:
    """A namespace in which cells are executed. `cell` returns the namespace."""

    def __init__(self):
        self.names = {"__name__": "__main__"}

    def cell(self, text, *, with_source=True):
        name = f"<cell-{next(_numbers)}>"
        if with_source:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), self.names)
        return self.names
