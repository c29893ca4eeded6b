"""A run that has nothing to execute, where there is no Prefect server to tell of it.

To start one takes longer than to see that a million inputs are unchanged. Imports no Prefect, for
that takes as long.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from batchmill.errors import RunError
from batchmill.job import Prepared
from batchmill.policy import FailurePolicy
from batchmill.publication import publish_changes
from batchmill.report import write_report
from batchmill.run import open_run
from batchmill.summary import failure_message


def prefect_home() -> Path:
    """Return Prefect's folder, unless a file says otherwise: PREFECT_HOME."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def may_have_server() -> bool:
    """Tell whether any place that Prefect takes its settings from may name an API."""
    if "PREFECT_API_URL" in os.environ or "PREFECT_PROFILE" in os.environ:
        return True
    return may_have_settings("api", "url")


def may_have_settings(*names: str) -> bool:
    """Tell whether a file that Prefect takes its settings from may have one with such a name.

    Or whether it may name another file with more of them.
    """
    wanted = "|".join([*names, "profiles_path"])
    mentions = re.compile(f"prefect.*({wanted})", re.IGNORECASE | re.DOTALL)
    profiles = os.environ.get("PREFECT_PROFILES_PATH") or prefect_home() / "profiles.toml"
    # In a file of Prefect's own, names have no prefix.
    texts = [_text_of(profiles), _text_of(".env"), f"prefect: {_text_of('prefect.toml')}"]
    return any(map(mentions.search, [*texts, _settings_of_project()]))


def _text_of(path: str | Path) -> str:
    """Return a file's text; none where there is no such file."""
    return Path(path).read_text(errors="replace") if Path(path).is_file() else ""


def _settings_of_project() -> str:
    """Return Prefect's part of pyproject.toml, as some text; all of it where that is not TOML."""
    text = _text_of("pyproject.toml")
    try:
        own = tomllib.loads(text).get("tool", {}).get("prefect")
    except tomllib.TOMLDecodeError:
        return text
    return f"prefect: {own}" if own else ""


def is_idle(prepared: Prepared) -> bool:
    """Tell whether there is nothing to execute, nor to tell of a run that was killed."""
    runs = prepared.ledger.runs()
    ended = bool(runs) and prepared.ledger.read_summary(runs[-1]) is not None
    return ended and not len(prepared.plan.pending)


def finish(
    prepared: Prepared, policy: FailurePolicy, *, prune: bool, wait: bool
) -> dict[str, Any] | None:
    """Do what is left of an idle run: look after its tables, and prune; returns its summary.

    None, with nothing done, if by now there is something to execute. Raises RunError if too many
    inputs are not ok, and what `open_run` raises.
    """
    with open_run(prepared, wait=wait) as run:
        if run.pending:
            return None
        run.divide_nothing(policy)
        run.settle(prune=prune)
        publish_changes(run.ledger, run.prepared.manifest)
        summary = run.end()
        if run.report_is_stale:
            write_report(run.ledger, run.number, run.prepared.job.output)
    if not summary.accepted(policy.failures_allowed(summary.inputs)):
        raise RunError(failure_message(summary, prepared.job.output))
    return prepared.ledger.read_summary(run.number)
