"""The fixture that runs a test on each runner."""

import pytest

# The options that choose a runner.
RUNNERS = {"local": [], "ray": ["--ray", "local"]}


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.long)])
def runner(request):
    """The options of `batchmill run` that choose a runner. The test runs once per runner.

    By default, only the long version runs it on Ray.
    """
    return RUNNERS[request.param]
