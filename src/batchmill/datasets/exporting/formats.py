"""The formats of shards: WebDataset (tar files) and Hugging Face (Parquet files)."""

import base64
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.storage.fingerprints import HashingFile
from batchmill.core.storage.pack_writer import encode_member
from batchmill.core.urls import join
from batchmill.errors import OptionError, StoreError

FormatName = Literal["webdataset", "huggingface"]

# For samples whose own file is JSON, the row is `row.json`. The library decodes by the last part.
_ROW, _OTHER_ROW = "json", "row.json"
# With small row groups, streaming is slow. A reader needs the memory for one row group.
_GROUP_BYTES = 32 * 2**20
_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_FEATURES = {"image": {"_type": "Image"}, "audio": {"_type": "Audio"}}
# Marks a field with the content of text files.
_TEXT_FILE = {b"batchmill": b"file"}


@dataclass(frozen=True, kw_only=True)
class SampleFile:
    """A file of a sample.

    Attributes:
        column: The column that names a further file. Empty for the sample's own file.
        suffix: Its suffix, without the dot.
        place: Its path or URL, relative to the root, or its address in a pack.
        content: The recorded hash of its content. Empty if there is no record.
    """

    column: str = ""
    suffix: str
    place: str
    content: str


class ShardTask(NamedTuple):
    """The samples of one shard, and its file.

    Attributes:
        to: The name of the format.
        out: The folder or URL of the export.
        name: The name of the shard's file.
        root: The folder or URL of the samples' files.
        are_inputs: True if these files are the inputs.
        kind: The kind of the samples' own files: "image", "audio", "text" or "file".
        further: The kind of the further files by column.
        labels: The texts of each column with class labels. Its values are their numbers.
        samples: The samples, as in `ExportRows`.
        rows: The published row of each sample.
        digest: The digest of the samples, if it is known.
    """

    to: str
    out: str
    name: str
    root: str
    are_inputs: bool
    kind: str
    further: Mapping[str, str]
    labels: Mapping[str, Sequence[str]]
    samples: pa.Table
    rows: pa.Table
    digest: str = ""

    def keys(self) -> list[str]:
        """Return the key of each sample."""
        return list(self.samples["key"].to_pylist())

    def files(self) -> list[list[SampleFile]]:
        """Return the files of each sample: its own file, then its further files."""
        own_files = self.samples.select(["suffix", "place", "content"]).to_pylist()
        return [
            [SampleFile(**first), *(SampleFile(**file) for file in further)]
            for first, further in zip(own_files, self.samples["further"].to_pylist(), strict=True)
        ]

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the row of each sample."""
        for batch in self.rows.to_batches(max_chunksize=1000):
            yield from batch.to_pylist()


def json_of(row: Mapping[str, Any]) -> bytes:
    """Return a row as JSON."""
    return orjson.dumps(row, default=_as_json)


def _as_json(value: object) -> str:
    """Return a value that JSON does not have as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


class WebDataset:
    """Writes tar files. The same samples give the same bytes.

    Members with one key are a sample: its files, and its row as JSON.

    Attributes:
        tag: The name and the version. A shard with another tag is written again.
        split: The split of a dataset without partitions.
    """

    tag = "webdataset 1"
    split = "data"

    def shard_name(self, split: str, number: int, count: int) -> str:  # noqa: ARG002
        """Return the file name of shard `number` of a split: SPLIT-000000.tar."""
        return f"{split}-{number:06d}.tar"

    def write(self, file: HashingFile, task: ShardTask, contents: Iterator[list[bytes]]) -> None:
        """Write a shard, one write per sample. `contents` are those of each sample's files."""
        size = 0
        samples = zip(task.keys(), task.files(), map(json_of, task.dicts()), contents, strict=True)
        for key, files, text, blobs in samples:
            row = _OTHER_ROW if files[0].suffix == _ROW else _ROW
            taken, members = {row}, []
            for entry, data in zip(files, blobs, strict=True):
                part = re.sub(r"[^A-Za-z0-9_]", "_", entry.column)  # The library splits at dots.
                # Other columns may have the same letters and digits. The library ignores case.
                while (name := ".".join(filter(None, [part, entry.suffix]))).lower() in taken:
                    part += "_"
                taken.add(name.lower())
                members.append(encode_member(f"{key}.{name}", data)[1])
            members.append(encode_member(f"{key}.{row}", text)[1])
            size += file.write(b"".join(members))
        # Two empty blocks end an archive. Its size is a multiple of RECORDSIZE.
        end = 2 * tarfile.BLOCKSIZE
        file.write(b"\0" * (end + -(size + end) % tarfile.RECORDSIZE))

    def payloads(self, file: pa.NativeFile) -> Iterator[bytes]:
        """Yield the contents of the members of each key, without the last one, its row.

        A damaged shard raises any error.
        """
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for _, members in groupby(archive, lambda member: member.name.partition(".")[0]):
                contents = [archive.extractfile(member) for member in members]
                yield b"".join(opened.read() for opened in contents[:-1] if opened)


class HuggingFace:
    """Writes Parquet files with pyarrow, in the folders and with the metadata of `datasets`.

    `datasets.load_dataset` opens them with decoded images and audio. For the attributes, see
    `WebDataset`.
    """

    tag = "huggingface 1"
    split = "train"

    def shard_name(self, split: str, number: int, count: int) -> str:
        """Return data/SPLIT-00000-of-00001.parquet: `load_dataset` finds splits by such names."""
        return f"data/{split}-{number:05d}-of-{count:05d}.parquet"

    def write(self, file: HashingFile, task: ShardTask, contents: Iterator[list[bytes]]) -> None:
        """Write a shard, one row group after another. See `WebDataset.write`."""
        keys, rows = task.keys(), task.rows.drop_columns([*task.further])
        schema = _schema(rows.schema, task)
        begin, held = 0, 0
        kinds = {"": task.kind, **task.further}
        files: dict[str, list[Any]] = {}
        with pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer:
            samples = enumerate(zip(keys, task.files(), contents, strict=True))
            for number, (key, entries, blobs) in samples:
                row = {}
                for entry, data in zip(entries, blobs, strict=True):
                    path = ".".join(filter(None, [key, entry.column, entry.suffix]))
                    is_text = kinds[entry.column] == "text"
                    row[entry.column] = (
                        _text_of(entry, data, task) if is_text else {"bytes": data, "path": path}
                    )
                for column in kinds:
                    files.setdefault(column, []).append(row.get(column))
                held += sum(map(len, blobs))
                if held >= _GROUP_BYTES or number + 1 == len(keys):
                    count = number + 1 - begin
                    columns = [
                        pa.array(keys[begin : number + 1], pa.string()),
                        *map(pa.array, files.values(), map(_type_of, kinds.values())),
                        *rows.slice(begin, count).columns,
                    ]
                    table = pa.Table.from_arrays(columns, schema=schema)
                    writer.write_table(table, row_group_size=count)
                    begin, held, files = number + 1, 0, {}

    def payloads(self, file: pa.NativeFile) -> Iterator[bytes]:
        """Yield the joined bytes of the columns with files, which follow the key.

        A damaged shard raises any error.
        """
        table = pq.ParquetFile(file)
        fields = [*takewhile(_has_files, list(table.schema_arrow)[1:])]
        for batch in table.iter_batches(batch_size=64, columns=[field.name for field in fields]):
            columns = (
                [file and file["bytes"] for file in column.to_pylist()]
                if column.type == _FILE
                else column.cast(pa.binary()).to_pylist()
                for column in batch.columns
            )
            for files in zip(*columns, strict=True):
                yield b"".join(filter(None, files))


def _text_of(file: SampleFile, data: bytes, task: ShardTask) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise StoreError(
            join(task.root, file.place),
            f"is not UTF-8 text ({error.reason}), and so not a text of Hugging Face. Correct it, "
            "leave its row out (--where), or use --to webdataset.",
        ) from error


def _type_of(kind: str) -> pa.DataType:
    """Return the type of a column with files of a kind."""
    return pa.string() if kind == "text" else _FILE


def _has_files(field: pa.Field) -> bool:
    return field.type == _FILE or (field.metadata or {}).items() >= _TEXT_FILE.items()


def _schema(rows: pa.Schema, task: ShardTask) -> pa.Schema:
    """Return the schema of a shard. A table's own column keeps its name."""
    taken = {*rows.names, *task.further}
    names = []
    for name in ("key", task.kind):
        while name in taken:
            name += "_"
        names.append(name)
    kinds = {names[1]: task.kind, **task.further}
    files = [
        pa.field(name, _type_of(kind), metadata=_TEXT_FILE if kind == "text" else None)
        for name, kind in kinds.items()
    ]
    fields = [pa.field(names[0], pa.string()), *files, *rows]
    features = {
        **{name: _FEATURES[kind] for name, kind in kinds.items() if kind in _FEATURES},
        **{name: {"_type": "ClassLabel", "names": texts} for name, texts in task.labels.items()},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if features else None
    return pa.schema(fields, metadata=metadata)


_FORMATS: dict[str, WebDataset | HuggingFace] = {
    "webdataset": WebDataset(),
    "huggingface": HuggingFace(),
}


def find_format(name: str) -> WebDataset | HuggingFace:
    """Return a format by its name. Raises OptionError."""
    if name not in _FORMATS:
        raise OptionError(f"--to {name}: is not a format. Choose from {', '.join(_FORMATS)}.")
    return _FORMATS[name]
