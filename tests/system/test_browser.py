"""Prefect's UI in a real browser: the form, the page of a run, and its artifacts."""

import json
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from harness.browser import ui_of
from harness.deployment import deploy, worker_of
from harness.live import ask, clean_environment, prefect_server_in, shell_in
from playwright.sync_api import expect

SPLIT = "batchmill.steps.words:split"
WORDS = {"a.txt": "simple", "b.txt": "scaleable", "c.txt": "preprocessing", "d.txt": "pytorch"}


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory):
    with prefect_server_in(tmp_path_factory.mktemp("server-home")) as url:
        yield url


@pytest.fixture(scope="module")
def shell(prefect_server, tmp_path_factory):
    """A shell with the deployments and a worker. Its folder has a short name for screenshots."""
    home = tmp_path_factory.mktemp("home")
    environment = clean_environment(home) | {"PREFECT_API_URL": prefect_server}
    with (
        tempfile.TemporaryDirectory(prefix="words-") as folder,
        shell_in(Path(folder), environment) as shell,
    ):
        shell.environment["PYTHONPATH"] = folder
        deploy(shell, partial(ask, prefect_server), shell.folder)
        with worker_of(shell):
            yield shell


@pytest.fixture(scope="module")
def api(prefect_server):
    return partial(ask, prefect_server)


@pytest.fixture
def folder(shell):
    """A folder with the tutorial's words and their manifest."""
    for name, word in WORDS.items():
        (shell.folder / name).write_text(word)
    (shell.folder / "manifest.csv").write_text("input\n" + "".join(f"{name}\n" for name in WORDS))
    return shell.folder


@pytest.fixture
def ui(prefect_server, shell, tmp_path):
    with ui_of(prefect_server, tmp_path) as ui:
        yield ui


def fill_in(ui, manifest, output):
    ui.open_form("preprocess/run-step")
    for label, value in {"Manifest": manifest, "Step": SPLIT, "Output": output}.items():
        ui.field(label).get_by_role("textbox").fill(str(value))


def artifacts_of(api, flow_run):
    found = api("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run]}}})
    return {artifact["key"].partition("-")[0]: artifact for artifact in found}


def shown(field, described):
    """Return whether a field shows its parameter's default."""
    default = described.get("default")
    if default is None and "type" in described:
        return field.get_by_role("spinbutton").input_value() == ""
    if default is None:  # A block.
        return field.get_by_role("tab", name="None", selected=True).is_visible()
    if isinstance(default, bool):
        return field.get_by_role("switch").is_checked() == default
    if "enum" in described:
        button = field.get_by_role("button", name=f"Select {described['title']}")
        return button.inner_text() == default
    if isinstance(default, list):
        return field.get_by_role("textbox").count() == len(default)
    if isinstance(default, dict):
        return json.loads(field.locator(".cm-content").inner_text()) == default
    value = field.get_by_role("textbox").or_(field.get_by_role("spinbutton")).input_value()
    return value == str(default) or float(value) == default


def fields_of(schema, parameters):
    """Yield the label and the schema of each field of a form, including option groups.

    A parameter of the deployment replaces a default.
    """
    for name, described in schema["properties"].items():
        label = described["title"]
        if name not in schema.get("required", ()):
            label += " (Optional)"
        reference = described.get("$ref", "").rpartition("/")[2]
        group = schema.get("definitions", {}).get(reference, {})
        if group.get("additionalProperties") is False:
            yield label, {"description": described.get("description") or group["description"]}
            yield from fields_of(group, parameters.get(name, {}))
        else:
            yield label, described | ({"default": parameters[name]} if name in parameters else {})


@pytest.mark.parametrize(
    "deployment", ["preprocess/run-step", "infer/run-model", "verify-dataset/verify"]
)
def test_the_form_has_a_field_for_each_parameter(ui, api, deployment):
    deployed = api(f"/deployments/name/{deployment}")
    schema = deployed["parameter_openapi_schema"]
    fields = dict(fields_of(schema, deployed["parameters"]))
    ui.open_form(deployment)
    assert [label for label in ui.labels() if label in fields] == list(fields)
    # Only blocks may show this text. Prefect's form has no better text for an optional block.
    optional_blocks = sum("anyOf" in described for described in schema["properties"].values())
    assert ui.page.get_by_text('Property is type "None"').count() == optional_blocks
    for label, described in fields.items():
        field = ui.field(label)
        assert " ".join(described["description"].split()) in field.inner_text()
        if label.endswith("(Optional)") and ("default" in described or "type" in described):
            assert shown(field, described), label


def test_a_run_from_the_form(ui, api, shell, folder):
    saved = "from batchmill.blocks import RayCluster; RayCluster(address='local').save('here')"
    done = shell.python(saved)
    assert done.returncode == 0, done.stderr
    output = folder / "clips"
    fill_in(ui, folder / "manifest.csv", output)
    ui.write_json("Params (Optional)", {"num_chars": 3})
    ui.shoot("form")
    cluster = ui.field("Ray cluster (Optional)")
    cluster.get_by_role("tab", name="RayCluster").click()
    cluster.get_by_role("button", name="Select a block").click()
    ui.page.get_by_role("option", name="here").click()
    ui.field("Batch size (Optional)").get_by_role("spinbutton").fill("2")
    ui.field("Memory limit (Optional)").get_by_role("textbox").fill("2G")
    ui.field("Failures allowed (Optional)").get_by_role("textbox").fill("2%")
    ui.shoot("whole-form", whole=True)
    flow_run = ui.start_run()
    ui.wait_for_state("Completed")
    ui.page.get_by_text("4 Task runs").wait_for()
    ui.page.locator("canvas").wait_for()  # The graph of the task runs.
    ui.shoot("run")
    run = api(f"/flow_runs/{flow_run}")
    assert (run["state"]["type"], run["state"]["message"]) == ("COMPLETED", "4 inputs: 4 ok")
    given = run["parameters"]
    assert (given["params"], given["execution"]["batch_size"]) == ({"num_chars": 3}, 2)
    assert (given["failures"]["memory_limit"], given["failures"]["max_failures"]) == ("2G", "2%")
    assert "block_document_id" in run["parameters"]["cluster"]["$ref"]
    rows = pd.read_parquet(output / "metadata.parquet")
    assert (set(rows["input"]), rows["part"].str.len().max()) == (set(WORDS), 3)

    ui.page.get_by_role("tab", name="Artifacts").click()
    for kind in ("progress", "summary"):
        ui.page.get_by_role("heading", name=f"{kind}-clips").wait_for()
    ui.shoot("artifacts")
    assert artifacts_of(api, flow_run)["progress"]["data"] == 100
    ui.open_artifact("summary")
    ui.page.get_by_role("heading", name="4 inputs: 4 ok", exact=True).wait_for()
    ui.page.get_by_role("heading", name="The slowest inputs").wait_for()
    ui.shoot("summary")


def test_a_failed_input_is_shown(ui, api, folder):
    (folder / "c.txt").write_bytes(b"\xff")
    output = folder / "failing"
    fill_in(ui, folder / "manifest.csv", output)
    flow_run = ui.start_run()
    ui.wait_for_state("Failed")
    ui.shoot("failed-run")
    message = api(f"/flow_runs/{flow_run}")["state"]["message"]
    assert message.startswith("4 inputs: 3 ok, 1 failed. Group 1, c.txt: UnicodeDecodeError: ")
    assert "All reasons are in the artifact summary-" in message
    ui.open_artifact("failures")
    row = ui.page.get_by_role("row").filter(has_text="c.txt")
    row.get_by_text("UnicodeDecodeError").wait_for()
    ui.shoot("failures")
    # The table is cut at its right side, so the name of the input must come early.
    expect(row.get_by_role("cell").nth(1)).to_have_text("c.txt")
    expect(row.get_by_role("cell").nth(1)).to_be_in_viewport(ratio=1)
    (failure,) = json.loads(artifacts_of(api, flow_run)["failures"]["data"])
    assert (failure["input"], failure["outcome"]) == ("c.txt", "failed")


def test_the_form_refuses_a_number_out_of_bounds(ui, api, folder):
    output = folder / "not-submitted"
    fill_in(ui, folder / "manifest.csv", output)
    number = ui.field("Batch size (Optional)").get_by_role("spinbutton")
    number.fill("0")
    ui.submit()
    # The browser makes this message, and shows it under the field.
    assert "greater than or equal to 1" in number.evaluate("input => input.validationMessage")
    ui.shoot("refused", whole=True)
    number.fill("2")
    assert number.evaluate("input => input.validationMessage") == ""
    runs = api("/flow_runs/filter", {"limit": 200})
    assert str(output) not in [run["parameters"].get("output") for run in runs]


def test_the_form_refuses_an_invalid_share_or_size(ui, api, folder):
    output = folder / "not-begun"
    fill_in(ui, folder / "manifest.csv", output)
    failures = ui.field("Failures allowed (Optional)")
    failures.get_by_role("textbox").fill("lots")
    memory = ui.field("Memory limit (Optional)")
    memory.get_by_role("textbox").fill("much")
    ui.submit()
    failures.get_by_text("'lots' does not match").wait_for()
    memory.get_by_text("'much' does not match").wait_for()
    runs = api("/flow_runs/filter", {"limit": 200})
    assert str(output) not in [run["parameters"].get("output") for run in runs]


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [
        ("Failures allowed (Optional)", "--max-failures", "101%"),
        pytest.param("Input column (Optional)", "--input-column", "nosuch", marks=pytest.mark.long),
    ],
)
def test_the_flow_reports_a_wrong_option_like_the_command_line(
    ui, api, shell, folder, field, option, value
):
    output = folder / "refused"
    command = ["run", folder / "manifest.csv", "--step", SPLIT, "--output", output]
    fill_in(ui, folder / "manifest.csv", output)
    ui.field(field).get_by_role("textbox").fill(value)
    flow_run = ui.start_run()
    ui.wait_for_state("Failed")
    done = shell.batchmill(*command, option, value)
    assert done.returncode == 2
    message = done.stderr.strip().removeprefix("batchmill: ")
    assert message in api(f"/flow_runs/{flow_run}")["state"]["message"]
    assert not output.exists()
