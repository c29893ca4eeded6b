"""How blocks check, convert and hide their values."""

import inspect
import pickle
from uuid import uuid4

import pytest
from batchmill.blocks import DatasetStore, RayCluster, SavedJob
from batchmill.blocks.dataset_store import as_store
from batchmill.flows.deployment_checks import check_blocks
from batchmill.flows.preprocess import preprocess
from prefect.filesystems import LocalFileSystem, RemoteFileSystem
from pydantic import ValidationError

from batchmill.errors import OptionError

# Options of a single run. A saved job does not contain them.
OF_A_RUN = {"run"}
JOB = {"manifest": "/in", "step": "package.module:step", "output": "/out"}


def test_a_saved_job_has_the_parameters_of_the_flow_and_their_defaults():
    parameters = inspect.signature(preprocess.fn).parameters
    job = SavedJob(**JOB).parameters()
    assert job.keys() == parameters.keys() - OF_A_RUN
    defaults = {name: parameters[name].default or None for name in job.keys() - JOB.keys()}
    assert {name: job[name] or None for name in defaults} == defaults


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"step": " "}, "saved job: step is empty"),
        ({"failures": {"max_failures": "a lot"}}, "--max-failures a lot"),
        ({"failures": {"memory_limit": "much"}}, "--memory-limit much"),
        ({"failures": {"retry": 3}}, "retry: no such option. Did you mean retries"),
        ({"partitions": {"partition": "train=2"}}, "--partition train=2"),
    ],
)
def test_a_job_with_an_invalid_option_is_rejected(given, expected):
    with pytest.raises(OptionError, match=expected):
        SavedJob(**JOB | given)


def test_a_store_resolves_the_names_of_its_datasets():
    store = DatasetStore(url="s3://bucket/sets/")
    assert store.place_of("clips") == "s3://bucket/sets/clips"
    assert store.place_of("s3://other/clips") == "s3://other/clips"
    assert store.place_of("/data/clips") == "/data/clips"
    with pytest.raises(OptionError, match=r"'\.\.' in it"):
        store.place_of("../clips")
    with pytest.raises(OptionError, match="--output is empty"):
        store.place_of("")


def test_prefects_file_systems_are_converted_to_stores():
    remote = RemoteFileSystem(basepath="s3://bucket/sets", settings={"key": "abcdef"})
    (access,) = as_store(remote).access
    assert (access.url, access.options) == ("s3://bucket/sets", {"key": "abcdef"})
    assert as_store(LocalFileSystem(basepath="/data")).place_of("clips") == "/data/clips"
    assert as_store(LocalFileSystem(basepath="/data")).access == []
    with pytest.raises(OptionError, match="is not a dataset store"):
        as_store(3)


@pytest.mark.parametrize(
    "url", ["", "s3://", "s3://key:secret-word@bucket/a", "s3:///a", "sets", "~/sets"]
)
def test_a_store_with_an_invalid_url_is_rejected(url):
    with pytest.raises(OptionError) as refused:
        DatasetStore(url=url)
    assert "secret-word" not in str(refused.value)


def test_secret_options_are_hidden():
    store = DatasetStore(url="s3://bucket", options={"secret": "open-sesame"})
    (access,) = store.access
    shown = [repr(store), str(store.model_dump(mode="json")), repr(access)]
    assert not any("open-sesame" in text for text in shown)
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize("options", [{"protocol": "file"}, {"fo": {}}])
def test_options_that_open_another_place_are_rejected(options):
    with pytest.raises(OptionError, match="would open another place"):
        DatasetStore(url="s3://bucket", options=options)


def test_a_rejected_secret_is_not_in_the_message():
    with pytest.raises(ValidationError) as refused:
        DatasetStore(url="s3://bucket", options="open-sesame")
    assert "open-sesame" not in str(refused.value)


def test_with_restrictions_a_block_must_be_saved(monkeypatch):
    anybodys = RayCluster(address="ray://host:10001")
    with_code = RayCluster(address="local", runtime_env={"py_executable": "sh"})
    store = DatasetStore(url="s3://bucket")
    check_blocks(store, anybodys)
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "s3://bucket")
    check_blocks(None, RayCluster(address="local"))
    for cluster in (anybodys, with_code):
        with pytest.raises(OptionError, match="cluster: must be a saved block"):
            check_blocks(None, cluster)
    with pytest.raises(OptionError, match="store: must be a saved block"):
        check_blocks(store, None)
    store._block_document_id = uuid4()
    check_blocks(store, None)
