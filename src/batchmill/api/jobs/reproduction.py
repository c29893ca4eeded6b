"""Write a zip file with all that shows the error of one input on another machine."""

import json
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import last_run, open_ledger
from batchmill.core.planning.run_spec import RunSpec, input_places, read_spec
from batchmill.core.security.redaction import without_secrets, without_secrets_in_source
from batchmill.core.sizes import readable_size
from batchmill.core.storage import is_url, open_store, remote
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.folder_files import files_in
from batchmill.core.urls import join, last_part
from batchmill.core.user_step.code.files import imported_packages, is_users, source_file
from batchmill.core.user_step.load import load_step
from batchmill.errors import OptionError
from batchmill.version import VERSION

# The files of each bundle.
_TEXTS = Path(__file__).parent / "bundle"
_QUOTED = re.compile(r"""["']([^"'\n\0]+)["']""")
# All data files of the step together.
_DATA_BYTES = 10 * 2**20


def write_reproduction(dataset: str, name: str, output: Path) -> None:
    """Write a zip file with an input, the step, its params, the outcome and a script.

    The step is imported here, so that its modules are found.

    Args:
        dataset: The dataset's path or URL.
        name: The name of the input in the manifest.
        output: The zip file, which must not exist.

    Raises:
        OptionError: There is no such input or no local file of it, the output exists, or the step
            cannot be imported from a module.
        StepError: The step cannot be loaded here.
        StoreError: The input cannot be read from its store.
    """
    if output.exists():
        raise OptionError(f"--output {output}: exists. Choose another name.")
    if not output.parent.is_dir():
        raise OptionError(f"--output {output}: there is no folder {output.parent}. Create it.")
    ledger = open_ledger(dataset)
    spec = read_spec(ledger, last_run(ledger, dataset))
    record = _record(ledger, dataset, name)
    if not spec.can_try:
        raise OptionError(
            f"the step {spec.step} is not in a module, or has one item per row of the manifest, so "
            "its source cannot be packed. Move it to a module as a function or class."
        )
    row = json.loads(record["carried"])
    files = {column: row[column] for column in spec.file_columns if row.get(column)}
    row = {key: row[key] for key in row if spec.takes_rows and key not in spec.file_columns}
    empty: dict[str, str | None] = dict.fromkeys(spec.file_columns)
    further = {column: f"{column}/{last_part(files[column])}" for column in files}
    file = last_part(name)
    job = {"file": file, "step": spec.step, "params": _redacted(spec.params), "row": _redacted(row)}
    job["kind"] = "folder" if spec.folders else "file"
    job["recorded"] = f"{record['outcome']} {record['error']}".strip()
    names = {file: name} | {further[column]: files[column] for column in files}
    located = input_places(spec, pa.array([*names.values()], pa.string())).to_pylist()
    places: dict[str, str] = dict(zip(names, located, strict=True))
    if spec.folders:
        folder = places.pop(file)
        inside = _files_in(join(spec.root, folder))
        places |= {f"{file}/{inner}": f"{folder}/{inner}" for inner in inside}
    sources = dict(_step_sources(spec))
    data_files, left_out = _limited(dict(_data_files(sources)))
    readme = (_TEXTS / "README.txt").read_text()
    texts = {
        "run.py": (_TEXTS / "run.py.txt").read_text(),
        "README.txt": readme.format(version=VERSION, left_out=left_out),
        "job.json": json.dumps(job | {"files": empty | further}, indent=2, ensure_ascii=False),
        "outcome.txt": without_secrets(_outcome_text(record)),
        "versions.txt": "\n".join(_versions()) + "\n",
    }
    with tempfile.TemporaryDirectory(prefix="batchmill-") as folder:
        local = {
            target: _local_copy(spec.root, place, os.path.join(folder, str(number)))
            for number, (target, place) in enumerate(places.items())
        }
        # A zip file has no times before 1980 or after 2107. They become the nearest one.
        bundle = zipfile.ZipFile(output, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False)
        try:
            with bundle:
                for target, path in local.items():
                    bundle.write(path, f"input/{target}")
                for target, source in (data_files | sources).items():
                    text = Path(source).read_bytes().decode(errors="surrogateescape")
                    data = without_secrets_in_source(text).encode(errors="surrogateescape")
                    bundle.writestr(f"step/{target}", data)
                for target, text in texts.items():
                    bundle.writestr(target, text)
        except BaseException:
            output.unlink()  # It would look complete.
            raise


def _redacted(value: Any) -> Any:
    """Return JSON data without secrets. Only its texts change, so it stays valid."""
    if isinstance(value, Mapping):
        return {name: _redacted(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_redacted, value)]
    return without_secrets_in_source(value) if isinstance(value, str) else value


def _local_copy(root: str, name: str, path: str) -> str:
    """Return the path of a local file. Copy a file that is in a pack or a store to `path`."""
    place = join(root, name)
    if parse_address(name):
        with open_store(root).open(name) as content, open(path, "wb") as copy:
            shutil.copyfileobj(content, copy)
        return path
    if is_url(place):
        remote.fetch(place, path)
        return path
    if not os.path.isfile(place):
        raise OptionError(f"{place}: no such file. Restore the input first.")
    return place


def _files_in(folder: str) -> list[str]:
    try:
        return [*files_in(folder)]
    except OSError as error:
        raise OptionError(f"{folder}: {error.strerror}. Restore the input first.") from error


def _record(ledger: Ledger, dataset: str, name: str) -> Mapping[str, Any]:
    wanted = ["input", "outcome", "error", "message", "traceback", "log", "carried"]
    state = ledger.state().of(pa.array([name], pa.string()))
    records: list[dict[str, Any]] = state.records(wanted).to_pylist()
    if not records:
        raise OptionError(
            f"{name}: {dataset} has no outcome of this input. List the failed inputs: "
            f"batchmill failures {quote(dataset)}"
        )
    return records[0]


def _step_sources(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield the path in the bundle and the file of each module of the user that a step imports."""
    before = set(sys.modules)
    step = load_step(spec.step, spec.params, search=spec.search, file_columns=spec.file_columns)
    reached = {key.partition(":")[0] for key in step.description["code"]}
    tops = {spec.step.partition(":")[0].partition(".")[0]}
    for name in sorted(reached | set(sys.modules) - before):
        path = source_file(name) if name else None
        if path is None or name.startswith("batchmill.") or not is_users(name, path, tops):
            continue
        parts = name.split(".")
        if os.path.basename(path).startswith("__init__."):
            parts.append("__init__")
        yield f"{'/'.join(parts)}{''.join(Path(path).suffixes)}", path
        for count in range(1, len(name.split("."))):
            package = source_file(".".join(parts[:count]))
            if package:
                yield f"{'/'.join(parts[:count])}/__init__.py", package


def _data_files(sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the path in the bundle and the file of each data file of the packed modules.

    A package may read any file in its folder. Beside a module without a package are the user's
    other files, so only those that it names are packed.
    """
    for target, source in sources.items():
        folder, (place, _, _) = os.path.dirname(source), target.rpartition("/")
        code = Path(source).read_text(errors="ignore")
        names = _files_in(folder) if place else set(_QUOTED.findall(code))
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            inside = path.startswith(folder + os.sep) and os.path.isfile(path)
            is_hidden = any(part.startswith((".", "__pycache__")) for part in name.split("/"))
            if inside and not is_hidden and not name.endswith((".py", ".pyc")):
                yield f"{place}/{name}".lstrip("/"), path


def _limited(files: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the smallest files, up to `_DATA_BYTES`, and a sentence about the others."""
    sizes = {name: os.path.getsize(path) for name, path in files.items()}
    chosen, total = {}, 0
    for name in sorted(files, key=lambda name: (sizes[name], name)):
        total += sizes[name]
        if total <= _DATA_BYTES:
            chosen[name] = files[name]
    others = [f"{name} ({readable_size(sizes[name])})" for name in files if name not in chosen]
    limit = readable_size(_DATA_BYTES)
    why = f"Data files may have {limit} together. Left out: {', '.join(others)}.\n"
    return chosen, why if others else ""


def _outcome_text(record: Mapping[str, Any]) -> str:
    return (
        f"{record['input']}: {record['outcome']}\n{record['error']}: {record['message']}\n\n"
        f"Traceback:\n{record['traceback']}\n\nPrinted:\n{record['log']}\n"
    )


def _versions() -> Iterator[str]:
    """Yield the versions of Python and of the packages that this process has imported."""
    yield f"python {platform.python_version()} on {platform.platform()}"
    for package, number in imported_packages().items():
        yield f"{package}=={number}"
