"""Prefect's registry of collections finds the flows and blocks, and what it shows of them.

https://github.com/PrefectHQ/prefect-collection-registry imports each module of a collection.
"""

import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from griffe import Docstring, Parser, parse
from prefect import Flow
from prefect.blocks.core import Block

import batchmill

ROOT = Path(__file__).parents[2]


def modules_of(package):
    for _, name, is_package in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{name}")
        yield from modules_of(module) if is_package else [module]


@pytest.fixture(scope="module")
def flows():
    found = [
        thing
        for module in modules_of(batchmill)
        for _, thing in inspect.getmembers(module)
        if isinstance(thing, Flow)
    ]
    return {flow.name: flow for flow in found}


def test_all_flows_are_found_and_each_has_a_summary(flows):
    assert set(flows) == {
        "export", "infer", "preprocess", "review-dataset", "saved-job", "update-dataset",
        "verify-dataset", "watch-source",
    }  # fmt: skip
    for flow in flows.values():
        summary, *_ = parse(Docstring(flow.description), Parser.google)
        assert summary.kind.value == "text"
        assert summary.value.endswith(".")


def test_each_block_of_the_entry_point_links_a_page_of_its_own():
    (entry,) = (one for one in entry_points(group="prefect.collections") if one.name == "batchmill")
    module = entry.load()
    assert module.__name__.partition(".")[0] == "batchmill"
    assert batchmill.__version__
    blocks = [thing for _, thing in inspect.getmembers(module) if Block.is_block_class(thing)]
    links = [str(block._documentation_url) for block in blocks]
    assert len(blocks) == len(set(links)) == 3
    for link in links:
        page, _, anchor = link.partition("blob/main/")[2].partition("#")
        headings = (ROOT / page).read_text().lower()
        assert f"## {anchor.replace('-', ' ')}\n" in headings
