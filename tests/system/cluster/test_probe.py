"""Before the first shard, each node is checked. Ray can copy missing code to the nodes."""

import json
import shutil
import sys
import zipfile

import pandas as pd
import pytest
from harness.comparison import contents
from harness.gated import INPUTS, command, executions
from harness.ray_cluster import hiding, read_only


@pytest.fixture
def refused(shell, cluster, work):
    """A function that runs the job, checks that the run is rejected, and returns the reasons."""

    def run(output="out"):
        done = shell.run(*command(work, output, "--ray", cluster.client_address))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert executions(work, output) == []
        return done.stderr.partition("cannot run this:")[2]

    return run


def test_a_dataset_that_a_node_does_not_have(refused, node, work):
    (work / "data").mkdir()
    without_dataset = node(wrapper=hiding(work / "data"))
    node()
    text = refused("data/out")
    fault = f"the dataset {work}/data/out is missing, or is a different one."
    assert f"on {without_dataset.address}: {fault}" in text
    assert "s3://" in text


@pytest.mark.long
def test_inputs_that_a_node_does_not_have(refused, node, work):
    node(wrapper=hiding(work / "in"))
    assert f"the input {work}/in/" in refused()


@pytest.mark.long
def test_a_dataset_that_a_node_cannot_write_to(refused, node, work):
    (work / "data").mkdir()
    node(wrapper=read_only(work / "data"))
    assert "the dataset cannot be written to: " in refused("data/out")


@pytest.mark.long
def test_a_node_without_batchmill(refused, node, tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "batchmill.py").write_text("raise ModuleNotFoundError('batchmill')")
    node(environment={"PYTHONPATH": str(tmp_path / "none")})
    text = refused()
    assert f"batchmill is not installed there (for {sys.executable})" in text
    assert "Install the same version as here: batchmill 0.1.0" in text


def test_a_node_with_another_version_of_batchmill(refused, node, tmp_path):
    (tmp_path / "old" / "batchmill").mkdir(parents=True)
    (tmp_path / "old" / "batchmill" / "__init__.py").touch()
    (tmp_path / "old" / "batchmill" / "version.py").write_text("VERSION = '0.0.1'")
    node(environment={"PYTHONPATH": str(tmp_path / "old")})
    assert "batchmill is 0.0.1 there, and 0.1.0 here. Install the same" in refused()


@pytest.mark.long
def test_a_prefect_api_that_only_this_machine_reaches(refused, node, shell):
    node()
    del shell.environment["PREFECT_API_URL"]  # Then the run uses a temporary server.
    text = refused()
    assert "the Prefect API at http://127.0.0.1:" in text
    assert "prefect server start --host 0.0.0.0" in text


@pytest.fixture
def mine(work, shell):
    """A folder with the step. Only this machine has it on the import path."""
    folder = work / "mine"
    folder.mkdir()
    shutil.move(work / "slow.py", folder)
    shell.environment["PYTHONPATH"] = str(folder)
    return folder


@pytest.mark.long
def test_ray_copies_a_step_to_the_nodes(refused, node, mine, shell, cluster, work):
    node()
    text = refused()
    assert "step slow:step: no module 'slow' on the import path" in text
    assert "--runtime-env '{" in text
    (work / "env.yaml").write_text(f"py_modules: [{mine}/slow.py]\nenv_vars: {{WHO: somebody}}\n")
    for output, environment in [
        ("folder", json.dumps({"working_dir": str(mine)})),
        ("module", "env.yaml"),
    ]:
        options = ["--ray", cluster.client_address, "--runtime-env", environment]
        done = shell.run(*command(work, output, *options))
        assert done.returncode == 0, done.stderr
    assert contents(work / "folder") == contents(work / "module")


GREET = """
import os
import hello

def step(source, out):
    return {"words": f"{hello.WORD}, {os.environ['WHO']}"}
"""


@pytest.mark.long
def test_ray_installs_packages_and_sets_variables(node, shell, cluster, work):
    node()
    (work / "greet").mkdir()
    (work / "greet" / "greet.py").write_text(GREET)
    (work / "here").mkdir()
    (work / "here" / "hello.py").write_text("WORD = 'good evening'")
    shell.environment["PYTHONPATH"] = f"{work}/greet:{work}/here"
    wheel = make_wheel(work, "hello", "WORD = 'good morning'")
    environment = {
        "working_dir": str(work / "greet"),
        "pip": {"packages": [str(wheel)], "pip_install_options": ["--no-index"]},
        "env_vars": {"WHO": "everybody"},
        # By default, the head makes the same environment, here in the same folder as the node.
        "config": {"eager_install": False},
    }
    job = ["run", "in", "--step", "greet:step", "-o", "out", "--ray", cluster.address]
    done = shell.batchmill(*job, "--runtime-env", json.dumps(environment))
    assert done.returncode == 0, done.stderr
    words = pd.read_parquet(work / "out" / "metadata.parquet")["words"]
    assert list(words) == ["good morning, everybody"] * INPUTS


def make_wheel(folder, name, source):
    """Write a wheel with one module; return its path."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return path


@pytest.mark.long
def test_a_node_with_another_version_of_the_step(refused, node, mine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "slow.py").write_text((mine / "slow.py").read_text().replace("* 100", "* 101"))
    node(environment={"PYTHONPATH": str(other)})
    assert f"step ({other}/slow.py) differs from the run's version" in refused()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ('{"working_dir": "/nowhere"}', "/nowhere must be an existing directory"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ('{"workin_dir": "."}', "has no field 'workin_dir'"),
                ("nowhere.yaml", "nowhere.yaml: No such file"),
                ('{"pip": ', "is not valid JSON or YAML"),
            ]
        ),
    ],
)
def test_an_invalid_runtime_environment(shell, cluster, work, environment, expected):
    options = ["--ray", cluster.client_address, "--runtime-env", environment]
    done = shell.run(*command(work, "out", *options))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
