"""Generate the reference pages of commands, flows and blocks from the code."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any

import batchmill.blocks
import batchmill.flows
from prefect import Flow

from batchmill.cli.main import make_app

_GENERATED = "Generated from the code."
_COMMANDS = (
    f"The output of `batchmill COMMAND --help`. {_GENERATED} [Running it](../how-to/running.md) "
    "explains how the commands work together, and their exit codes."
)
_FLOWS = (
    f"The flows that deployments, forms and Python can run. {_GENERATED} The left column has the "
    "names of `parameters` in a deployment and of keyword arguments in Python. The form in "
    "[Prefect's UI](../how-to/prefect-ui.md) shows their titles."
)


def commands() -> str:
    """Return the page of the commands: the output of `--help` for each command."""
    pieces = ["# Commands", _COMMANDS]
    for name in command_names():
        # An app with this command only, because its help is the whole docstring.
        app = make_app(name)
        command = app[name]
        # Without its app, it would show the empty defaults and the options `--no-...`.
        command.default_parameter = app.default_parameter
        text = command.generate_docs(heading_level=2, usage_name=f"batchmill {name}")
        text = text.replace(f"## {name}\n", f"## batchmill {name}\n", 1)
        text = text.replace(f"batchmill {name} {name} ", f"batchmill {name} ", 1)
        pieces.append(_in_words(text).strip())
    return _page(pieces)


def _in_words(text: str) -> str:
    """Write "required" and default values as sentences."""
    text = text.replace(" **[required]**", " Required.")
    return re.sub(r" \*\[default: (.*?)\]\*", r" Default: \1.", text)


def command_names() -> list[str]:
    """Return the names of all commands, in the order of `batchmill --help`."""
    return [name for name in make_app() if not name.startswith("-")]


def flows() -> str:
    """Return the page of the flows: purpose and parameters of each flow."""
    pieces = ["# Flows", _FLOWS]
    for place, flow in sorted(_all_flows()):
        pieces += [f"## {flow.name}", f"```python\nfrom {place[0]} import {place[1]}\n```"]
        pieces.append(cleandoc(flow.description or "").partition("\nArgs:")[0].strip())
        pieces.append(_table(flow.parameters.model_dump(), "parameter"))
    return _page(pieces)


def _all_flows() -> Iterator[tuple[tuple[str, str], Flow[Any, Any]]]:
    for module in pkgutil.iter_modules(batchmill.flows.__path__, "batchmill.flows."):
        loaded = importlib.import_module(module.name)
        for name, value in vars(loaded).items():
            if isinstance(value, Flow) and value.fn.__module__ == module.name:
                yield (module.name, name), value


def blocks() -> str:
    """Return the page of the blocks: purpose and fields of each block."""
    pieces = [
        "# Blocks",
        "Settings that Prefect can [save under a name](../how-to/saved-blocks.md). " + _GENERATED,
    ]
    for name in batchmill.blocks.__all__:
        block = getattr(batchmill.blocks, name)
        schema = block.model_json_schema()
        pieces += [f"## {name}", f"```python\nfrom batchmill.blocks import {name}\n```"]
        pieces += [schema["description"], _table(schema, "field")]
    return _page(pieces)


def _table(schema: Mapping[str, Any], what: str) -> str:
    """Return the parameters or fields of a schema as a table."""
    # Two columns fit the screen of a phone.
    lines = [f"| {what} | |", "|---|---|"]
    for name, field in schema["properties"].items():
        default = "required"
        if name not in schema.get("required", ()):
            default = f"default `{json.dumps(field.get('default'))}`"
        kind = f"{_type(field)}, secret" if _is_secret(name, field, schema) else _type(field)
        group = _group(field, schema)
        described = field.get("description") or (group or {}).get("description", "")
        description = " ".join(described.split()).replace("|", "\\|")
        note = "" if group else f" *{kind}, {default}*"
        lines.append(f"| `{name}` | {description}{note} |")
        if group:
            options = {f"{name}.{option}": entry for option, entry in group["properties"].items()}
            lines += _table({**group, "properties": options}, what).splitlines()[2:]
    return "\n".join(lines)


def _group(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of a field's option group; None for other fields."""
    known = schema.get("definitions") or schema.get("$defs") or {}
    name = str(field.get("$ref", "")).rpartition("/")[2]
    found: Mapping[str, Any] | None = known.get(name)
    return found if found and found.get("additionalProperties") is False else None


def _is_secret(name: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    fields = {secret.partition(".")[0] for secret in schema.get("secret_fields", ())}
    return name in fields or field.get("format") == "password"


def _type(field: Mapping[str, Any]) -> str:
    """Return the JSON types of a field."""
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice != {"type": "null"})
    if "allOf" in field:
        return _type(field["allOf"][0])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "any"))


def _page(pieces: list[str]) -> str:
    return "\n\n".join(piece for piece in pieces if piece) + "\n"
