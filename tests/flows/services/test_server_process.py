"""The process of the temporary server: it ends by itself where it is not needed."""

import subprocess
import sys

import pytest
from batchmill.flows.services.server_process import NOT_NEEDED
from live import clean_environment

PROFILE = 'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'


@pytest.mark.parametrize("where", ["environment", "profile", "project"])
@pytest.mark.slow
def test_a_server_that_the_settings_name_makes_it_end(where, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = clean_environment(home)
    if where == "environment":
        environment["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    elif where == "profile":
        (home / "profiles.toml").write_text(PROFILE)
    else:
        (tmp_path / "prefect.toml").write_text('[api]\nurl = "http://127.0.0.1:9/api"\n')
    done = subprocess.run(
        [sys.executable, "-P", "-m", "batchmill.flows.services.server_process", "0"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == NOT_NEEDED
    assert not (home / "batchmill").exists()
