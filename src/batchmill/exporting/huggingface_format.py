"""Hugging Face: Parquet files that `datasets.load_dataset` opens with decoded images and audio."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.exporting.formats import ShardContent
from batchmill.storage.fingerprints import HashingFile

# With small row groups, streaming is slow. A reader needs the memory for one row group.
_GROUP_BYTES = 32 * 2**20
_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_FEATURES = {"image": {"_type": "Image"}, "audio": {"_type": "Audio"}}


class HuggingFace:
    """Writes Parquet files with pyarrow, in the folders and with the metadata of `datasets`."""

    tag = "huggingface 1"
    split = "train"

    def shard_name(self, split: str, number: int, count: int) -> str:
        """Return data/SPLIT-00000-of-00001.parquet: `load_dataset` finds splits by such names."""
        return f"data/{split}-{number:05d}-of-{count:05d}.parquet"

    def check(self, rows: pa.Table) -> None:
        """Do nothing, because a published table is a Parquet file."""

    def write(self, file: HashingFile, content: ShardContent) -> Mapping[str, Any]:
        """Write a shard, one row group after another."""
        schema = _schema(content.rows.schema, content.kind)
        begin, held, files = 0, 0, []
        with pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer:
            for number, data in enumerate(content.read()):
                path = f"{content.keys[number]}.{content.suffixes[number]}"
                files.append({"bytes": data, "path": path})
                held += len(data)
                if held >= _GROUP_BYTES or number + 1 == len(content.keys):
                    columns = [
                        pa.array(content.keys[begin : number + 1], pa.string()),
                        pa.array(files, _FILE),
                        *content.rows.slice(begin, len(files)).columns,
                    ]
                    table = pa.Table.from_arrays(columns, schema=schema)
                    writer.write_table(table, row_group_size=len(files))
                    begin, held, files = number + 1, 0, []
        return {}

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of the second column."""
        with pq.ParquetFile(path) as file:
            name = file.schema_arrow.names[1]
            for batch in file.iter_batches(batch_size=64, columns=[name]):
                for value in batch.column(0).field("bytes"):
                    yield value.as_py()

    def describe(self, shards: Mapping[str, Mapping[str, Any]]) -> Mapping[str, bytes]:  # noqa: ARG002
        """Return nothing: `load_dataset` reads the features from each file."""
        return {}


def _schema(rows: pa.Schema, kind: str) -> pa.Schema:
    """Return the schema of a shard. A table's own column keeps its name."""
    own = [name + "_" * (name in rows.names) for name in ("key", kind)]
    fields = [pa.field(own[0], pa.string()), pa.field(own[1], _FILE), *rows]
    features = {own[1]: _FEATURES[kind]} if kind in _FEATURES else {}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    return pa.schema(fields, metadata=metadata)
