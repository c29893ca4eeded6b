"""CocoIndex: one processing component for each file, with `memo=True`.

The function is a `@coco.fn`, so a change of its code is noticed. It runs in threads, as
`coco.fn.as_async` does, two at a time. A component that raises does not stop the others, and the
handler of exceptions names the file. `coco.timeout` is cooperative. There is no limit of memory.

There is another way: `coco.GPU` with `COCOINDEX_RUN_GPU_IN_SUBPROCESS=1`. It has one process, and
repeats a function that crashes without end.
"""

# mypy: disallow-untyped-decorators=False

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from operator import itemgetter
from pathlib import Path

import cocoindex as coco
from cocoindex.connectors import localfs
from cocoindex.resources.file import FileLike

from benchmarks.peers.faults.step import work

INPUTS, OUT = Path(sys.argv[1]), Path(sys.argv[2])
FAILED: list[str] = []
worked = coco.fn.as_async(work)


@coco.lifespan
def lifespan(builder: coco.EnvironmentBuilder) -> Iterator[None]:
    """Choose the place of the database, and report files that fail."""
    builder.settings.db_path = OUT / "cocoindex.db"

    def report(error: BaseException, context: coco.ExceptionContext) -> None:
        FAILED.append(context.stable_path)
        print(f"{context.stable_path}: {error!r}", file=sys.stderr)

    builder.set_exception_handler(report)
    yield


@coco.fn(memo=True)
async def process_file(file: FileLike, inputs: Path, out: Path) -> None:
    """Write the row of a file."""
    name = file.file_path.path.name
    with coco.timeout(timedelta(seconds=10)):
        row = await worked(str(inputs / name))
    localfs.declare_file(out / "rows" / f"{name}.json", json.dumps(row), create_parent_dirs=True)


@coco.fn
async def app_main(inputs: Path, out: Path) -> None:
    """Mount a component for each file, in the order of names, as the other tools."""
    files = [item async for item in localfs.walk_dir(inputs).items()]
    await coco.mount_each(process_file, sorted(files, key=itemgetter(0)), inputs, out)


app = coco.App(
    coco.AppConfig(name="Faults", max_inflight_components=2), app_main, inputs=INPUTS, out=OUT
)


if __name__ == "__main__":
    app.update_blocking()
    sys.exit(1 if FAILED else 0)
