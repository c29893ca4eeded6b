"""`batchmill export`: write a dataset as the shards of a training format."""

import os
from dataclasses import asdict

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Dataset, Json, Place
from batchmill.core.sizes import counted, readable_size
from batchmill.datasets.exporting.formats import FormatName
from batchmill.errors import OptionError

_SHOWN = 50


def export(
    dataset: Dataset = "",
    out: Place = "",
    /,
    *,
    to: FormatName | None = None,
    partition: tuple[str, ...] = (),
    where: str = "",
    shard_size: str = "",
    shuffle: int | None = None,
    version: str = "",
    class_label: tuple[str, ...] = (),
    num_workers: int | None = None,
    verify: Place = "",
    json: Json = False,
) -> int:
    """Write a dataset as the shards of WebDataset or Hugging Face, for training.

    The same command again writes only the shards whose rows changed. If it is killed, it resumes.
    The exit code of `--verify` is 1 if there is a difference. Examples:

    ```
    batchmill export dataset shards --to webdataset
    batchmill export dataset hub --to huggingface --partition train --where "label != 'noise'"
    batchmill export --verify shards
    ```

    Args:
        out: The folder or URL of the shards.
        to: The format. Required.
        partition: Only this partition. Repeatable. Default: all rows.
        where: Only the rows that meet this condition: "label != 'noise'".
        shard_size: The largest size of a shard. Default: 256M.
        shuffle: Seed of a random order. Default: the order of the table.
        version: The number or name of a version. Default: the last one.
        class_label: Column with few texts that becomes a class label of Hugging Face, such as
            label. Repeatable.
        num_workers: Number of threads. Default: one per core.
        verify: Compare this export with its index. Write nothing.
    """
    if verify:
        others = (dataset, out, to, partition, where, shard_size, version, class_label)
        if any(others) or shuffle is not None or num_workers is not None:
            raise OptionError("--verify takes the folder of an export, and no other argument.")
        return _verify(str(verify), json=json)
    if not (dataset and out and to):
        raise OptionError("give a dataset, a folder or URL for the shards, and --to with a format.")
    from batchmill.datasets.exporting.run_export import SHARD_SIZE, export_dataset

    errors = console(stderr=True, quiet=json)

    def show(done: int, total: int) -> None:
        errors.print(f"{done:,}/{total:,} shards", end="\r" if errors.is_terminal else "\n")

    result = export_dataset(
        str(dataset),
        str(out),
        to=to,
        partitions=partition or None,
        where=where,
        shard_size=shard_size or SHARD_SIZE,
        shuffle=shuffle,
        version=version or None,
        class_labels=class_label,
        num_workers=num_workers,
        progress=show,
    )
    if json:
        print_json(asdict(result))
    else:
        console().print(
            f"{counted(result.samples, 'sample')} in {counted(len(result.shards), 'shard')} "
            f"({readable_size(result.bytes)}, {result.written:,} written now): "
            f"{os.path.join(result.out, result.shards[0])}"
        )
    return 0


def _verify(place: str, *, json: bool) -> int:
    from batchmill.datasets.exporting.verify_export import find_differences

    differences = list(find_differences(place))
    out = console()
    if json:
        print_json([difference._asdict() for difference in differences])
        return 1 if differences else 0
    for difference in differences[:_SHOWN]:
        sample = f": {difference.sample} (of {difference.input})" if difference.sample else ""
        out.print(f"{difference.kind}: {difference.path}{sample}")
    if len(differences) > _SHOWN:
        out.print(f"... and {len(differences) - _SHOWN:,} more; --json lists all")
    if differences:
        out.print("To repair it: delete these files, and run batchmill export again.")
    else:
        out.print(f"{place}: matches its index.")
    return 1 if differences else 0
