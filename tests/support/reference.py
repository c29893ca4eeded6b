"""The contents that a dataset must have after each command, from the documentation alone."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Key(NamedTuple):
    """The data that an outcome depends on. Without a file, there is no content."""

    content: str | None
    factor: int
    code: int


@dataclass(frozen=True)
class Record:
    """The outcome of an input, and the last good result that it has."""

    outcome: str
    key: Key
    result: Key | None


class Row(NamedTuple):
    """A row of the table, with the content of its output. `stale`: the input is not ok now."""

    input: str
    letter: str
    value: int
    output: str
    stale: bool


def step_rows(key):
    """Return the rows of the step: a letter, a value, and the content of its file."""
    value = 10 * key.factor + key.code
    return [(letter, value, letter * value) for letter in key.content]


def outcome_of(content):
    """Return how the step ends for an input."""
    if content is None:
        return "missing"
    return {"bad": "failed", "die": "crashed"}.get(content[:3], "ok")


@dataclass
class Reference:
    """The inputs of a job, and the dataset that its runs have made of them."""

    files: dict[str, str] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    factor: int = 1
    code: int = 1
    records: dict[str, Record] = field(default_factory=dict)
    # The inputs that the next run executes again: on request, or because an output was damaged.
    due: set[str] = field(default_factory=set)
    versions: dict[int, list[Row]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    # The inputs of the last run, and those whose files did not exist then.
    last_manifest: list[str] = field(default_factory=list)
    away: set[str] = field(default_factory=set)

    def run(self, published, *, force, prune, prune_failed, keep_versions, accept):
        """Run the job.

        Args:
            published: The numbers of the versions that the run has published. It must if rows have
                changed. It may if failures or the manifest have changed, or if inputs were
                executed, because their files may be at another place now. A run that was killed
                after that may have published one, too.
            force: As on the command line, and so are the following ones.
        """
        before, failed_before = self.table(), self.failures()
        executed = sum([self._run_input(name, force, accept) for name in self.listed])
        is_other_manifest = self.listed != self.last_manifest
        if prune_failed:
            for name, record in self.records.items():
                if record.outcome != "ok":
                    self.records[name] = replace(record, result=None)
        if prune:
            self.records = {name: self.records[name] for name in self.listed}
        self.last_manifest = list(self.listed)
        self.away = set(self.listed) - self.files.keys()
        self.due.clear()
        if self.table() != before or not self.versions:
            assert published, "the rows have changed, but there is no new version"
        elif published:
            has_changed = executed or is_other_manifest or self.failures() != failed_before
            assert has_changed, "there is a new version without a change"
        self.versions |= dict.fromkeys(published, self.table())
        stay = {*list(self.versions)[-1 - keep_versions :], *self.names.values()}
        self.versions = {n: rows for n, rows in self.versions.items() if n in stay}

    def _run_input(self, name, force, accept):
        """Run one input. Return whether it was executed."""
        key = Key(self.files.get(name), self.factor, self.code)
        record = self.records.get(name)
        if record and record.outcome == "ok" and key.content is None:
            return False  # Its file may come back, so its result stays.
        if record and accept and record.outcome == "ok" and record.key[:2] == key[:2]:
            record = self.records[name] = replace(record, key=key)
        is_same = record is not None and record.key == key
        if is_same and not force and name not in self.due:
            return False
        outcome = outcome_of(key.content)
        earlier = record.result if record else None
        self.records[name] = Record(outcome, key, key if outcome == "ok" else earlier)
        return True

    def retry(self):
        """Request a retry of all failed inputs. Return their names.

        An input whose file is away keeps its earlier result, and its file is all that it needs.
        """
        chosen = {name for name in self.failures() if self.records[name].outcome != "ok"}
        self.due |= chosen
        return chosen

    def counts(self):
        """Return the number of inputs of the last manifest for each outcome."""
        found = list(self.outcomes().values())
        return {kind: found.count(kind) for kind in set(found)}

    def outcomes(self):
        """Return the outcome of each input of the last manifest."""
        return {
            name: "missing" if name in self.away else self.records[name].outcome
            for name in self.last_manifest
        }

    def failures(self):
        """Return the outcome of each input of the last manifest that is not ok."""
        return {name: kind for name, kind in self.outcomes().items() if kind != "ok"}

    def table(self):
        """Return the rows of the table, in the order of the manifest."""
        return [
            Row(name, letter, value, output, stale=record.outcome != "ok")
            for name in self.last_manifest
            if (record := self.records.get(name)) and record.result
            for letter, value, output in step_rows(record.result)
        ]
