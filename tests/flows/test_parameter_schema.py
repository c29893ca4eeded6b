"""What Prefect's form is told of the flows' parameters."""

import importlib
import pkgutil

import batchmill.flows
import pytest
from batchmill.flows.preprocess import preprocess
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from batchmill import OptionError
from batchmill.policy import make_policy

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
LEAST = {
    name: described.get("minimum", described.get("exclusiveMinimum"))
    for name, described in SCHEMAS["preprocess"]["properties"].items()
    if "minimum" in described or "exclusiveMinimum" in described
}


def test_the_flows_are_found():
    assert {"preprocess", "verify-dataset"} <= set(FLOWS)
    assert SCHEMAS["preprocess"]["required"] == ["manifest", "step", "output"]


@pytest.mark.parametrize(("schema", "name"), PARAMETERS)
def test_a_parameter_has_a_title_a_sentence_and_a_default(schema, name):
    described = schema["properties"][name]
    assert described["title"][0].isupper()
    assert "_" not in described["title"]
    assert described["description"].endswith(".")
    assert ("default" in described) != (name in schema["required"])
    if name in schema["required"]:
        needed = ("manifest", "step", "model", "output", "dataset", "job", "source", "deployment")
        assert name in needed


@pytest.mark.parametrize(("schema", "name"), PARAMETERS)
def test_a_parameter_can_be_filled_in(schema, name):
    # For an object that may be null, and names no fields, Prefect's form has nothing to write in.
    kinds = schema["properties"][name].get("anyOf", [])
    assert not any(kind.get("type") == "object" and "properties" not in kind for kind in kinds)


def test_there_are_bounds():
    assert {"batch_size": 1, "retries": 0, "timeout_seconds": 0}.items() <= LEAST.items()


@pytest.mark.parametrize("name", LEAST)
def test_a_number_out_of_bounds_is_refused_in_the_same_words(words, tmp_path, name):
    described = SCHEMAS["preprocess"]["properties"][name]
    number = LEAST[name] - (1 if "minimum" in described else 0)
    job = {
        "manifest": str(words / "manifest.csv"),
        "step": "batchmill.steps.words:split",
        "output": str(tmp_path / "out"),
        name: number,
    }
    with pytest.raises(ValidationError) as refused:
        validate(job, SCHEMAS["preprocess"], raise_on_error=True)
    reason = str(refused.value).partition("Failure reason: ")[2]
    with pytest.raises(OptionError, match=reason):
        preprocess(**job)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("memory_limit", ["2G", "1.5 GiB", " 500m ", "1048576", "2TB"], ["lots", "2X", "-2G", "%"]),
        ("max_failures", ["0", "3", "2%", " 0.5% ", "100%"], ["lots", "-1", "1.5", "% 2", "3 %"]),
    ],
)
def test_text_is_refused_by_the_form_where_the_engine_refuses_it(name, taken, refused):
    schema = {"type": "object", "properties": SCHEMAS["preprocess"]["properties"]}
    for text in taken:
        validate({name: text}, schema, raise_on_error=True)
        make_policy(**{name: text})
    for text in refused:
        with pytest.raises(ValidationError, match=f"'{text}' does not match"):
            validate({name: text}, schema, raise_on_error=True)
        with pytest.raises(OptionError):
            make_policy(**{name: text})
    validate({"memory_limit": None}, schema, raise_on_error=True)
