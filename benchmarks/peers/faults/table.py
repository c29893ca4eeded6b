"""The tables of the figures, as Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any

BAD_COLUMNS = {
    "raise": "five raise",
    "crash": "one crashes",
    "hang": "one hangs",
    "memory": "one needs too much memory",
    "all": "all together",
}
SUMMARY_COLUMNS = ("one crash", "one hang", "out of memory", "kill -9", "changed line", "new file")
_MISSING = "-"


def tables(figures: dict[str, Any]) -> str:
    """Return all tables, with a line above each."""
    parts = [
        f"{figures['files']:,} files; limit of a run: {figures['limit']:g} s; {figures['made']}.",
        _table(figures, SUMMARY_COLUMNS, _summary),
        "The first run: good files with a right row, bad files that it names, and how it ends.",
        _table(figures, BAD_COLUMNS.values(), _first_runs),
        "The second run of the same command: executions, and good files with a right row then.",
        _table(figures, BAD_COLUMNS.values(), _second_runs),
        "Without bad files: executions of the next runs, and what is left after kills.",
        _table(figures, CHANGE_COLUMNS, _changes),
    ]
    for name, trouble in figures["troubles"].items():
        parts.append(f"{figures['titles'].get(name, name)}: {trouble}")
    return "\n\n".join(parts)


CHANGE_COLUMNS = (
    "seconds alone",
    "again",
    "one new file",
    "a changed line",
    "kill -9",
    "executions with kills",
)


def ending(run: dict[str, Any]) -> str:
    """Say how a run ended.

    >>> ending({"exit": None}), ending({"exit": 0})
    ('no end', 'exit 0')
    """
    return "no end" if run["exit"] is None else f"exit {run['exit']}"


def delivered(run: dict[str, Any]) -> str:
    """Say which part of the good files has a right row, and which rows are wrong.

    >>> delivered({"delivered": 3, "good": 4, "wrong": 0, "twice": 1})
    '3 of 4, 1 twice'
    """
    text = "all" if run["delivered"] == run["good"] else delivered_part(run)
    for name in ("wrong", "twice"):
        if run[name]:
            text += f", {run[name]:,} {name}"
    return text


def reported(run: dict[str, Any], bad: Sequence[str]) -> str:
    """Say which bad files a run names, and how many good files it names with them.

    >>> reported({"named": ["a"], "accused": 7}, ["a"])
    'named with 7 good files'
    """
    if len(bad) == 1:
        text = "named" if run["named"] else "not named"
    else:
        text = f"{len(run['named'])} of {len(bad)} named"
    return f"{text} with {run['accused']:,} good files" if run["accused"] else text


def after_bad(run: dict[str, Any]) -> str:
    """Say in a few words what happened to the files beside a bad one.

    >>> after_bad({"delivered": 3, "good": 4, "named": [], "accused": 0, "exit": None})
    '3 of 4 done, not named, no end'
    """
    done = "all done" if run["delivered"] == run["good"] else f"{delivered_part(run)} done"
    name = "named" if run["named"] else "not named"
    if run["accused"]:
        name += f" with {run['accused']:,} others"
    return f"{done}, {name}" + (", no end" if run["exit"] is None else "")


def after_kills(kill: dict[str, Any]) -> str:
    """Say in a few words what kills left, and what they cost.

    >>> after_kills({"last": {"delivered": 4, "good": 4, "twice": 0, "exit": 0}, "executed": 6})
    'all done, 6 executions'
    """
    last = kill["last"]
    done = "all done" if last["delivered"] == last["good"] else f"{delivered_part(last)} done"
    twice = f", {last['twice']:,} twice" if last["twice"] else ""
    return f"{done}{twice}, {kill['executed']:,} executions"


def after_change(run: dict[str, Any]) -> str:
    """Say in a few words what a changed line executes again.

    >>> after_change({"delivered": 0, "good": 4, "executed": 0, "wrong": 4})
    'nothing again, 4 old rows'
    """
    if run["delivered"] == run["good"]:
        return "all again"
    again = f"{run['executed']:,} again" if run["executed"] else "nothing again"
    return f"{again}, {run['wrong']:,} old rows"


def after_new_file(run: dict[str, Any]) -> str:
    """Say in a few words what one new file executes.

    >>> after_new_file({"delivered": 4, "good": 4, "executed": 1, "lost": 0})
    'this file'
    >>> after_new_file({"delivered": 3, "good": 4, "executed": 1, "lost": 1})
    'another file, the new one is lost'
    """
    if run["lost"]:
        return "another file, the new one is lost" if run["executed"] else "the new one is lost"
    return "this file" if run["executed"] == 1 else f"{run['executed']:,} files"


def delivered_part(run: dict[str, Any]) -> str:
    """Return the number of good files with a right row, and of all good files."""
    return f"{run['delivered']:,} of {run['good']:,}"


def _summary(found: dict[str, Any]) -> Iterator[str]:
    for name in ("crash", "hang", "memory"):
        yield after_bad(found[name]["runs"][0]) if name in found else _MISSING
    yield after_kills(found["kill"]) if "kill" in found else _MISSING
    yield after_change(found["change"]["changed"]) if "change" in found else _MISSING
    yield after_new_file(found["change"]["more"]) if "change" in found else _MISSING


def _first_runs(found: dict[str, Any]) -> Iterator[str]:
    for name in BAD_COLUMNS:
        if name not in found:
            yield _MISSING
            continue
        run, bad = found[name]["runs"][0], found[name]["bad"]
        yield f"{delivered(run)}; {reported(run, bad)}; {ending(run)}"


def _second_runs(found: dict[str, Any]) -> Iterator[str]:
    for name in BAD_COLUMNS:
        if name not in found:
            yield _MISSING
            continue
        run = found[name]["runs"][1]
        yield f"{run['executed']:,}; {delivered(run)}; {ending(run)}"


def _changes(found: dict[str, Any]) -> Iterator[str]:
    change, kill = found.get("change"), found.get("kill")
    if change:
        yield f"{change['first']['seconds']:.0f}"
        for name in ("again", "more", "changed"):
            yield f"{change[name]['executed']:,}; {delivered(change[name])}"
    else:
        yield from [_MISSING] * 4
    if kill:
        yield f"{kill['killed']} kills: {delivered(kill['last'])}"
        yield f"{kill['executed']:,}"
    else:
        yield from [_MISSING] * 2


def _table(figures: dict[str, Any], columns: Any, cells: Any) -> str:
    lines = ["| " + " | ".join(["tool", *columns]) + " |"]
    lines.append("|---" * (len(list(columns)) + 1) + "|")
    for name, found in figures["tools"].items():
        title = f"{figures['titles'][name]} {figures['versions'][name]}"
        lines.append("| " + " | ".join([title, *cells(found)]) + " |")
    return "\n".join(lines)
