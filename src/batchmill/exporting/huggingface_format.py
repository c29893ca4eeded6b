"""Hugging Face: Parquet files that `datasets.load_dataset` opens with decoded images and audio."""

import json
from collections.abc import Iterator
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

    def write(self, file: HashingFile, content: ShardContent) -> None:
        """Write a shard, one row group after another."""
        rows = content.rows.drop_columns([*content.further_kinds])
        schema = _schema(rows.schema, content)
        begin, held = 0, 0
        files: dict[str, list[dict[str, Any] | None]] = {}
        with pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer:
            for number, contents in enumerate(content.read()):
                row = {}
                for one, data in zip(content.files[number], contents, strict=True):
                    parts = [content.keys[number], one.column, one.suffix]
                    row[one.column] = {"bytes": data, "path": ".".join(filter(None, parts))}
                for column in ("", *content.further_kinds):
                    files.setdefault(column, []).append(row.get(column))
                held += sum(map(len, contents))
                if held >= _GROUP_BYTES or number + 1 == len(content.keys):
                    count = number + 1 - begin
                    columns = [
                        pa.array(content.keys[begin : number + 1], pa.string()),
                        *(pa.array(found, _FILE) for found in files.values()),
                        *rows.slice(begin, count).columns,
                    ]
                    table = pa.Table.from_arrays(columns, schema=schema)
                    writer.write_table(table, row_group_size=count)
                    begin, held, files = number + 1, 0, {}

    def payloads(self, path: Path) -> Iterator[bytes]:
        """Yield the joined bytes of the columns with files, which follow the key."""
        with pq.ParquetFile(path) as file:
            names = []
            for field in list(file.schema_arrow)[1:]:
                if field.type != _FILE:
                    break
                names.append(field.name)
            for batch in file.iter_batches(batch_size=64, columns=names):
                for files in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield b"".join(file["bytes"] for file in files if file)


def _schema(rows: pa.Schema, content: ShardContent) -> pa.Schema:
    """Return the schema of a shard. A table's own column keeps its name."""
    taken = {*rows.names, *content.further_kinds}
    own = [name + "_" * (name in taken) for name in ("key", content.kind)]
    kinds = {own[1]: content.kind, **content.further_kinds}
    fields = [pa.field(own[0], pa.string()), *(pa.field(name, _FILE) for name in kinds), *rows]
    features = {name: _FEATURES[kind] for name, kind in kinds.items() if kind in _FEATURES}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    return pa.schema(fields, metadata=metadata)
