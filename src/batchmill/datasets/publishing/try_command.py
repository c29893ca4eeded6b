"""The command that executes the step of a run on one of its inputs."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from batchmill.core.planning.run_spec import RunSpec
from batchmill.core.security.redaction import without_secrets_in_source
from batchmill.core.storage.addresses import parse_address
from batchmill.core.urls import join


def try_command(spec: RunSpec, record: Mapping[str, Any], outcome: str) -> str:
    """Return the command that executes a run's step on an input, with the limit that it exceeded.

    The text is empty if `batchmill try` cannot run the step, or if the input is in a pack.

    Args:
        spec: The settings of the run.
        record: The `input`, its `etag`, and its `carried` manifest columns.
        outcome: The outcome of the input.
    """
    # The ETag of an input in a pack is its address.
    if not spec.can_try or parse_address(record["etag"] or ""):
        return ""
    words = ["batchmill", "try", join(spec.root, record["input"]), "--step", spec.step]
    if spec.folders:
        words += ["--input-kind", "folder"]
    row = json.loads(record["carried"])
    files = {
        column: join(spec.root, row[column]) if row.get(column) else ""
        for column in spec.file_columns
    }
    row = {key: row[key] for key in row if spec.takes_rows and key not in spec.file_columns}
    for option, values in (("--param", spec.params), ("--row", row), ("--file", files)):
        for name, value in values.items():
            words += [option, f"{name}={_argument(value)}"]
    if outcome == "timeout" and spec.policy.timeout:
        words += ["--timeout", f"{spec.policy.timeout:g}"]
    if outcome == "oom" and spec.policy.memory_limit:
        words += ["--memory-limit", spec.policy.memory_limit]
    return shlex.join(map(without_secrets_in_source, words))


def _argument(value: Any) -> str:
    """Return a value as text that the command line reads as the same value."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, ensure_ascii=False)
