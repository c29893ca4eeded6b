"""Load the Pandera schemas that the table of a run must meet."""

import sys
from collections.abc import Sequence
from typing import Any

from batchmill.errors import OptionError
from batchmill.options.conditions import names_schema
from batchmill.step.import_reference import resolve_reference


def load_schemas(expectations: Sequence[str], search: str) -> dict[str, Any]:
    """Return the schemas that expectations name, by their names.

    Args:
        expectations: Conditions, and names of schemas: module:SCHEMA.
        search: A folder that is appended to the import path. It stays there.

    Raises:
        StepError: A schema cannot be imported.
        OptionError: A schema may not be used here, or is no schema.
    """
    names = [text.strip() for text in expectations if names_schema(text)]
    if names and search and search not in sys.path:
        sys.path.append(search)
    schemas = {name: resolve_reference(name, "--expect") for name in names}
    for name, schema in schemas.items():
        if not callable(getattr(schema, "validate", None)):
            raise OptionError(
                f"--expect {name}: is a {type(schema).__name__}, and not a schema of Pandera. Name "
                "a DataFrameSchema or a DataFrameModel."
            )
    return schemas
