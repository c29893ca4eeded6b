"""Blocks: what they make of what users save."""

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

# What is decided when a run is started, not when a job is saved.
OF_A_RUN = {"run"}
JOB = {"manifest": "/in", "step": "package.module:step", "output": "/out"}


def test_a_saved_job_has_the_parameters_of_the_flow_and_their_defaults():
    parameters = inspect.signature(preprocess.fn).parameters
    job = SavedJob(**JOB).parameters()
    assert job.keys() == parameters.keys() - OF_A_RUN
    defaults = {name: parameters[name].default or None for name in job.keys() - JOB.keys()}
    assert {name: job[name] or None for name in defaults} == defaults


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"step": " "}, "saved job: step is empty"),
        ({"failures": {"max_failures": "a lot"}}, "--max-failures a lot"),
        ({"failures": {"memory_limit": "much"}}, "--memory-limit much"),
        ({"failures": {"retry": 3}}, "retry: no such option. Did you mean retries"),
        ({"partitions": {"partition": "train=2"}}, "--partition train=2"),
    ],
)
def test_a_job_that_cannot_run_is_refused(given, told):
    with pytest.raises(OptionError, match=told):
        SavedJob(**JOB | given)


def test_a_store_names_datasets_in_it():
    store = DatasetStore(url="s3://bucket/sets/")
    assert store.place_of("clips") == "s3://bucket/sets/clips"
    assert store.place_of("s3://other/clips") == "s3://other/clips"
    assert store.place_of("/data/clips") == "/data/clips"
    with pytest.raises(OptionError, match=r"'\.\.' in it"):
        store.place_of("../clips")


def test_file_systems_of_prefect_are_stores():
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
def test_a_store_without_a_place_is_refused(url):
    with pytest.raises(OptionError) as told:
        DatasetStore(url=url)
    assert "secret-word" not in str(told.value)


def test_options_do_not_show():
    store = DatasetStore(url="s3://bucket", options={"secret": "open-sesame"})
    (access,) = store.access
    shown = [repr(store), str(store.model_dump(mode="json")), repr(access)]
    assert not any("open-sesame" in text for text in shown)
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize("options", [{"protocol": "file"}, {"fo": {}}])
def test_options_that_lead_elsewhere_are_refused(options):
    with pytest.raises(OptionError, match="would open another place"):
        DatasetStore(url="s3://bucket", options=options)


def test_what_is_refused_is_not_quoted():
    with pytest.raises(ValidationError) as told:
        DatasetStore(url="s3://bucket", options="open-sesame")
    assert "open-sesame" not in str(told.value)


def test_where_there_are_limits_a_block_must_be_saved(monkeypatch):
    anybodys = RayCluster(address="ray://host:10001")
    with_code = RayCluster(address="local", runtime_env={"py_executable": "sh"})
    store = DatasetStore(url="s3://bucket")
    check_blocks(store, anybodys)
    monkeypatch.setenv("BATCHMILL_ALLOWED_INPUTS", "s3://bucket")
    check_blocks(None, RayCluster(address="local"))
    for cluster in (anybodys, with_code):
        with pytest.raises(OptionError, match="cluster: must be a saved one"):
            check_blocks(None, cluster)
    with pytest.raises(OptionError, match="store: must be a saved one"):
        check_blocks(store, None)
    store._block_document_id = uuid4()
    check_blocks(store, None)
