"""What a run has to do on each runner."""

import pytest

# The options that choose a runner.
RUNNERS = {"local": [], "ray": ["--ray", "local"]}


@pytest.fixture(params=RUNNERS)
def runner(request):
    """The options of `batchmill run` for a runner: a test with this fixture runs on both."""
    return RUNNERS[request.param]
