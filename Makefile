# One entry for everything. Each target sets up what it needs; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# uv installs the several gigabytes of torch in a minute where pip takes many. It does not read pip's settings,
# so a mirror that pip was told about is handed on.
HAND_ON := index="$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true)}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; export UV_HTTP_TIMEOUT=300;
# For `make test-install`: Python by version, or by path where uv does not find it.
VERSIONS ?= 3.11 3.12 3.13
LOWEST := build/lowest
# Two processes, each with one thread: torch's own threads would fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo ci test test-slow test-gpu test-wheel test-install test-lowest coverage check fmt bench docs build lock upgrade clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv from requirements.lock

$(READY): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep -o '^uv==[0-9.]*' requirements.lock)"
	@$(HAND_ON) \
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.lock && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

demo: $(READY)  ## pretrain on generated images and compare with a random backbone and raw pixels
	@$(BIN)/iecl demo --out runs/demo --overwrite

ci: check test  ## what the hosted check runs

test: $(READY)  ## the default tests, two at a time
	@$(PYTEST)

test-slow: $(READY)  ## tests that take minutes
	@$(BIN)/python -m pytest -m slow

test-gpu: $(READY)  ## what only a machine with a GPU can tell: five minutes; skips without one
	@$(BIN)/python -m pytest tests/gpu

test-wheel: $(READY)  ## build the wheel, install it elsewhere, use it; part of `make test` too
	@$(BIN)/python -m pytest tests/test_wheel.py

test-install: $(READY)  ## the wheel with all it needs in new environments, VERSIONS="3.11 3.13"; gigabytes
	@$(HAND_ON) $(BIN)/python -m benchmarks.install $(addprefix --python ,$(VERSIONS))

test-lowest: $(READY)  ## the tests with the lowest versions that pyproject.toml allows; gigabytes, TESTS=tests/views for some
	@$(HAND_ON) $(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST) && \
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[detection,onnx,parquet,peers,plots]' && \
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python hatchling hypothesis pytest
	@$(LOWEST)/bin/python -c "import torch, torchvision, numba; print(torch.__version__, torchvision.__version__, numba.__version__)"
	@# Old packages call what newer ones that they use have deprecated.
	@env -u CI OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning $(or $(TESTS),tests)

coverage: $(READY)  ## the default tests again, slower: share of code that they run, and the files with least
	@$(PYTEST) --cov --cov-report=
	@$(BIN)/coverage report --sort=cover --skip-covered | sed -n 1,22p
	@echo "total: $$($(BIN)/coverage report --format=total) %"

check: $(READY)  ## format, lint, types, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

fmt: $(READY)  ## format and apply safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)  ## measure every speed question beside peers that are installed; hours
	@$(BIN)/iecl bench --out benchmarks/results

docs: $(READY)  ## build the documentation; a warning is an error
	@PYTHONPATH=. $(BIN)/python docs/generate.py
	@$(BIN)/sphinx-build -q -W -n -b html docs docs/_build/html

build: $(READY)  ## source distribution and wheel, in dist/
	@rm -rf dist
	@$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python
	@test -z "$(TAG)" || test -f "dist/iecl-$(TAG:v%=%)-py3-none-any.whl" || { echo "$(TAG) is not the version"; exit 1; }
	@ls dist

lock: $(READY)  ## pin what pyproject.toml asks for, and keep other pins
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	  --no-header --extra dev $(LOCK) pyproject.toml -o requirements.lock

upgrade:  ## pin the newest versions that pyproject.toml allows
	@$(MAKE) --no-print-directory lock LOCK=--upgrade

clean:  ## remove what the targets made
	rm -rf .venv dist docs/_build docs/generated runs .coverage
