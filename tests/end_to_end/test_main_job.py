"""The main use case: real recordings, the installed command and a real Prefect server."""

import re

import numpy as np
import pandas as pd
import pytest
import soundfile
from harness.live import flow_run_of, wait_for

import batchmill
from batchmill import ManifestError, StepError

SPLIT = "batchmill.steps.audio:split"


def events_of(api, run, name):
    """Wait for a run's events with this name, which arrive with a delay; return them."""
    related = {"id": [f"prefect.flow-run.{run['id']}"]}
    of_run = {"filter": {"event": {"name": [name]}, "related": related}}
    return wait_for(lambda: api("/events/filter", of_run)["events"], name)


@pytest.mark.journey
def test_recordings_become_clips_and_the_server_shows_the_run(shell, api, recordings, work):
    (recordings / "broken.wav").write_bytes(b"RIFF and nothing more")
    done = shell.batchmill(
        "run", "recordings", "--step", SPLIT, "-o", "clips", "--param", "seconds=1"
    )

    # The output of the command.
    count = len(list(recordings.iterdir()))
    assert done.returncode == 1, done.stderr
    assert f"{count} inputs: {count - 1} ok, 1 failed" in done.stdout
    assert "broken.wav: failed: LibsndfileError" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) < 20, "too much output"

    # The dataset has all samples of each recording.
    table = pd.read_parquet(work / "clips" / "metadata.parquet")
    assert set(table["input"]) == {path.name for path in recordings.iterdir()} - {"broken.wav"}
    for name, rows in table.groupby("input"):
        rows = rows.sort_values("clip")
        clips = [soundfile.read(work / "clips" / path, dtype="int16")[0] for path in rows["output"]]
        if name.endswith(".wav"):
            whole, _ = soundfile.read(recordings / name, dtype="int16")
            assert np.array_equal(np.concatenate(clips), whole), name
        else:
            assert sum(map(len, clips)) == soundfile.info(recordings / name).frames, name
    failures = pd.read_csv(work / "clips" / "failures.csv")
    assert failures["input"].tolist() == ["broken.wav"]

    # The server has the run, its task runs, artifacts, events and logs.
    run, tasks = flow_run_of(api, work / "clips")
    assert run["state"]["type"] == "FAILED"
    assert "1 failed" in run["state"]["message"]
    names = [task["name"] for task in tasks]
    shards = [name for name in names if name.startswith("shard ")]
    assert sum(int(name.split(", ")[1].split()[0]) for name in shards) == count
    assert len(shards) < count / 2
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED"}
    assert {name for name in names if name not in shards} == {
        "load manifest",
        "write tables",
        "write report",
    }
    assert run["name"] == "clips: split"
    of_run = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    artifacts = {artifact["type"]: artifact for artifact in api("/artifacts/filter", of_run)}
    assert set(artifacts) == {"progress", "table", "markdown"}
    assert artifacts["progress"]["data"] == 100
    page = artifacts["markdown"]["data"]
    for expected in (
        f"{count - 1} ok, 1 failed",
        "`broken.wav`",
        "data:image/svg+xml",
        "inputs per second",
    ):
        assert expected in page
    (event,) = events_of(api, run, "batchmill.run.finished")
    assert event["payload"]["outcomes"] == {"ok": count - 1, "failed": 1}
    assert event["payload"]["state"] == "Failed"
    (event,) = events_of(api, run, "batchmill.input.failed")
    assert event["payload"]["input"] == "broken.wav"
    (event,) = events_of(api, run, "batchmill.run.started")
    assert event["payload"]["pending"] == count
    (event,) = events_of(api, run, "prefect.asset.materialization.succeeded")
    assert event["resource"]["prefect.resource.id"] == f"file://{work}/clips"
    assert event["payload"] == {"version": 1, "rows": len(table)}
    related = [one["prefect.resource.id"] for one in event["related"]]
    assert {f"file://{recordings}", "batchmill"} <= {*related}
    assert "1 of " in (work / "clips" / "report.html").read_text()
    filters = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200}
    logs = [log["message"] for log in api("/logs/filter", filters)]
    assert any("broken.wav: failed: LibsndfileError" in message for message in logs)

    # Other commands report the same.
    (executed,) = re.findall(rf"{count} executed in [0-9.]+ s", done.stdout)
    assert executed in shell.batchmill("status", "clips").stdout
    code, status = shell.json("status", "clips")
    assert (code, status["outcomes"]) == (0, {"ok": count - 1, "failed": 1})
    assert (status["pending"], status["executed"]) == (0, count)
    code, failures = shell.json("failures", "clips")
    assert [(row["input"], row["outcome"], row["error"]) for row in failures] == [
        ("broken.wav", "failed", "LibsndfileError")
    ]
    assert "Traceback" in failures[0]["traceback"]

    # After the file is fixed, the next run executes only this input.
    (recordings / "broken.wav").unlink()
    soundfile.write(recordings / "broken.wav", np.zeros(8000, np.int16), 8000)
    code, summary = shell.json(
        "run", "recordings", "--step", SPLIT, "-o", "clips", "--param", "seconds=1"
    )
    assert (code, summary["executed"], summary["outcomes"]) == (0, 1, {"ok": count})
    run, _ = flow_run_of(api, work / "clips")
    assert run["state"]["type"] == "COMPLETED"


@pytest.mark.long
def test_the_tables_do_not_depend_on_batch_size_and_workers(shell, recordings, work):
    for name in list(recordings.iterdir())[12:]:
        name.unlink()
    rows = sorted(path.name for path in recordings.iterdir())
    (work / "m.csv").write_text(
        "file,label\n" + "".join(f"recordings/{name},{i}\n" for i, name in enumerate(rows))
    )
    options = ["run", "m.csv", "--step", SPLIT, "--input-column", "file", "-o"]
    for output, *division in (
        ("one", "--batch-size", "1", "--num-workers", "0"),
        ("two", "--batch-size", "5", "--num-workers", "2"),
        ("three", "--batch-size", "100", "--num-workers", "1"),
    ):
        code, summary = shell.json(*options, output, *division)
        assert (code, summary["outcomes"]) == (0, {"ok": 12})
    for name in ("metadata.parquet", "metadata.csv", "failures.csv"):
        contents = {(work / output / name).read_bytes() for output in ("one", "two", "three")}
        assert len(contents) == 1, name
    table = pd.read_csv(work / "one" / "metadata.csv")
    assert dict(zip(table["input"], table["label"], strict=True)) == {
        f"recordings/{name}": i for i, name in enumerate(rows)
    }


@pytest.mark.journey
def test_run_in_python_takes_a_data_frame_and_a_function_and_raises_an_error_at_the_end(
    shell, words, work
):
    (work / "mine.py").write_text(
        "def shout(source, out, row, *, mark='!'):\n"
        "    text = source.read_text().upper() + mark * row['times']\n"
        "    (out / 'shout.txt').write_text(text)\n"
        "    return {'output': 'shout.txt', 'shout': text}\n"
    )
    done = shell.python(
        "import batchmill, pandas as pd\n"
        "from mine import shout\n"
        f"frame = pd.DataFrame({{'path': [{str(words / 'a.txt')!r}, {str(words / 'd.txt')!r}],"
        " 'times': [1, 2]})\n"
        "for _ in range(2):\n"
        "    result = batchmill.run(\n"
        "        frame, shout, 'out', input_column='path', params={'mark': '?'}, max_failures=1,"
        " pack='1MB')\n"
        "    print(result.executed, result.counts, len(result.outcomes), len(result.failures))\n"
        "    print(result.metadata['shout'].tolist())\n"
        "print(result)\n"
        "print([sample.data for sample in batchmill.open_dataset('out')])\n"
        "try:\n"
        f"    batchmill.run({str(words / 'manifest.csv')!r}, 'batchmill.steps.words:split', 'bad',"
        " params={'num_chars': 2, 'overlap': 2})\n"
        "except batchmill.BatchmillError as error:\n"
        "    import os; print(type(error).__name__, os.path.exists('bad'))\n"
    )
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (work / "out" / "packs").iterdir()} == {".tar"}
    assert done.stdout.splitlines() == [
        "2 {'ok': 2} 2 0",
        "['SIMPLE?', 'PYTORCH??']",
        "0 {'ok': 2} 2 0",
        "['SIMPLE?', 'PYTORCH??']",
        "2 inputs: 2 ok, 0 executed",
        f"Dataset: {work}/out",
        "['SIMPLE?', 'PYTORCH??']",
        "RunError True",
    ]


@pytest.mark.usefixtures("used_server")
def test_run_in_python_raises_errors_before_execution(words, work, monkeypatch):
    monkeypatch.chdir(work)
    split = "batchmill.steps.words:split"
    for manifest, step, params, error in (
        (words / "nosuch.csv", split, {}, ManifestError),
        ([], split, {}, ManifestError),
        (words, "nosuch:step", {}, StepError),
        (words, split, {"num_chars": "x"}, StepError),
    ):
        with pytest.raises(error) as caught:
            batchmill.run(manifest, step, "out", params=params)
        assert caught.type is error
        assert not (work / "out").exists()


CRASH = """
import os

def step(source):
    if source.name == "b.txt":
        os.kill(os.getpid(), 11)
    return {"word": source.read_text()}
"""


@pytest.mark.journey
def test_a_run_on_ray_writes_the_same_tables(shell, words, work):
    (work / "crash.py").write_text(CRASH)
    for output, *ray in (["local"], ["ray", "--ray", "local"]):
        code, summary = shell.json("run", words, "--step", "crash:step", "-o", output, *ray)
        assert (code, summary["outcomes"]) == (1, {"ok": 4, "crashed": 1})
    for name in ("metadata.parquet", "metadata.csv"):
        assert (work / "local" / name).read_bytes() == (work / "ray" / name).read_bytes(), name
