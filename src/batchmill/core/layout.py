"""The names of a dataset's files and folders, and of the columns that batchmill writes."""

LEDGER_FOLDER = ".batchmill"
FORMAT = f"{LEDGER_FOLDER}/format.json"
PARTS = f"{LEDGER_FOLDER}/parts"
RUNS = f"{LEDGER_FOLDER}/runs"
RELEASED = f"{LEDGER_FOLDER}/released"
STEPS = f"{LEDGER_FOLDER}/steps"
LEASES = f"{LEDGER_FOLDER}/lease"
SNAPSHOTS = f"{LEDGER_FOLDER}/snapshots"
# The names of the versions that stay.
KEPT = f"{LEDGER_FOLDER}/kept.json"
# The last proof of each version.
PROOFS = f"{LEDGER_FOLDER}/proofs"
STAGING = f"{LEDGER_FOLDER}/staging"
# A manifest that was not a file.
SAVED_MANIFEST = f"{LEDGER_FOLDER}/manifest.parquet"
# The names that a ledger's folder may contain. Verification reports all others.
LEDGER_NAMES = {
    name.rpartition("/")[2]
    for name in (
        *(FORMAT, PARTS, RUNS, RELEASED, STEPS),
        *(LEASES, SNAPSHOTS, STAGING, SAVED_MANIFEST, KEPT, PROOFS),
    )
}
# Parts with this prefix have the records of many other parts.
MERGED = "merged-"
# The names in the folder of a run, `runs/RUN`.
PLAN, PLAN_ROWS, SUMMARY = "plan.json", "plan.arrow", "summary.json"
BROKEN = "broken.csv"
PICKLED_STEP = "step.pickle"
STOP, CLOSED, FLOW_RUN, FORCED = "stop", "closed", "flow-run", "forced"
PLACE, SPLIT, CREATING = "place", "split", "creating"
ATTEMPTS = "attempts"
USAGE = "usage"
# The folder of the outputs, and the folder of the packs that hold outputs.
FILES = "files"
PACKS = "packs"
METADATA = "metadata.parquet"
# The tables, the report and the other entries at the top of a dataset.
METADATA_CSV, FAILURES_CSV = "metadata.csv", "failures.csv"
TABLES = (METADATA, METADATA_CSV, FAILURES_CSV)
REPORT = "report.html"
TOP_NAMES = {LEDGER_FOLDER, FILES, PACKS, REPORT, *TABLES}
# The columns of a manifest and of the tables. The first names the input, the second its output.
INPUT_COLUMN, OUTPUT_COLUMN = "input", "output"
# The step's keys above the limit of columns, as JSON.
MORE_COLUMNS = "more_columns"
# The column of the dataset's own inputs. The column `input` names the outputs.
MADE_FROM = "made_from"
# The first input of a chain of datasets. Only a dataset whose own manifest was a dataset has it.
ORIGINAL_INPUT = "original_input"
# The column that names the partition, in manifests and in published tables.
PARTITION_COLUMN = "partition"
