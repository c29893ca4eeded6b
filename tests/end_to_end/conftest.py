"""What a run has to do on each runner."""

import pytest

# The options that choose a runner.
RUNNERS = {"local": [], "ray": ["--ray", "local"]}


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.long)])
def runner(request):
    """The options of `batchmill run` for a runner: a test with this fixture runs on both.

    On Ray in the long version only, unless the test says otherwise.
    """
    return RUNNERS[request.param]
