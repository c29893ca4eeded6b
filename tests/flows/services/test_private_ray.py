"""A Ray of a run's own: which processes it has, and that it is gone afterwards."""

import threading

import psutil
import ray
from batchmill.flows.services.private_ray import private_ray
from batchmill.flows.services.ray_start import SYSTEM_CONFIG
from live import wait_for
from ray._private import parameter, services, utils

REPLACED = (
    (services, "ConsolePopen"),
    (services, "start_api_server"),
    (services, "get_node"),
    (utils, "get_dashboard_dependency_error"),
    (parameter, "RayParams"),
)


def below():
    """Return the processes that this one has started, by what they run."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process] = " ".join(process.cmdline())
        except psutil.Error:
            continue  # It has just ended.
    return found


def test_it_has_what_tasks_on_one_machine_need_and_no_more(tmp_path):
    before = set(below())
    settings = [getattr(module, name) for module, name in REPLACED]
    config = dict(SYSTEM_CONFIG)
    mark = tmp_path / "mark"
    with private_ray() as private:
        private.start()
        private.warm_up(lambda: mark.touch())
        private.wait()
        assert mark.exists()
        started = [what for process, what in below().items() if process not in before]
        for needed in ("gcs_server", "raylet/raylet", "DashboardAgent", "RuntimeEnvAgent"):
            assert any(needed in what for what in started), f"{needed} is named otherwise by now"
        for spared in ("monitor.py", "dashboard.py", "log_monitor.py"):
            assert not any(spared in what for what in started), spared
        assert not [node for node in ray.nodes() if not node["Alive"]]
    assert [getattr(module, name) for module, name in REPLACED] == settings
    assert config == SYSTEM_CONFIG, "the next Ray would be given the folder of this one"
    wait_for(lambda: set(below()) <= before, "the end of Ray's processes")


def test_one_that_nobody_came_to_use_ends():
    before = set(below())
    with private_ray() as private:
        private.start()
    wait_for(lambda: set(below()) <= before, "the end of Ray's processes")
    assert "private-ray" not in {thread.name for thread in threading.enumerate()}
    assert not ray.is_initialized()
