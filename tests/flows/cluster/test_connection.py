"""How Ray is connected to: what cannot work is told at once, also to a deployment's run."""

import pytest
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.flows.cluster.connection import ray_runner
from live import free_ports

from batchmill import OptionError, ServiceError


def test_an_address_at_which_nobody_answers():
    (port,) = free_ports()
    cluster = RayCluster(address=f"ray://127.0.0.1:{port}")
    with pytest.raises(ServiceError, match="nothing responds there"), ray_runner(cluster):
        pytest.fail("nobody is there")


def test_a_part_of_a_runtime_environment_that_ray_would_overlook():
    cluster = RayCluster(address="local", runtime_env={"workin_dir": "."})
    with pytest.raises(OptionError, match="knows no 'workin_dir'"), ray_runner(cluster):
        pytest.fail("it is refused")
