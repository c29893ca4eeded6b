"""The connection to Ray: obvious errors are reported at once, also in a deployment's run."""

import pytest
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.flows.cluster.connection import ray_runner
from live import free_ports

from batchmill import OptionError, ServiceError


def test_an_address_without_a_server_is_rejected():
    (port,) = free_ports()
    cluster = RayCluster(address=f"ray://127.0.0.1:{port}")
    with pytest.raises(ServiceError, match="nothing responds there"), ray_runner(cluster):
        pytest.fail("the address was accepted")


def test_an_unknown_field_of_a_runtime_environment_is_rejected():
    cluster = RayCluster(address="local", runtime_env={"workin_dir": "."})
    with pytest.raises(OptionError, match="has no field 'workin_dir'"), ray_runner(cluster):
        pytest.fail("the field was accepted")
