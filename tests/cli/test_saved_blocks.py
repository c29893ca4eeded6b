"""Wrong names of saved jobs and stores on the command line."""

import pytest
from batchmill.blocks import DatasetStore, SavedJob
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill.cli.main import main

MISTAKES = [
    (["--job", "none-such"], "--job block:none-such: there is no saved block of this name"),
    (["--job", "unused", "--batch-size", "3"], "--job unused: the saved job contains all options"),
    (
        ["--job", "unused", "--max-failures", "0"],
        "--job unused: the saved job contains all options",
    ),
    (["--job", "unused/unused"], "--job block:unused/unused: there is no saved block of this name"),
    (["--job", "batchmill-dataset-store/unused"], "is not a block of type batchmill-saved-job."),
    (["words", "--job", "unused"], "--job unused: the saved job contains all options"),
    (
        ["words", "--step", "a:b", "-o", "x", "--store", "unused"],
        "--store: 'unused' is not a dataset s",
    ),
    (["words", "--step", "a:b", "-o", "x", "--store", "block:no/no"], "--store block:no/no: "),
    (["words", "--step", "a:b", "-o", "../x", "--store", "block:unused"], "has '..' in it."),
    ([], "missing: MANIFEST, --step, --output. Give MANIFEST, --step and --output, or a saved job"),
]


@pytest.fixture
def saved(prefect_server, monkeypatch):
    """A saved job and a saved store on the server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        store = DatasetStore(url="s3://unused/datasets")
        store.save("unused", overwrite=True)
        job = SavedJob(manifest="s3://unused/in", step="a:b", store=store, output="clips")
        job.save("unused", overwrite=True)
        yield


@pytest.mark.usefixtures("saved")
def test_mistakes_are_reported_before_the_run(work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    for arguments, expected in MISTAKES:
        with pytest.raises(SystemExit) as ended:
            main(["run", *arguments])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert expected in " ".join(err.split())
        assert "Traceback" not in err
        assert list(work.iterdir()) == []
