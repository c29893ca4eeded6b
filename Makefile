# `make help` lists what there is. Everything happens in .venv; nothing is installed elsewhere.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-output
# Processes that run tests. Three on two cores, because tests also wait for servers.
WORKERS ?= 3
SHELL := /bin/bash
# Cached byte code makes each command that the tests start faster.
unexport PYTHONDONTWRITEBYTECODE

# A strict editable install links single files: it must be made again when one is added.
FILES := $(shell find src flows tasks blocks \( -name '*.py' -o -name '*.html' \) | LC_ALL=C sort | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.installed-$(FILES)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-fast test-system test-all system-packages \
	soak release-check check lint format types bench bench-full docs clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(INSTALLED) ## Make .venv with everything that the other targets need

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "batchmill needs Python 3.11 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	rm -rf build/__editable__.* build/bdist.* build/lib $(VENV)/.installed-*
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--config-settings editable_mode=strict --editable '.[audio,images,dev,docs]'
	touch $@

demo: setup ## Cut twelve short recordings into clips, and show the dataset
	rm -rf $(DEMO)
	$(BIN)/batchmill run examples/recordings/manifest.csv --step batchmill.steps.audio:split \
		--param seconds=2 --output $(DEMO)
	@echo; echo "The first rows of $(DEMO)/metadata.parquet (metadata.csv has the same):"
	@$(BIN)/python -c "import pandas as pd; \
		rows = pd.read_parquet('$(DEMO)/metadata.parquet').round(3); \
		print(rows.drop(columns='source').head(8).to_string(index=False)); \
		print(f'... {len(rows)} rows')"
	@echo; echo "The clips:         $(DEMO)/files/"
	@echo "What failed, why:  $(DEMO)/failures.csv (nothing, this time)"
	@echo "All on one page:   $(DEMO)/report.html"
	@echo "What is done:      $(BIN)/batchmill status $(DEMO)"
	@echo "The run's history: $(BIN)/batchmill ui"

demo-cluster: setup ## Do the same on a Ray cluster of two nodes on this machine
	rm -rf $(DEMO)-cluster
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=examples/cluster $(BIN)/python \
		examples/cluster/two_nodes.py batchmill run examples/recordings/manifest.csv \
		--step on_node:split_on_node --param seconds=2 --output $(DEMO)-cluster \
		--num-workers 1 --batch-size 2
	@echo; echo "Which node cut which recording:"
	@$(BIN)/python -c "import pandas as pd; \
		rows = pd.read_parquet('$(DEMO)-cluster/metadata.parquet'); \
		print(rows.groupby(['node', 'source']).size().rename('clips').to_string())"

test: setup ## Run the tests, with real servers; needs only Python and pip
	$(BIN)/python -m pytest -m 'not system' -n $(WORKERS) --dist worksteal

test-fast: setup ## Run the fast tests: they start no server and no command
	$(BIN)/python -m pytest -m 'not end_to_end and not slow and not system' -n $(WORKERS) --dist worksteal

# In one process: Ray Client picks ports from 23000 up and binds them seconds later. Two clusters on one
# machine would pick the same ports, and a driver could reach the nodes of the other cluster.
test-system: setup ## Run the tests that need root, Chromium, Postgres and a network of machines
	$(BIN)/python tests/support/system_packages.py
	$(BIN)/python -m pytest -m system

test-all: setup ## Run all tests in their long versions, for hours; needs what test-system needs
	$(BIN)/python tests/support/system_packages.py
	$(BIN)/python -m pytest -m 'not system' -n $(WORKERS) --dist worksteal --long
	$(BIN)/python -m pytest -m system --long

system-packages: ## Install the Debian packages that test-system needs; as root
	apt-get install -y --no-install-recommends $(shell $(PYTHON) tests/support/system_packages.py --names)

release-check: setup ## Build wheel and sdist in dist/, check them, and run the demo from the wheel
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --constraint constraints.txt torch
	build/release/bin/python -m pip install --quiet --constraint constraints.txt \
		"$$(ls $(CURDIR)/dist/*.whl)[audio]"
	cd build/release && bin/batchmill run ../../examples/recordings/manifest.csv \
		--step batchmill.steps.audio:split --param seconds=2 --output demo

soak: setup ## Kill a run's processes 300 times and compare the datasets; takes an hour
	BATCHMILL_KILLS=300 $(BIN)/python -m pytest tests/end_to_end/test_kill_loop.py \
		-k undisturbed -rP --long

check: lint types docs test ## Run everything that must hold: format, lint, imports, types, pages, tests

lint: setup ## Check format, style, and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

format: setup ## Put the code into the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup ## Check types
	$(BIN)/mypy

bench: setup ## Measure what batchmill costs, and compare it with other tools; about half an hour
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.unchanged
	$(BIN)/python -m benchmarks.many_runs
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.compare
	$(BIN)/python -m benchmarks.page --print

bench-full: setup ## Compare with other tools over more files, into docs/explanation/benchmarks.md; about two hours
	$(BIN)/python -m benchmarks.compare --full
	$(BIN)/python -m benchmarks.page

docs: setup ## Build the documentation site, build/site; a link that leads nowhere ends it
	$(BIN)/python docs/site/build.py

clean: ## Remove what the other targets have made
	rm -rf $(VENV) build dist $(DEMO) $(DEMO)-cluster .mypy_cache .ruff_cache .pytest_cache .hypothesis
