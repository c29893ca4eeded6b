"""The ledger: the committed outcomes of a dataset, and the only truth about what is done.

    DATASET/.batchmill/
      format.json                  {"ledger": 2}
      parts/RUN-ATTEMPT-N.parquet  outcomes; never changed after they are written
      parts/upkeep-RUN-ID.parquet  records written anew: touched, pruned, many parts in one
      runs/RUN/plan.arrow          what a run set out to do
      runs/RUN/stop                asks its shards to end early
      runs/RUN/alone/ROW-ATTEMPT   a row of the plan that was executed alone, after lost workers
      runs/RUN/place/SHARD         the machine on which a shard has begun
      runs/RUN/split/SHARD         asks a shard to leave what it has not begun to others
      runs/RUN/split/SHARD-from    the row of the plan from which on it has done so
      runs/RUN/summary.json        how it ended
      steps/IDENTITY.json          what a step consisted of
      released/RUN-ID.json         inputs whose outcomes in runs up to RUN count no more
      partitions/RUN.parquet       which input is in which partition, from RUN on
      staging/                     outputs that are being written

Of several records of one input, that of the latest run wins, within a run the latest, and of two
that are the same in that, the one from upkeep. An input whose winner says `pruned` is gone.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.errors import LedgerError, StoreError
from batchmill.outcome import Outcome
from batchmill.storage import Store, in_threads

VERSION = 2
FOLDER = ".batchmill"
# The outcome of an input that was withdrawn, and removed on request.
PRUNED = "pruned"
_OK = "ok"

_FORMAT = f"{FOLDER}/format.json"
_PARTS = f"{FOLDER}/parts"
_RUNS = f"{FOLDER}/runs"
_RELEASED = f"{FOLDER}/released"
_STEPS = f"{FOLDER}/steps"
PARTITIONS = f"{FOLDER}/partitions"
_UPKEEP = "upkeep-"
# All that is at home in the ledger's folder.
IN_FOLDER = {
    *(name.rpartition("/")[2] for name in (_FORMAT, _PARTS, _RUNS, _RELEASED, _STEPS, PARTITIONS)),
    *("staging", "lease", "manifest.parquet", "published.json"),
}

_FILE = pa.struct([("path", pa.string()), ("size", pa.int64()), ("content", pa.string())])
PART_SCHEMA = pa.schema(
    [
        ("input", pa.string()),
        ("input_id", pa.string()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("seconds", pa.float64()),
        ("finished_at", pa.float64()),
        ("host", pa.string()),
        ("rows", pa.string()),
        ("outputs", pa.list_(_FILE)),
        ("error", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("log", pa.string()),
        # What the outcome is an outcome of: the input's content, the manifest's row, the step.
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("etag", pa.string()),
        ("content", pa.string()),
        ("carried", pa.string()),
        ("step", pa.string()),
        ("run", pa.int32()),
    ],
    metadata={"batchmill.ledger": str(VERSION)},
)


class Origin(NamedTuple):
    """What an outcome is an outcome of, besides the file: the manifest's row, the step, the run."""

    carried: str
    step: str
    run: int


class Ledger:
    """The ledger of the dataset in one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def exists(self) -> bool:
        """Whether there is a dataset here."""
        return self.store.exists(_FORMAT)

    def create(self) -> None:
        """Make the folder a dataset; of one that is, check the version. Raises LedgerError."""
        if self.exists:
            self.check_version()
            return
        data = json.dumps({"ledger": VERSION}).encode()
        # Leases need a store that makes a file once only: this one must not let it be made again.
        self.store.create(_FORMAT, data)
        if self.store.create(_FORMAT, data):
            raise StoreError(
                self.store.url,
                "this store makes a file that is there already, so that two runs could not be "
                "told apart. S3, Google and Azure do not; update yours, or choose another.",
            )

    def check_version(self) -> None:
        """Raise LedgerError for a ledger that this version of batchmill cannot read."""
        try:
            version = json.loads(self.store.read(_FORMAT))["ledger"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{self.store.place(_FORMAT)}: is not a ledger's format file. "
                "Is this folder a dataset? Choose another one."
            ) from error
        if version != VERSION:
            raise LedgerError(
                f"{self.store.url}: its ledger has version {version}, this batchmill knows "
                f"version {VERSION}. Install the batchmill that made it, or a newer one."
            )

    # Runs

    def runs(self) -> list[int]:
        """Return the numbers of the runs that were started, in order."""
        return sorted(int(name) for name in self.store.names(_RUNS) if name.isdigit())

    def plan_name(self, run: int) -> str:
        """Return the name of a run's plan file in the store."""
        return f"{_RUNS}/{run:06d}/plan.arrow"

    def write_summary(self, run: int, summary: Mapping[str, Any]) -> None:
        """Record how a run ended."""
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        self.store.write(self._summary_name(run), text.encode())

    def read_summary(self, run: int) -> dict[str, Any] | None:
        """Return how a run ended; None if it has not, or was killed."""
        name = self._summary_name(run)
        if not self.store.exists(name):
            return None
        return self._read_json(name)

    def request_stop(self, run: int) -> None:
        """Ask all shards of a run to end: what is finished is committed, the rest stays pending."""
        self.store.write(self._stop_name(run), b"")

    def stop_requested(self, run: int) -> bool:
        """Whether the shards of a run were asked to end."""
        return self.store.exists(self._stop_name(run))

    def note_flow_run(self, run: int, name: str) -> None:
        """Note what a run is called by whoever shows it."""
        self.store.write(self._flow_run_name(run), name.encode())

    def flow_run_of(self, run: int) -> str | None:
        """Return what a run is called by whoever shows it; None if that was not noted."""
        name = self._flow_run_name(run)
        return self.store.read(name).decode() if self.store.exists(name) else None

    def note_place(self, run: int, shard: str, place: str) -> None:
        """Note on which machine a shard of a run has begun."""
        self.store.write(self._place_name(run, shard), place.encode())

    def place_of(self, run: int, shard: str) -> str | None:
        """Return the machine on which a shard has begun; None if it has not."""
        name = self._place_name(run, shard)
        return self.store.read(name).decode() if self.store.exists(name) else None

    def ask_to_split(self, run: int, shard: str) -> None:
        """Ask a shard of a run to leave what it has not begun to others."""
        self.store.write(self._split_name(run, shard), b"")

    def split_asked(self, run: int, shard: str) -> bool:
        """Whether a shard was asked to leave what it has not begun."""
        return self.store.exists(self._split_name(run, shard))

    def answer_split(self, run: int, shard: str, row: int) -> None:
        """Say from which row of the plan on a shard executes nothing."""
        self.store.write(self._split_name(run, shard) + "-from", str(row).encode())

    def split_answer(self, run: int, shard: str) -> int | None:
        """Return from which row on a shard executes nothing; None as long as it has not said."""
        name = self._split_name(run, shard) + "-from"
        return int(self.store.read(name)) if self.store.exists(name) else None

    def note_alone(self, run: int, row: int, attempt: int) -> None:
        """Note that a row of a run's plan is about to be executed alone in a shard."""
        self.store.write(f"{self._alone_name(run)}/{row}-{attempt}", b"")

    def count_alone(self, run: int, row: int) -> int:
        """Count how often a row has been executed alone in a shard."""
        names = self.store.names(self._alone_name(run))
        return sum(name.startswith(f"{row}-") for name in names)

    def _alone_name(self, run: int) -> str:
        return f"{_RUNS}/{run:06d}/alone"

    def _flow_run_name(self, run: int) -> str:
        return f"{_RUNS}/{run:06d}/flow-run"

    def _place_name(self, run: int, shard: str) -> str:
        return f"{_RUNS}/{run:06d}/place/{shard}"

    def _split_name(self, run: int, shard: str) -> str:
        return f"{_RUNS}/{run:06d}/split/{shard}"

    def _stop_name(self, run: int) -> str:
        return f"{_RUNS}/{run:06d}/stop"

    def _summary_name(self, run: int) -> str:
        return f"{_RUNS}/{run:06d}/summary.json"

    # Steps

    def describe_step(self, identity: str, description: Mapping[str, Any]) -> None:
        """Keep what a step consists of, to say later what has changed."""
        name = f"{_STEPS}/{identity}.json"
        if not self.store.exists(name):
            text = json.dumps(description, indent=2, ensure_ascii=False)
            self.store.write(name, text.encode())

    def step_description(self, identity: str) -> dict[str, Any] | None:
        """Return what a step of earlier runs consisted of; None if that is not known."""
        name = f"{_STEPS}/{identity}.json"
        if not self.store.exists(name):
            return None
        return self._read_json(name)

    # Inputs that are to run again

    def release(self, inputs: Sequence[str]) -> None:
        """Let inputs run again: what is recorded of them so far counts no more."""
        run = max(self.runs(), default=0)
        text = json.dumps({"run": run, "inputs": list(inputs)}, ensure_ascii=False)
        self.store.write(f"{_RELEASED}/{run:06d}-{uuid.uuid4().hex[:12]}.json", text.encode())

    def released(self) -> dict[str, int]:
        """Return released inputs, each with the run up to which its failures count no more."""
        released: dict[str, int] = {}
        for name in self.store.names(_RELEASED):
            content = self._read_json(f"{_RELEASED}/{name}", "run", "inputs")
            released |= dict.fromkeys(content["inputs"], content["run"])
        return released

    def _read_json(self, name: str, *keys: str) -> dict[str, Any]:
        """Read a small file. Raises LedgerError unless it is an object with these keys."""
        try:
            content: dict[str, Any] = json.loads(self.store.read(name))
            if isinstance(content, dict) and set(keys) <= content.keys():
                return content
        except ValueError:
            pass
        raise LedgerError(
            f"{self.store.place(name)}: is no file of this ledger, or torn. Move it away, and give "
            "the same command again."
        )

    def state(self) -> list[str]:
        """Return names that are others as soon as something has been recorded."""
        return self.part_names() + self.store.names(_RELEASED) + self.store.names(PARTITIONS)

    # Parts

    def commit(self, part: str, records: Sequence[tuple[Outcome, Origin]]) -> None:
        """Write one part. Its outputs are in place already, or it would name what is not there."""
        outcomes, origins = zip(*records, strict=True)
        fields = dict(zip(Outcome._fields, zip(*outcomes, strict=True), strict=True))
        fields |= dict(zip(Origin._fields, zip(*origins, strict=True), strict=True))
        fields["outcome"] = fields.pop("kind")
        columns = [pa.array(fields[field.name], field.type) for field in PART_SCHEMA]
        self._write_part(part, pa.Table.from_arrays(columns, schema=PART_SCHEMA))

    def record_anew(self, run: int, records: pa.Table) -> None:
        """Write records of earlier runs once more, with changes or in fewer parts.

        Those that keep their `run` and `finished_at` take the place of what they were.
        """
        part = f"{_UPKEEP}{run:06d}-{uuid.uuid4().hex[:12]}"
        self._write_part(part, records.select(PART_SCHEMA.names).cast(PART_SCHEMA))

    def drop_parts(self, names: Iterable[str]) -> None:
        """Remove parts whose records are in another one."""
        for name in names:
            self.store.delete(f"{_PARTS}/{name}")

    def _write_part(self, part: str, table: pa.Table) -> None:
        self.store.fill(
            f"{_PARTS}/{part}.parquet", lambda file: pq.write_table(table, file, compression="zstd")
        )

    def part_names(self, run: int | None = None) -> list[str]:
        """Return the names of the committed parts: of one run's own, or all."""
        start = "" if run is None else f"{run:06d}-"
        names = self.store.names(_PARTS)
        return [name for name in names if name.startswith(start) and name.endswith(".parquet")]

    def read_part(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one part. Raises LedgerError, with the part's name, if it is torn or foreign."""
        place = self.store.place(f"{_PARTS}/{name}")
        try:
            file = pq.ParquetFile(self.store.open(f"{_PARTS}/{name}"))
            if (file.schema_arrow.metadata or {}).get(b"batchmill.ledger") != str(VERSION).encode():
                raise LedgerError(f"{place}: is no part of a ledger of version {VERSION}.")
            return file.read(columns=list(columns) if columns else None)
        except (OSError, pa.ArrowException) as error:
            raise LedgerError(
                f"{place}: cannot be read ({error}). Move it away, and run the same command again: "
                "the inputs that it recorded run once more."
            ) from error

    def records(
        self,
        columns: Iterable[str] | None = None,
        *,
        run: int | None = None,
        before: int | None = None,
    ) -> pa.Table:
        """Return the winning record of each input, among those of one run, of earlier ones, or all.

        Raises LedgerError for a part that is torn or foreign, StoreError.
        """
        wanted = [field.name for field in PART_SCHEMA if columns is None or field.name in columns]
        needed = sorted({*wanted, "input", "outcome", "run", "finished_at"})
        tables = list(self._read_parts(run, needed))
        empty = pa.schema([PART_SCHEMA.field(name) for name in needed]).empty_table()
        table = pa.concat_tables([empty, *tables], promote_options="permissive")
        if before is not None:
            table = table.filter(pc.less(table["run"], before))
        winners = _winners(table)
        return winners.filter(pc.not_equal(winners["outcome"], PRUNED)).select(wanted)

    def _read_parts(self, run: int | None, columns: Sequence[str]) -> list[pa.Table]:
        while True:
            own = self.part_names(run)
            upkeep = [name for name in self.part_names() if name.startswith(_UPKEEP)]
            try:
                if run is None:
                    return self._read(own, columns)
                tables = self._read(upkeep, columns)
                return [
                    *self._read(own, columns),
                    *(table.filter(pc.equal(table["run"], run)) for table in tables),
                ]
            except (LedgerError, StoreError):
                # A run that is going on may have put many parts into one just now.
                if set(own + upkeep) <= set(self.part_names()):
                    raise

    def _read(self, names: Sequence[str], columns: Sequence[str]) -> list[pa.Table]:
        return in_threads(lambda name: self.read_part(name, columns), names, self.store.threads)


def _winners(table: pa.Table) -> pa.Table:
    """Keep the latest record of each input; within a run, what is ok goes before what is not.

    A node that was thought lost may come back, and its attempt fail where another has succeeded.
    """
    if len(table["input"].unique()) == len(table):
        return table
    keys = table.select(["input", "run", "finished_at"]).to_pandas()
    keys["good"] = table["outcome"].to_pandas().isin([_OK, PRUNED])
    ordered = keys.sort_values(["run", "good", "finished_at"], kind="stable")
    kept = ordered.drop_duplicates("input", keep="last").index
    return table if len(kept) == len(table) else table.take(pa.array(kept.sort_values()))
