"""Messages about a Prefect server that cannot be used."""

import pytest
from harness.live import free_ports
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill.errors import ServiceError
from batchmill.orchestration.arrivals.watch_target import watched
from batchmill.orchestration.server.api import shared_api


def a_run(_):
    with shared_api():
        pass


def a_watcher(folder):
    watched(str(folder), deployment="preprocess/on-arrival")


@pytest.mark.parametrize("use", [a_run, a_watcher])
def test_an_address_without_the_api_path_is_reported(prefect_server, work, use):
    url = prefect_server.removesuffix("/api")
    expected = f"{url} has no API there (404 Not Found). Give its API's address, which ends in /api"
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(ServiceError) as error:
        use(work)
    assert expected in str(error.value)


@pytest.mark.parametrize("use", [a_run, a_watcher])
@pytest.mark.slow
def test_a_server_that_does_not_respond_is_reported(work, use):
    url = f"http://127.0.0.1:{free_ports()[0]}/api"
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(ServiceError) as error:
        use(work)
    assert f"{url} does not respond (" in str(error.value)
    assert "Start it or correct its address" in str(error.value)
