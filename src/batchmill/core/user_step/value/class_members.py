"""The members of a class that its author wrote."""

import dataclasses
import enum
import inspect
import types
from collections.abc import Iterator
from typing import Any

# Members of classes that say nothing about the code, or that Python generates.
_NO_MEMBERS = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl", "__orig_bases__", "__slots__", "__dataclass_fields__",
    "__dataclass_params__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    # pydantic's members contain addresses, follow from other members, or change in use.
    "__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__",
    "__pydantic_setattr_handlers__", "__pydantic_parent_namespace__", "__signature__",
}  # fmt: skip
_DATACLASS_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OF_NAMED_TUPLES = {
    "__new__", "__repr__", "__getnewargs__", "__replace__", "_make", "_replace", "_asdict",
}  # fmt: skip
_OF_DATACLASSES = {
    "__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__",
    "__setattr__", "__delattr__", "__replace__", "__getstate__", "__setstate__",
}  # fmt: skip


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the members that the class's author wrote."""
    if issubclass(kind, enum.Enum):
        # Also the other names of a member, which the class does not yield.
        yield from ((name, member.value) for name, member in kind.__members__.items())
    if dataclasses.is_dataclass(kind):
        options: Any = kind.__dataclass_params__  # type: ignore[attr-defined]
        yield "options", [getattr(options, name) for name in _DATACLASS_OPTIONS]
        yield "fields", [
            (f.name, None if f.default is dataclasses.MISSING else [f.default],
             None if f.default_factory is dataclasses.MISSING else f.default_factory,
             f.init, f.compare, f.kw_only, f.repr, f.hash, dict(f.metadata))
            for f in dataclasses.fields(kind)
        ]  # fmt: skip
    for name, value in sorted(vars(kind).items()):
        is_generated = _is_generated(kind, name, value)
        if name not in _NO_MEMBERS and not isinstance(value, _DESCRIPTORS) and not is_generated:
            yield name, value


def _is_generated(kind: type, name: str, value: object) -> bool:
    """Return whether Python made a member of a dataclass, NamedTuple or Enum."""
    if issubclass(kind, enum.Enum):
        # A property has no other code than its functions.
        functions: tuple[object, ...] = (value,)
        if isinstance(value, property):
            functions = (value.fget, value.fset, value.fdel)
        return not any(_is_from_author(function, "enum") for function in functions)
    has_fields = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if has_fields and type(value).__name__ == "_tuplegetter":
        return True
    if has_fields and name in _OF_NAMED_TUPLES:
        return not _is_from_author(value, "collections", f"namedtuple_{kind.__name__}")
    return dataclasses.is_dataclass(kind) and name in _OF_DATACLASSES and _is_from_text(value)


def _is_from_author(value: Any, *generators: str) -> bool:
    """Return whether a member is a function that none of these modules has made."""
    function = getattr(value, "func", getattr(value, "__func__", value))
    function = inspect.unwrap(function) if callable(function) else function
    return isinstance(function, types.FunctionType) and function.__module__ not in generators


def _is_from_text(value: object) -> bool:
    unwrapped = inspect.unwrap(value) if callable(value) else value
    if not isinstance(unwrapped, types.FunctionType):
        return value is None  # __hash__ of a dataclass that can be changed.
    return unwrapped.__code__.co_filename == "<string>" or unwrapped.__module__ == "dataclasses"
