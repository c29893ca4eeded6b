"""The files that records name: the outputs of their inputs, as files or in packs."""

import pyarrow as pa
import pyarrow.compute as pc


def listed_outputs(records: pa.Table) -> pa.ChunkedArray:
    """Return the outputs of some records, one after another: `path`, `size`, `content`, `pack`."""
    return pc.list_flatten(records["outputs"])


def file_names(records: pa.Table) -> pa.ChunkedArray:
    """Return the name of each output of some records in the store: its address, or its path."""
    files = listed_outputs(records)
    return pc.coalesce(pc.struct_field(files, "pack"), pc.struct_field(files, "path"))


def packed_paths(records: pa.Table) -> dict[str, str]:
    """Return the path of each output of some records that is in a pack, by its address."""
    files = listed_outputs(records)
    files = files.filter(pc.is_valid(pc.struct_field(files, "pack")))
    addresses, paths = (pc.struct_field(files, name).to_pylist() for name in ("pack", "path"))
    return dict(zip(addresses, paths, strict=True))


def addresses_of(names: pa.Array, records: pa.Table) -> pa.Array:
    """Return the address of each file that is in a pack, null for other files.

    Args:
        names: The paths of files in a dataset.
        records: The records that name them.
    """
    files = listed_outputs(records)
    paths, packs = (pc.struct_field(files, name).cast(names.type) for name in ("path", "pack"))
    return packs.take(pc.index_in(names, value_set=paths))
