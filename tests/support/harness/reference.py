"""The contents that a dataset must have after each command, from the documentation alone."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Key(NamedTuple):
    """The data that an outcome depends on. Without a file, there is no content.

    `form` is the form of the code: another form is another code with the same results.
    """

    content: str | None
    factor: int
    code: int
    form: int


@dataclass(frozen=True)
class Record:
    """The outcome of an input, and the last good result that it has.

    The versions of the library that made them are in `library` and `result_library`.
    """

    outcome: str
    key: Key
    result: Key | None
    library: int = field(default=1, compare=False)
    result_library: int = field(default=1, compare=False)


class Row(NamedTuple):
    """A row of the table, with the content of its output. `stale`: the input is not ok now."""

    input: str
    letter: str
    value: int
    output: str
    stale: bool


class Options(NamedTuple):
    """The options of a run, as on the command line. `expect` is the limit of all values."""

    force: bool = False
    prune: bool = False
    prune_failed: bool = False
    keep_versions: int = 1
    accept_change: bool = False
    verify_change: bool = False
    sample: int = 0
    expect: int = 0
    pack: bool = False
    stop_after_same: int = 0
    is_update: bool = False
    counts_libraries: bool = False


class Ran(NamedTuple):
    """The inputs that a run must have executed, and those that it must have compared only."""

    inputs: set[str]
    compared: set[str]


@dataclass
class Reference:
    """The inputs of a job, and the dataset that its runs have made of them.

    Attributes:
        kind: "function": a row and a file for each letter. "class": one row without a file.
            "batch": one row and one file.
        retries: The retries of an input.
    """

    kind: str = "function"
    retries: int = 0
    files: dict[str, str] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    factor: int = 1
    code: int = 1
    form: int = 0
    library: int = 1
    records: dict[str, Record] = field(default_factory=dict)
    # The inputs that the next run executes again: on request, or because an output was damaged.
    due: set[str] = field(default_factory=set)
    versions: dict[int, list[Row]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    # The inputs of the last run, and those whose files did not exist then.
    last_manifest: list[str] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    # The pending inputs outside of the last run's sample, or for which it was stopped too early.
    left: set[str] = field(default_factory=set)
    # The tables that were published last, and whether anything has changed since.
    shown: list[Row] = field(default_factory=list)
    shown_failures: dict[str, str] = field(default_factory=dict)
    has_changed: bool = True
    is_published: bool = True

    def run(self, options, published, recorded=None):
        """Run the job.

        Args:
            options: The options of the run.
            published: The numbers of the versions that the run has published. It must if rows have
                changed. It may if failures, the manifest or the step changed, or if inputs were
                executed, because their files may be at another place now. A run that was killed
                after that may have published one, too.
            recorded: The inputs with an outcome of this run. With a sample, they are a part of the
                pending inputs.

        Returns:
            The inputs that the run must have executed.
        """
        compared = self._keep_results(options)
        pending = {name for name in self.listed if self._is_pending(name, options)}
        self.left = set()
        if options.sample:
            assert recorded is not None
            assert recorded <= pending, f"{recorded - pending} need not be executed"
            assert len(recorded) == min(options.sample, len(pending))
            self.left, pending = pending - recorded, recorded
        elif options.stop_after_same:
            self.left, pending = pending - recorded, recorded & pending
            contents = {self.files.get(name) for name in pending if name in self.files}
            if self.left:
                assert len(contents) == 1, f"{contents} have several causes"
                assert {self.outcome_of(one) for one in contents} != {"ok"}
                assert len(pending) >= options.stop_after_same
        for name in pending:
            self._execute(name)
        self.has_changed |= bool(pending) or self.listed != self.last_manifest
        self.has_changed |= options.accept_change or options.verify_change
        self._end(options)
        self.is_published = not options.expect or all(
            row.value < options.expect for row in self.table()
        )
        if self.is_published:
            self._publish(published, options.keep_versions)
        else:
            assert not published, "the table breaks the expectation"
        return Ran({name for name in pending if name in self.files}, compared)

    def _key(self, name):
        return Key(self.files.get(name), self.factor, self.code, self.form)

    def _keep_results(self, options):
        """Keep the results of earlier code, as the user demands. Return the compared inputs."""
        kept = {
            name
            for name in self.listed
            if (record := self.records.get(name))
            and record.outcome == "ok"
            and record.key[:2] == self._key(name)[:2]
            and (record.key != self._key(name) or self._has_other_library(record, options))
        }
        compared: set[str] = set()
        if options.verify_change:
            compared = kept = kept - self.due
            is_equal = all(
                self.rows(self.records[name].result) == self.rows(self._key(name)) for name in kept
            )
            kept = kept if is_equal else set()
        if options.accept_change or options.verify_change:
            for name in kept:
                self.records[name] = replace(self.records[name], key=self._key(name))
                if options.counts_libraries:
                    self.records[name] = replace(
                        self.records[name], library=self.library, result_library=self.library
                    )
        return compared

    def _has_other_library(self, record, options):
        return options.counts_libraries and record.library != self.library

    def _is_pending(self, name, options):
        record, key = self.records.get(name), self._key(name)
        if record and record.result and key.content is None:
            return False  # Its file may come back, so its result stays.
        if record is None or self._has_other_library(record, options):
            return True
        return record.key != key or options.force or name in self.due

    def _execute(self, name):
        key, record = self._key(name), self.records.get(name)
        outcome = self.outcome_of(key.content)
        earlier = (record.result, record.result_library) if record else (None, 1)
        result = (key, self.library) if outcome == "ok" else earlier
        self.records[name] = Record(outcome, key, result[0], self.library, result[1])
        self.due.discard(name)

    def _end(self, options):
        """Remove what the user wants to be removed."""
        if options.prune_failed:
            for name, record in self.records.items():
                # The next run executes those outside the sample. The files of others may come back.
                is_away = name in self.listed and name not in self.files
                if record.outcome != "ok" and name not in self.left and not is_away:
                    self.records[name] = replace(record, result=None)
        if options.prune:
            self.records = {n: record for n, record in self.records.items() if n in self.listed}
        self.last_manifest = list(self.listed)
        self.away = set(self.listed) - self.files.keys()

    def _publish(self, published, keep_versions):
        has_new_failures = self.failures() != self.shown_failures
        if self.table() != self.shown or not self.versions:
            assert published, "the rows have changed, but there is no new version"
        elif published:
            is_other = self.has_changed or has_new_failures
            assert is_other, "there is a new version without a change"
        self.shown, self.shown_failures, self.has_changed = self.table(), self.failures(), False
        self.versions |= dict.fromkeys(published, self.shown)
        stay = {*list(self.versions)[-1 - keep_versions :], *self.names.values()}
        self.versions = {n: rows for n, rows in self.versions.items() if n in stay}

    def rows(self, key):
        """Return the rows of the step: a letter, a value, and the content of its file."""
        value = 10 * key.factor + key.code
        if self.kind == "function":
            return [(letter, value, letter * value) for letter in key.content]
        return [(key.content, value, key.content * value if self.kind == "batch" else "")]

    def outcome_of(self, content):
        """Return how the step ends for an input."""
        if content is None:
            return "missing"
        if content == "flaky":
            return "ok" if self.retries else "failed"
        return {"bad": "failed", "die": "crashed"}.get(content[:3], "ok")

    def attempts(self, names):
        """Return how often a run executes inputs: flaky ones fail once, others always or never."""
        often = self.retries + 1
        return Counter(
            {n: often if self.files[n][:3] in ("bad", "die", "fla") else 1 for n in names}
        )

    def retry(self):
        """Request a retry of all failed inputs. Return their names.

        An input whose file is away keeps its earlier result, and its file is all that it needs.
        """
        chosen = {name for name in self.failures() if self.records[name].outcome != "ok"}
        self.due |= chosen
        return chosen

    def retry_where(self, least):
        """Request a retry of the inputs of the published rows with a value from `least` on."""
        away = self.failures().keys() - {
            name for name, record in self.records.items() if record.outcome != "ok"
        }
        chosen = {row.input for row in self.shown if row.value >= least} - away
        self.due |= chosen
        return chosen

    def counts(self):
        """Return the number of inputs for each outcome, without those outside of the sample."""
        found = [kind for name, kind in self.outcomes().items() if name not in self.left]
        return {kind: found.count(kind) for kind in set(found)}

    def outcomes(self):
        """Return the outcome of each input of the last manifest that has one.

        A run does not look for the file of an input outside of its sample.
        """
        away = self.away - self.left
        return {
            name: "missing" if name in away else self.records[name].outcome
            for name in self.last_manifest
            if name in self.records
        }

    def results_by_library(self):
        """Return the number of results in the tables that each version of the library made."""
        found = [self.records[name] for name in self.last_manifest if name in self.records]
        return Counter(f"{one.result_library}.0" for one in found if one.result)

    def failures(self):
        """Return the outcome of each input of the last manifest that is not ok."""
        return {name: kind for name, kind in self.outcomes().items() if kind != "ok"}

    def table(self):
        """Return the rows of the table, in the order of the manifest."""
        return [
            Row(name, letter, value, output, stale=record.outcome != "ok")
            for name in self.last_manifest
            if (record := self.records.get(name)) and record.result
            for letter, value, output in self.rows(record.result)
        ]
