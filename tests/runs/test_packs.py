"""Outputs in packs: tar files that hold the outputs of many inputs."""

import os
import pickle
import shutil
import subprocess
import tarfile
from contextlib import suppress
from functools import partial

import pandas as pd
import pytest
from harness.comparison import contents
from harness.crashing import in_child
from harness.jobs import job_of, run_job

import batchmill
from batchmill import OptionError, StoreError, open_dataset
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.recorded_outputs import packed_paths
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.storage import LocalStore, open_store
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import content_of
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.exporting.verify_export import find_differences
from batchmill.datasets.maintenance.cleanup import remove_orphans
from batchmill.datasets.maintenance.packs import rewrite_packs
from batchmill.datasets.maintenance.verify import examine
from batchmill.datasets.publishing.failure_groups import read_failures

pytestmark = pytest.mark.slow

STEP = """
import os, signal
def letters(source, out, version=1):
    text = source.read_text()
    if text in ("killed", "ends"):
        os.kill(os.getpid() if text == "killed" else os.getppid(), signal.SIGKILL)
    (out / "sub").mkdir()
    for name, content in {"a.txt": f"{version} {text}", "sub/b.json": '["b"]'}.items():
        (out / name).write_text(content)
        yield {"output": name, "version": version}
"""
PACK = {"pack": "1MB"}


@pytest.fixture
def job(words, tmp_path, monkeypatch):
    """Return a function that runs the step on the words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lettering.py").write_text(STEP)

    def run(out="out", *, options=PACK, version=1, **others):
        given = {"version": version}
        place = tmp_path / out
        run_job(
            words / "manifest.csv", "lettering:letters", place, options=options, **others, **given
        )
        return place

    return run


def files(dataset):
    return {str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file()}


def in_files(dataset):
    return {name for name in files(dataset) if name.startswith("files/")}


def outputs_of(dataset):
    """Return the recorded outputs."""
    records = ledger_of(dataset).records(["outputs"])["outputs"].to_pylist()
    return [file for files in records for file in files]


def ledger_of(dataset):
    return Ledger(LocalStore(dataset))


def executed(dataset):
    """Return the reasons of the inputs that the next run would execute."""
    manifest = dataset.parent / "words" / "manifest.csv"
    given = {"version": 1}
    plan = prepare(job_of(manifest, "lettering:letters", dataset, params=given, **PACK)).plan
    return {reason: count for reason, count in plan.counts.items() if count}


def differences(dataset, **options):
    return [(found.kind, found.path) for found in examine(ledger_of(dataset), **options)]


def test_a_tar_program_restores_the_files_that_a_run_without_packs_writes(job, tmp_path):
    packed, loose = job(), job("loose", options={})
    packs = sorted((packed / "packs").iterdir())
    assert 1 <= len(packs) <= 2  # One for each worker.
    assert not in_files(packed)
    restored = tmp_path / "restored"
    restored.mkdir()
    for pack in packs:
        subprocess.run(["tar", "--extract", "--file", pack], cwd=restored, check=True)
    assert files(restored) == in_files(loose)
    for name in files(restored):
        assert content_of(str(restored / name)) == content_of(str(loose / name))
    tables = [pd.read_parquet(place / "metadata.parquet") for place in (packed, loose)]
    pd.testing.assert_frame_equal(tables[0].drop(columns="pack"), tables[1])
    assert differences(packed, hash_files=True) == []


def test_a_reader_of_packs_gets_the_same_samples(job):
    packed, loose = (
        open_dataset(place, columns=["version"]) for place in (job(), job("l", options={}))
    )
    assert [tuple(sample) for sample in packed] == [tuple(sample) for sample in loose]
    assert {
        sample.data if isinstance(sample.data, str) else tuple(sample.data) for sample in packed
    } > {"1 simple", ("b",)}
    sizes = open_dataset(job(), load=os.path.getsize)
    assert [sample.data for sample in sizes] == [
        sample.data for sample in open_dataset(job("l", options={}), load=os.path.getsize)
    ]


def test_an_unchanged_run_executes_nothing_and_a_lost_pack_costs_its_inputs(job):
    dataset = job()
    table = (dataset / "metadata.parquet").read_bytes()
    assert executed(dataset) == {"unchanged": 4}
    job()
    assert (dataset / "metadata.parquet").read_bytes() == table
    lost = sorted((dataset / "packs").iterdir())[0]
    with tarfile.open(lost) as pack:
        inputs = {name.split("/")[1] for name in pack.getnames()}
    lost.unlink()
    assert {kind for kind, _ in differences(dataset)} == {"missing"}
    assert executed(dataset)["damaged"] == len(inputs)
    job()
    assert differences(dataset, hash_files=True) == []


def test_verify_finds_a_changed_byte_a_short_pack_and_a_foreign_one(job):
    dataset = job()
    pack = sorted((dataset / "packs").iterdir())[-1]
    with tarfile.open(pack) as members:
        member = members.getmembers()[0]
    content = bytearray(pack.read_bytes())
    content[member.offset_data] ^= 1
    pack.write_bytes(content)
    ((kind, name),) = differences(dataset, hash_files=True)
    assert kind == "changed"
    assert (
        name == f"packs/{pack.name}/{member.offset_data}-{member.size}/{member.name.split('/')[-1]}"
    )
    assert differences(dataset) == []
    os.truncate(pack, member.offset_data)
    assert ("missing", name) in differences(dataset)
    (dataset / "packs" / "stray.tar").write_bytes(b"")
    assert ("unreferenced", "packs/stray.tar") in differences(dataset)
    examine(ledger_of(dataset), repair=True)
    job()
    assert differences(dataset, hash_files=True) == []


def test_an_earlier_version_stays_readable_and_its_packs_go_with_it(job):
    dataset = job()
    before = open_dataset(dataset, columns=["version"])
    job(version=2)
    assert {sample.version for sample in before} == {1}
    assert {sample.data.split()[0] for sample in before if isinstance(sample.data, str)} == {"1"}
    assert differences(dataset, hash_files=True) == []
    job(version=3, keep_versions=0)
    assert before[0].version == 1  # It keeps its packs open.
    with pytest.raises(StoreError, match="does not exist any more"):
        pickle.loads(pickle.dumps(before))[0]
    names = {sample.id for sample in open_dataset(dataset)}
    held = set()
    for path in (dataset / "packs").iterdir():
        with tarfile.open(path) as pack:
            held |= set(pack.getnames())
    assert held == names


def test_packs_of_which_little_is_used_are_written_again(job, words):
    """The records and tables keep their addresses, so earlier versions stay readable."""
    with (words / "manifest.csv").open("a") as manifest:
        for number in range(12):
            (words / f"more-{number}.txt").write_text(f"more {number}")
            manifest.write(f"more-{number}.txt\n")
    dataset = job(num_workers=1)
    before = open_dataset(dataset, columns=["version"])
    batchmill.keep(dataset, 1, name="first")
    first = [tuple(sample) for sample in before]
    for number in range(3):
        kept = {f"more-{kept}.txt" for kept in range(4 + 2 * number)}
        for name in {path.name for path in words.glob("more-*.txt")} - kept:
            (words / name).write_text(f"changed {number}")
        job(num_workers=1, keep_versions=0)
    assert not list((dataset / "packs").glob("000001-*.json"))  # `first` uses all of it.
    batchmill.keep(dataset, drop="first")
    (words / "a.txt").write_text("changed")
    job(num_workers=1, keep_versions=0)
    assert list((dataset / "packs").glob("000001-*.json"))
    assert differences(dataset, hash_files=True) == []
    assert [tuple(sample) for sample in before] == first  # It keeps its packs open.
    for number in range(3):
        opened = open_dataset(dataset, columns=["version"])
        expected = [tuple(sample) for sample in opened]
        loose = job(f"loose-{number}", options={})
        assert expected == [tuple(s) for s in open_dataset(loose, columns=["version"])]
        (words / f"more-{number}.txt").write_text(f"again {number}")
        job(num_workers=1, keep_versions=1)
        assert [tuple(sample) for sample in pickle.loads(pickle.dumps(opened))] == expected
        assert differences(dataset, hash_files=True) == []
    sizes = [path.stat().st_size for path in (dataset / "packs").glob("*.tar")]
    used = sum(512 + -(-file["size"] // 512) * 512 for file in outputs_of(dataset))
    assert sum(sizes) <= 2 * used + 2 * 1024 * 2


class KilledError(Exception):
    """Raised instead of a change of the store."""


def test_a_kill_while_packs_are_written_again_loses_nothing(job, words, tmp_path):
    dataset = job(num_workers=1, cores=1)
    for name in ("a.txt", "b.txt", "c.txt"):
        (words / name).write_text("changed")
    job(num_workers=1, cores=1)
    ledger = ledger_of(dataset)
    paths = packed_paths(ledger.records(["outputs"]))
    ledger.snapshots.remove(1)
    for changes in range(20):
        place = tmp_path / f"killed-{changes}"
        shutil.copytree(dataset, place)
        store = LocalStore(place)
        left = iter(range(changes))

        def before_change(left=left):
            if next(left, None) is None:
                raise KilledError

        store.before_change = before_change
        with suppress(KilledError):
            rewrite_packs(store, paths)
            break
        remove_orphans(ledger_of(place))
        assert differences(place, hash_files=True) == []
        rewrite_packs(LocalStore(place), paths)
        remove_orphans(ledger_of(place))
        assert differences(place, hash_files=True) == []
        assert len(list((place / "packs").glob("joined-*.tar"))) == 1
    assert changes >= 3


def test_a_worker_that_replaces_a_killed_one_continues_its_pack(job, words):
    for number in range(20):
        (words / f"more-{number}.txt").write_text("killed" if number % 4 == 0 else "fine")
    with (words / "manifest.csv").open("a") as manifest:
        manifest.writelines(f"more-{number}.txt\n" for number in range(20))
    dataset = job()
    assert len(list((dataset / "packs").iterdir())) <= 2
    assert len(open_dataset(dataset)) == 2 * 19
    assert differences(dataset, hash_files=True) == []
    for path in (dataset / "packs").iterdir():
        with tarfile.open(path) as pack:  # Every byte belongs to a member.
            last = pack.getmembers()[-1]
            assert path.stat().st_size == last.offset_data + -(-last.size // 512) * 512


def test_what_a_killed_run_left_behind_is_cut_off(job, words):
    (words / "d.txt").write_text("ends")
    assert in_child(partial(job, num_workers=1, batch_size=1)) != 0
    dataset = words.parent / "out"
    for pack in (dataset / "packs").iterdir():
        with pack.open("ab") as file:
            file.write(b"half a header")
    (words / "d.txt").write_text("pytorch")
    job()
    recorded = {file["path"]: file["pack"] for file in outputs_of(dataset)}
    assert len(recorded) == 8
    ends = {}
    for address in recorded.values():
        place = parse_address(address)
        ends[place.pack] = max(ends.get(place.pack, 0), place.end)
    assert {
        f"packs/{path.name}": path.stat().st_size for path in (dataset / "packs").iterdir()
    } == ends
    assert differences(dataset, hash_files=True) == []


MEASURE = """
from torch.utils.data import Dataset
def size(source, row):
    size = len(source.read_bytes())
    return {"size": size, "suffix": source.suffix, "made_from": row["made_from"]}

class Sizes(Dataset):
    def __init__(self, paths): self.paths = paths
    def __len__(self): return len(self.paths)
    def __getitem__(self, index): return len(open(self.paths[index], "rb").read())
    def process_batch(self, batch, outs):
        for out, size in zip(outs, batch): (out / "size").write_text(str(int(size)))
        return [{"output": "size", "size": int(size)} for size in batch]
"""


@pytest.mark.parametrize("step", ["size", "Sizes"])
def test_outputs_in_packs_are_inputs_of_another_dataset(job, tmp_path, step):
    packed, loose = job(), job("loose", options={})
    (tmp_path / "measuring.py").write_text(MEASURE)
    tables = {}
    for source in (packed, loose):
        derived = tmp_path / f"{step}-of-{source.name}"
        run_job(source, f"measuring:{step}", derived, options=PACK)
        assert differences(derived, hash_files=True) == []
        tables[source.name] = pd.read_parquet(derived / "metadata.parquet")
        assert len(tables[source.name]) == 8
        plan = prepare(job_of(source, f"measuring:{step}", derived, **PACK)).plan
        assert plan.counts["unchanged"] == 8
    pd.testing.assert_frame_equal(
        *(table.drop(columns="pack", errors="ignore") for table in tables.values())
    )
    job(force=True)  # Other packs with the same contents.
    derived = tmp_path / f"{step}-of-out"
    assert (
        prepare(job_of(packed, f"measuring:{step}", derived, **PACK)).plan.counts["unchanged"] == 8
    )
    job(version=2)
    assert prepare(job_of(packed, f"measuring:{step}", derived, **PACK)).plan.counts["new"] == 8


def test_inputs_in_packs_are_the_samples_of_a_step_without_files(job, tmp_path, monkeypatch):
    packed, loose = job(), job("loose", options={})
    (tmp_path / "measuring.py").write_text("def size(source): return {'size': len(source.name)}\n")
    samples, exports = [], []
    for source in (packed, loose):
        derived, out = tmp_path / f"of-{source.name}", tmp_path / f"export-{source.name}"
        run_job(source, "measuring:size", derived)
        samples.append([tuple(sample) for sample in open_dataset(derived, columns=["size"])])
        export_dataset(str(derived), str(out), to="webdataset", num_workers=1)
        exports.append({path.name: path.read_bytes() for path in out.glob("*.tar")})
    assert len(samples[0]) == 8
    assert samples[0] == samples[1]
    assert exports[0]
    assert exports[0] == exports[1]
    job(force=True, options={})  # The outputs are no longer in packs.
    assert [tuple(sample) for sample in open_dataset(tmp_path / "of-out", columns=["size"])]
    job(force=True)
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", str(tmp_path / "elsewhere"))
    with pytest.raises(OptionError, match="BATCHMILL_ALLOWED_INPUTS"):
        _ = open_dataset(tmp_path / "of-out")[0]


def test_a_failed_input_in_a_pack_has_no_command_that_cannot_find_it(job, tmp_path):
    (tmp_path / "failing.py").write_text("def step(source): raise ValueError(source.read_text())\n")
    commands = {}
    for name, options in (("packed", PACK), ("loose", {})):
        derived = tmp_path / f"of-{name}"
        run_job(job(name, options=options), "failing:step", derived)
        ledger = ledger_of(derived)
        failures = read_failures(ledger.state(), read_spec(ledger, 1))
        commands[name] = [one.command for one in failures.groups]
    assert all(commands["loose"])
    assert not any(commands["packed"])


@pytest.mark.parametrize("to", ["webdataset", "huggingface"])
def test_an_export_does_not_depend_on_packs(job, tmp_path, to):
    exports = []
    for number, dataset in enumerate((job(), job("loose", options={}))):
        out = tmp_path / f"export-{number}"
        export_dataset(str(dataset), str(out), to=to, num_workers=1)
        assert list(find_differences(str(out))) == []
        shards = [path for path in out.rglob("*") if path.suffix in (".tar", ".parquet")]
        exports.append({path.name: path.read_bytes() for path in shards})
    assert exports[0]
    assert exports[0] == exports[1]


def test_outputs_larger_than_a_pack_are_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizing.py").write_text(
        "def step(source, out):\n"
        "    (out / 'x').write_bytes(bytes(int(source.read_text())))\n"
        "    return {'output': 'x'}\n"
    )
    for name, size in {"small": 10, "large": 2**20 + 1, "middle": 2**20}.items():
        (tmp_path / name).write_text(str(size))
    (tmp_path / "manifest.csv").write_text("input\nsmall\nlarge\nmiddle\n")
    run_job(tmp_path / "manifest.csv", "sizing:step", tmp_path / "out", options=PACK)
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet").set_index("input")
    assert table["pack"].isna().to_dict() == {"small": False, "large": True, "middle": False}
    loaded = {
        sample.id: len(sample.data) for sample in open_dataset(tmp_path / "out", load="bytes")
    }
    assert sorted(loaded.values()) == [10, 2**20, 2**20 + 1]
    assert differences(tmp_path / "out", hash_files=True) == []


def test_a_bucket_gets_one_object_for_each_commit(job, words, bucket, tmp_path):
    for number in range(12):
        (words / f"more-{number}.txt").write_text("" if number % 3 else "killed" * (number % 2))
    with (words / "manifest.csv").open("a") as manifest:
        manifest.writelines(f"more-{number}.txt\n" for number in range(12))
    manifest, dataset = words / "manifest.csv", f"{bucket}/out"
    run_job(manifest, "lettering:letters", dataset, options=PACK, version=1)
    store = open_store(dataset)
    ledger = Ledger(store)
    assert 1 <= len(store.names("packs")) <= len(ledger.part_names())
    assert examine(ledger, hash_files=True) == []
    loose = job("loose", options={})
    expected = contents(loose)
    del expected["metadata.parquet"]
    assert contents(dataset) == expected
    opened = open_dataset(dataset, columns=["version"])
    samples = [tuple(sample) for sample in opened]
    assert [tuple(s) for s in opened.__getitems__(range(len(opened)))] == samples
    assert samples == [tuple(sample) for sample in open_dataset(loose, columns=["version"])]
    plan = prepare(
        job_of(manifest, "lettering:letters", dataset, params={"version": 1}, **PACK)
    ).plan
    assert plan.counts["unchanged"] == len(samples) // 2
    (tmp_path / "measuring.py").write_text(MEASURE)
    run_job(dataset, "measuring:size", f"{bucket}/sizes")
    assert len(pd.read_parquet(f"{bucket}/sizes/metadata.parquet")) == len(samples)
    run_job(manifest, "lettering:letters", dataset, options=PACK, version=2, keep_versions=0)
    assert examine(ledger, hash_files=True) == []


@pytest.mark.parametrize("pack", ["big", "100", "0"])
def test_a_bad_pack_size_is_refused(job, pack):
    with pytest.raises(OptionError, match=r"^--pack"):
        job(options={"pack": pack})
