"""Test that the plan is a pure function of manifest, ledger and step."""

from dataclasses import replace

import pyarrow as pa
import pytest

from batchmill.core.ledger.state import State
from batchmill.core.manifest import Manifest
from batchmill.core.planning.changed_files import FileChanges
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.plan import PLANNED_COLUMNS, make_plan, match_records

SCHEMA = State(None).records([*PLANNED_COLUMNS, "carried"]).schema


def manifest_of(*names, size=5, mtime_ns=1, etag=None, ctime_ns=3, companions=None):
    inputs = pa.table(
        {
            "input": list(names),
            "size": [size] * len(names),
            "mtime_ns": [mtime_ns] * len(names),
            "etag": pa.array([etag] * len(names), pa.string()),
            "ctime_ns": pa.array([ctime_ns] * len(names), pa.int64()),
            "companions": pa.array([companions] * len(names), pa.string()),
        }
    )
    return Manifest(name="m.csv", root="/data", inputs=inputs, manifest_columns=pa.table({}))


def records_of(**outcomes):
    rows = [
        {
            "input": name,
            "outcome": outcome,
            "outputs": [],
            "size": 5,
            "mtime_ns": 1,
            "etag": None,
            "ctime_ns": 3,
            "content": "xxh128:5",
            "carried": "{}",
            "step": "s",
            "run": 1,
        }
        for name, outcome in outcomes.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def plan_of(manifest, records, criteria):
    return make_plan(manifest, match_records(records, manifest.inputs), criteria)


def test_inputs_below_a_raised_limit_are_executed():
    records = records_of(a="timeout", b="timeout", c="ok")
    plan = plan_of(manifest_of("a", "b", "c"), records, Criteria("s", below_limits={"a"}))
    assert reasons(plan) == {"a": "limit"}
    assert (plan.counts["limit"], plan.counts["quarantined"]) == (1, 1)


def reasons(plan):
    return dict(
        zip(plan.pending["input"].to_pylist(), plan.pending["reason"].to_pylist(), strict=True)
    )


def test_without_a_ledger_all_inputs_are_new_in_manifest_order():
    plan = plan_of(manifest_of("b", "a"), records_of(), Criteria("s"))
    assert plan.pending["input"].to_pylist() == ["b", "a"]
    assert plan.pending["position"].to_pylist() == [0, 1]
    assert plan.counts["new"] == 2


def test_each_input_has_one_reason():
    records = records_of(a="ok", b="failed", d="oom", gone="ok")
    plan = plan_of(manifest_of("a", "b", "c", "d"), records, Criteria("s", released={"b": 1}))
    assert reasons(plan) == {"b": "retry", "c": "new"}
    assert plan.resolved == {"ok": 1, "oom": 1}
    assert plan.counts == {
        "new": 1,
        "changed": 0,
        "damaged": 0,
        "retry": 1,
        "limit": 0,
        "forced": 0,
        "quarantined": 1,
        "unchanged": 1,
        "withdrawn": 1,
    }
    assert plan.stale_steps == {}


@pytest.mark.parametrize(
    "change", [{"size": 6}, {"mtime_ns": 2}, {"ctime_ns": 4}, {"companions": "xxh128:1"}]
)
def test_a_changed_file_is_executed_again(change):
    plan = plan_of(manifest_of("a", **change), records_of(a="ok"), Criteria("s"))
    assert reasons(plan) == {"a": "changed"}
    assert plan.stale_steps == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [("xxh128:5", {}), ("xxh128:6", {"a": "changed"}), ("", {"a": "changed"})],
)
def test_a_file_with_another_time_is_compared_by_content(content, expected):
    changes = FileChanges(contents=pa.chunked_array([[content or None]], pa.string()))
    plan = plan_of(manifest_of("a", mtime_ns=2), records_of(a="ok"), Criteria("s", changes=changes))
    assert reasons(plan) == expected
    assert plan.touched.to_pylist() == ([] if expected else ["a"])


def test_a_record_of_an_older_version_has_no_time_of_the_last_change():
    records = records_of(a="ok")
    column = records.schema.get_field_index("ctime_ns")
    records = records.set_column(column, "ctime_ns", pa.nulls(1, pa.int64()))
    assert reasons(plan_of(manifest_of("a"), records, Criteria("s"))) == {}


def test_an_input_with_damaged_outputs_is_executed_again():
    changes = FileChanges(damaged=frozenset({"b"}))
    plan = plan_of(
        manifest_of("a", "b"), records_of(a="ok", b="ok"), Criteria("s", changes=changes)
    )
    assert reasons(plan) == {"b": "damaged"}


def test_force_also_executes_quarantined_inputs():
    records = records_of(a="ok", b="failed")
    plan = plan_of(manifest_of("a", "b", "c"), records, Criteria("s", forced_after=1))
    assert reasons(plan) == {"a": "forced", "b": "forced", "c": "new"}


def test_a_released_ok_input_is_executed_again():
    plan = plan_of(manifest_of("a"), records_of(a="ok"), Criteria("s", released={"a": 1}))
    assert reasons(plan) == {"a": "retry"}


def test_withdrawn_inputs_are_listed():
    plan = plan_of(manifest_of("a"), records_of(a="ok", gone="failed"), Criteria("s"))
    assert plan.withdrawn.to_pylist() == ["gone"]


def test_another_step_executes_all_inputs_and_is_reported():
    plan = plan_of(manifest_of("a", "b"), records_of(a="ok", b="failed"), Criteria("other"))
    assert reasons(plan) == {"a": "changed", "b": "changed"}
    assert plan.stale_steps == {"s": 2}


@pytest.mark.parametrize(
    ("released", "expected"), [({}, {}), ({"a": 0}, {}), ({"a": 1}, {"a": "retry"}), ({"b": 9}, {})]
)
def test_a_failed_input_is_quarantined_until_it_is_released(released, expected):
    plan = plan_of(manifest_of("a"), records_of(a="failed"), Criteria("s", released=released))
    assert reasons(plan) == expected


def test_a_changed_row_is_executed_again_if_the_step_takes_rows():
    manifest = manifest_of("a", "b")
    manifest = replace(manifest, manifest_columns=pa.table({"label": ["Grüße", "y"]}))
    records = records_of(a="ok", b="ok")
    column = records.schema.get_field_index("carried")
    records = records.set_column(column, "carried", [['{"label": "Grüße"}', '{"label": "z"}']])
    assert reasons(plan_of(manifest, records, Criteria("s", takes_rows=True))) == {"b": "changed"}
    assert reasons(plan_of(manifest, records, Criteria("s"))) == {}


def test_plan_returns_the_first_names_of_a_reason():
    plan = plan_of(manifest_of("a", "b", "c"), records_of(b="ok"), Criteria("s"))
    assert plan.first("new", 1) == ["a"]
    assert plan.first("changed", 5) == []


def test_only_ok_outcomes_of_accepted_steps_are_adopted():
    records = records_of(a="ok", b="failed", c="ok", d="ok")
    manifest = manifest_of("a", "b", "c", "e")
    plan = plan_of(manifest, records, Criteria("new", adopted_steps={"s"}, released={"c": 1}))
    assert reasons(plan) == {"b": "changed", "c": "retry", "e": "new"}
    assert plan.adopted.to_pylist() == ["a"]
    assert (plan.counts["adopted"], plan.counts["unchanged"]) == (1, 0)
    other = plan_of(manifest, records, Criteria("new", adopted_steps={"t"}))
    assert other.adopted.to_pylist() == []
    assert "adopted" not in other.counts
