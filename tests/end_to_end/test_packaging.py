"""The content of the wheel, and that it runs after an installation."""

import sys
import zipfile

import pytest
from harness.live import ROOT
from harness.wheel import build_wheel


@pytest.mark.long
def test_the_wheel_has_one_top_level_and_every_module(bare_shell, tmp_path):
    shell = bare_shell
    wheel = build_wheel(tmp_path / "w")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"batchmill"}
    sources = {
        "batchmill/" + str(path.relative_to(ROOT / folder))
        if folder == "src/batchmill"
        else f"batchmill/{folder}/{path.relative_to(ROOT / folder)}"
        for folder in ("src/batchmill", "flows", "tasks", "blocks")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sources <= set(names)
    assert "batchmill/py.typed" in names

    # The installed package works, even if the working directory has a folder `tasks`.
    done = shell.run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target",
        tmp_path / "site", wheel,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (shell.folder / "tasks").mkdir()
    shell.environment["PYTHONPATH"] = str(tmp_path / "site")
    done = shell.python(
        "import batchmill, batchmill.flows.preprocess as p; print(batchmill.__file__, p.__file__)"
    )
    assert done.returncode == 0, done.stderr
    assert all(place.startswith(str(tmp_path)) for place in done.stdout.split())
