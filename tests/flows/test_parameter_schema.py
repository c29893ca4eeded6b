"""The schemas of flow parameters and option groups for Prefect's form."""

import importlib
import pkgutil

import batchmill.flows
import pytest
from batchmill.flows.preprocess import preprocess
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from batchmill import OptionError
from batchmill.core.options.failure_policy import FailurePolicy

FLOWS = {
    thing.name: thing
    for found in pkgutil.iter_modules(batchmill.flows.__path__)
    for thing in vars(importlib.import_module(f"batchmill.flows.{found.name}")).values()
    if isinstance(thing, Flow)
}
SCHEMAS = {name: parameter_schema(flow).model_dump() for name, flow in FLOWS.items()}
PARAMETERS = [
    pytest.param(schema, name, id=f"{flow}-{name}")
    for flow, schema in SCHEMAS.items()
    for name in schema["properties"]
]
GROUPS = ("inputs", "partitions", "execution", "failures", "run")
PREPROCESS = SCHEMAS["preprocess"]


def group_schema(name):
    """The schema of an option group of the flow `preprocess`."""
    reference = PREPROCESS["properties"][name]["$ref"].rpartition("/")[2]
    return PREPROCESS["definitions"][reference]


OPTIONS = [
    pytest.param(group, name, id=f"{group}-{name}")
    for group in GROUPS
    for name in group_schema(group)["properties"]
]
BOUNDED = [
    (group, name, described["minimum"])
    for group in GROUPS
    for name, described in group_schema(group)["properties"].items()
    if "minimum" in described
]


def job(words, tmp_path, **more):
    return {
        "manifest": str(words / "manifest.csv"),
        "step": "batchmill.steps.words:split",
        "output": str(tmp_path / "out"),
        **more,
    }


def test_the_flows_are_found():
    assert {"preprocess", "infer", "saved-job", "verify-dataset"} <= set(FLOWS)
    assert PREPROCESS["required"] == ["manifest", "step", "output"]


@pytest.mark.parametrize(("schema", "name"), PARAMETERS)
def test_a_parameter_has_a_title_a_sentence_and_a_default(schema, name):
    described = schema["properties"][name]
    assert described["title"][0].isupper()
    assert "_" not in described["title"]
    # A group without a description has the description of its model.
    model = schema["definitions"].get(described.get("$ref", "").rpartition("/")[2], {})
    assert described.get("description", model.get("description", "")).endswith(".")
    assert ("default" in described) != (name in schema["required"])
    if name in schema["required"]:
        needed = (
            "manifest",
            "step",
            "model",
            "output",
            "dataset",
            "job",
            "source",
            "deployment",
            "out",
        )
        assert name in needed


@pytest.mark.parametrize(("schema", "name"), PARAMETERS)
def test_a_parameter_can_be_filled_in(schema, name):
    # Prefect's form shows no editor for an object that may be null and has no named fields.
    kinds = schema["properties"][name].get("anyOf", [])
    assert not any(kind.get("type") == "object" and "properties" not in kind for kind in kinds)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_an_option_has_a_title_a_sentence_and_no_null(group, name):
    described = group_schema(group)["properties"][name]
    assert described["title"][0].isupper()
    assert "_" not in described["title"]
    assert described["description"].endswith(".")
    # The form shows null as a separate field, which cannot be filled in.
    assert {"type": "null"} not in described.get("anyOf", [])
    assert described.get("default", "") is not None


@pytest.mark.parametrize("group", GROUPS)
def test_the_defaults_of_a_group_fit_its_schema(words, tmp_path, group):
    default = PREPROCESS["properties"][group]["default"]
    validate(job(words, tmp_path, **{group: default}), PREPROCESS, raise_on_error=True)


@pytest.mark.parametrize(
    ("flow", "last"), [("preprocess", ["run", "confinement"]), ("infer", ["store", "run"])]
)
def test_the_groups_that_few_runs_need_are_last_in_the_form(flow, last):
    properties = SCHEMAS[flow]["properties"]
    order = sorted(properties, key=lambda name: properties[name]["position"])
    assert order[4:6] == ["failures", "inputs"]
    assert order[-2:] == last


def test_infer_has_the_option_groups_of_preprocess():
    found, expected = (SCHEMAS[name]["definitions"] for name in ("infer", "preprocess"))
    names = [group_schema(group)["title"] for group in GROUPS]
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}


def test_some_options_have_bounds():
    assert {("execution", "batch_size", 1), ("failures", "retries", 0)} <= set(BOUNDED)
    assert ("failures", "timeout", 0) in BOUNDED


@pytest.mark.parametrize(("group", "name", "least"), BOUNDED)
def test_the_form_and_the_engine_reject_a_number_with_the_same_message(
    words, tmp_path, group, name, least
):
    parameters = job(words, tmp_path, **{group: {name: least - 1}})
    with pytest.raises(ValidationError) as refused:
        validate(parameters, PREPROCESS, raise_on_error=True)
    reason = str(refused.value).partition("Failure reason: ")[2]
    with pytest.raises(OptionError, match=reason):
        preprocess.validate_parameters(parameters)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        (
            "memory_limit",
            ["", "2G", "1.5 GiB", " 500m ", "1048576", "2TB"],
            ["lots", "2X", "-2G", "%"],
        ),
        (
            "max_failures",
            ["0", "3", "2%", " 0.5% ", "100%"],
            ["lots", "-1", "1.5", "% 2", "3 %", "²"],
        ),
    ],
)
def test_the_form_and_the_engine_reject_the_same_texts(words, tmp_path, name, taken, refused):
    for text in taken:
        parameters = job(words, tmp_path, failures={name: text})
        validate(parameters, PREPROCESS, raise_on_error=True)
        FailurePolicy(**{name: text})
    for text in refused:
        parameters = job(words, tmp_path, failures={name: text})
        with pytest.raises(ValidationError, match=f"'{text}' does not match"):
            validate(parameters, PREPROCESS, raise_on_error=True)
        with pytest.raises(OptionError):
            FailurePolicy(**{name: text})


def test_an_unknown_option_is_refused_with_the_nearest_name(words, tmp_path):
    parameters = job(words, tmp_path, failures={"retry": 3})
    with pytest.raises(OptionError, match=r"retry: no such option\. Did you mean retries"):
        preprocess.validate_parameters(parameters)
