"""Manifests, inputs and datasets work in a container of Azure as in a folder."""

import os

import fsspec
import pytest
from azure.storage.blob import BlobServiceClient
from harness.azure_blobs import ACCOUNT, KEY, connection_string, container_signature
from harness.jobs import run_job
from harness.object_store import (
    COPY,
    check_command,
    check_dataset,
    check_listing,
    check_names,
    forget_connections,
    upload,
)

from batchmill import StoreError, load_manifest
from batchmill.core.security.credentials import Access, access_to
from batchmill.core.storage import remote


@pytest.fixture
def data(inputs, container):
    """Upload the inputs and the manifest, and return the URL."""
    return upload(inputs, f"{container}/data")


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_a_dataset_in_azure_has_the_same_bytes_as_one_in_a_folder(
    scheme, data, container, inputs, tmp_path
):
    places = (data, f"{container}/out")
    data, output = (place.replace("az:", f"{scheme}:") for place in places)
    check_dataset(data, output, inputs, tmp_path / "out")


def test_the_installed_command_reads_and_writes_azure(shell, container, recordings):
    shell.environment |= {name: os.environ[name] for name in os.environ if name[:6] == "AZURE_"}
    assert KEY not in check_command(shell, recordings, container)


def test_a_folder_may_have_the_name_of_a_table(data):
    """A folder of a storage account with a hierarchy of folders is an empty file, too."""
    name, _, folder = f"{data}/table.csv".removeprefix("az://").partition("/")
    settings = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    with BlobServiceClient.from_connection_string(settings) as client:
        files = client.get_container_client(name)
        files.upload_blob(folder, b"", metadata={"hdi_isfolder": "true"})
        files.upload_blob(f"{folder}/part-0.csv", b"1,2\n")
    assert load_manifest(f"{data}/table.csv").inputs["input"].to_pylist() == ["part-0.csv"]


def test_patterns_and_unusual_names(data, container):
    check_names(data, f"{container}/out")


def test_many_inputs_of_one_folder_are_listed(data):
    check_listing(data)


def test_a_folder_marker_is_not_a_file(data, container):
    """Accounts with a hierarchical namespace have an empty blob for each folder."""
    files = fsspec.filesystem("az")
    for folder in ("data/in", "out", "out/.batchmill"):
        path = f"{container}/{folder}".removeprefix("az://")
        files.pipe_file(path, b"")
        files.setxattrs(path, hdi_isfolder="true")
    assert run_job(f"{data}/in", COPY, f"{container}/out").outcomes == {"ok": 10}
    assert run_job(f"{data}/in", COPY, f"{container}/out").executed == 0


def test_a_signature_for_one_container_is_enough(data, container, azurite, monkeypatch):
    secret = f"SharedAccessSignature={container_signature(container)}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(azurite, secret))
    forget_connections()
    assert run_job(f"{data}/m.csv", COPY, f"{container}/out").outcomes == {"ok": 10}
    with pytest.raises(StoreError, match="access denied"):
        run_job(f"{data}/m.csv", COPY, "az://another-container/out")


def test_the_options_of_a_saved_store_are_used(data, container, azurite, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    forget_connections()
    with pytest.raises(StoreError, match=r"access denied .*set the store's credentials"):
        remote.read(f"{data}/m.csv")
    options = {"connection_string": connection_string(azurite)}
    with access_to([Access(url=container, options=options)]):
        assert run_job(f"{data}/m.csv", COPY, f"{container}/out").outcomes == {"ok": 10}


def test_a_missing_container_and_a_wrong_key_are_rejected(data, azurite, monkeypatch):
    with pytest.raises(StoreError, match="no bucket 'no-such-container'"):
        run_job(f"{data}/m.csv", COPY, "az://no-such-container/out")
    wrong = connection_string(azurite, f"AccountKey={KEY[::-1].strip('=')}==")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    forget_connections()
    with pytest.raises(StoreError, match="access denied") as caught:
        remote.read(f"{data}/m.csv")
    assert not caught.value.passing
    assert ACCOUNT not in str(caught.value)
