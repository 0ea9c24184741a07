# Every target does its own set-up: Python 3.11+, make and pip are all a machine needs.
# A stamp file per set of extras makes a repeated run a no-op until pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   ?= .venv
RAY_VENV ?= .venv-ray
BIN    := $(VENV)/bin

# The repository root must never be on sys.path: a bare `import events` would find our folder.
export PYTHONSAFEPATH := 1
# Every command under test would compile all of the source again.
unexport PYTHONDONTWRITEBYTECODE

LINTS := lint-ruff lint-mypy lint-pyright lint-imports

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ray simulate laws soak lint $(LINTS) bench peers wheel-test clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-dev  ## Create the virtual environment with everything a developer needs

demo: $(VENV)/.installed-examples  ## Train the digits example on two ranks, break a rank, show the replay
	$(BIN)/python examples/demo.py .demo

# Four at a time: tests that start brokers and processes wait for most of their time, so fewer leave a core idle. The files that
# take the longest come first (see conftest.py).
# A file's tests share a process.
test: lint  ## Lint, type-check, then run every test
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Ray is large: it has an environment of its own.
test-ray: $(RAY_VENV)/.installed  ## Run the tests of the Ray pool, on clusters of several nodes on this machine
	$(RAY_VENV)/bin/python -m pytest -n 2 --dist loadfile tests/on_ray tests/contract/test_pools.py $(PYTEST_ARGS)

simulate: $(VENV)/.installed-dev  ## Play SEEDS=1000 seeds of all scenarios, or one with SCENARIO= and SEED= and all that happens in it
	$(BIN)/python tests/simulation/simulate.py --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),1000) \
	  $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED))

# Each time with other examples; what is found is kept in .hypothesis, and met again first.
laws: $(VENV)/.installed-dev  ## Try the laws of tests/properties on new examples, RUNS=20 times, until one is broken
	for _ in $$(seq $(or $(RUNS),20)); do \
	  $(BIN)/python -m pytest -n 2 -q tests/properties --hypothesis-profile laws $(PYTEST_ARGS) || exit 1; \
	done

soak: $(VENV)/.installed-dev  ## Run the tests that take minutes: long outages of a real broker
	$(BIN)/python -m pytest --soak --timeout 1800 $(PYTEST_ARGS)

# Side by side, as each uses one core; what each prints is kept together, and all of them are heard.
lint: $(VENV)/.installed-dev  ## ruff, mypy strict, pyright strict on the public API, import contracts
	@$(MAKE) --no-print-directory --jobs --output-sync=target --keep-going $(LINTS)

$(LINTS): $(VENV)/.installed-dev

lint-ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-mypy:
	$(BIN)/mypy

lint-pyright:
	$(BIN)/basedpyright --pythonpath $(BIN)/python

lint-imports:
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed-examples  ## Measure the figures of benchmarks/ and print the table
	$(BIN)/python benchmarks

peers: $(VENV)/.installed-examples  ## Run the same job on runfold, Ray Train and torchrun, each in an environment of its own, and print the table
	$(BIN)/python benchmarks/peers $(if $(CACHE),--cache $(CACHE))

wheel-test: $(VENV)/.installed-dev  ## Build the wheel and try it in a second environment, the source away
	$(BIN)/python tests/wheel/check.py

clean:  ## Remove the virtual environment and everything built
	rm -rf $(VENV) $(RAY_VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "runfold needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# dev contains what the examples need too, so that it never has to be undone for another target.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,examples]'
	@touch $@ $(VENV)/.installed-examples

$(RAY_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,examples,ray,parquet]'
	@touch $@

$(VENV)/.installed-examples: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples]'
	@touch $@
