"""The watch options are completed from the deployment, or the deployment is rejected."""

from functools import partial
from uuid import uuid4

import pytest
from batchmill.blocks import DatasetStore, SavedJob
from harness.live import ask

from batchmill import BatchmillError
from batchmill.cli.main import main
from batchmill.orchestration.arrivals.watch_target import watched

SECRET = "open-sesame"


@pytest.fixture
def api(used_server):
    return partial(ask, used_server)


def make_deployment(api, **parameters):
    """Create a deployment with these parameters; return its name."""
    flow = api("/flows/", {"name": "preprocess"})["id"]
    name = f"watched-{uuid4().hex}"
    made = {"name": name, "flow_id": flow, "parameters": parameters}
    api("/deployments/", made | {"enforce_parameter_schema": False})
    return f"preprocess/{name}"


@pytest.fixture
def watch(api, tmp_path):
    """Returns a function that creates a deployment and checks it for watching."""
    return lambda **given: watched(str(tmp_path), deployment=make_deployment(api, **given))


def saved(block):
    return {"$ref": {"block_document_id": str(block.save(f"b-{uuid4().hex}", _sync=True))}}


@pytest.fixture
def unfit(api):
    """A saved store that is not valid, because its URL is a number."""
    block = DatasetStore(url="s3://lab/x", options={"secret": SECRET})
    reference = saved(block)
    place = f"/block_documents/{reference['$ref']['block_document_id']}"
    api(place, {"data": {"url": 5, "options": {"secret": SECRET}}}, "PATCH")
    return reference


def test_the_dataset_is_read_from_a_deployments_blocks(watch, tmp_path):
    store = DatasetStore(url=str(tmp_path / "sets"))
    assert watch(output="a", store=saved(store)).dataset == str(tmp_path / "sets" / "a")
    job = SavedJob(manifest="/x", step="a:b", output="b", inputs={"pattern": "*.wav"}, store=store)
    found = watch(job=saved(job))
    assert (found.dataset, found.pattern) == (str(tmp_path / "sets" / "b"), "*.wav")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("store", {"$ref": {"block_document_slug": "batchmill-dataset-store/gone"}}),
        ("store", {"$ref": {"block_document_id": str(uuid4())}}),
        ("store", {"$ref": "x"}),
        ("store", {"$ref": 5}),
        ("store", {"$ref": {"block_document_slug": "x"}}),
        ("store", {"url": "/data"}),
        ("store", "block:gone"),
        ("job", {"$ref": {"block_document_slug": "batchmill-saved-job/gone"}}),
        ("job", {"manifest": "/x", "step": "a:b", "output": "/y"}),
        ("job", ["x"]),
    ],
)
def test_a_block_that_cannot_be_used_is_rejected(watch, name, given):
    with pytest.raises(BatchmillError, match=rf"(--deployment preprocess/.*)?{name}"):
        watch(output="ds", **{name: given})


def test_the_error_about_an_invalid_block_contains_no_secrets(watch, unfit, tmp_path):
    with pytest.raises(
        BatchmillError, match="its store is a block that does not exist, or"
    ) as error:
        watch(output="ds", store=unfit)
    assert SECRET not in str(error.value)
    assert error.value.__suppress_context__
    with pytest.raises(BatchmillError, match="its job is not a saved job"):
        watch(job=saved(DatasetStore(url=str(tmp_path))))


def test_the_error_about_an_unknown_deployment_lists_the_existing_ones(
    api, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    existing = make_deployment(api, output="ds")
    for arguments, expected in [
        ((".", "--deployment", "preprocess/nosuch"), existing),
        ((".", "--deployment", "nosuch"), existing),
        (("nosuch", "--deployment", existing), "no such folder"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(["watch", *arguments])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert expected in " ".join(err.split())
        assert "Traceback" not in err
