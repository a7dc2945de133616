# Each target starts from a fresh clone: it makes its environments when they are missing or their pins changed.

PYTHON ?= python3
# More arguments for `division train`, and for pytest in `make test` and `make test-full`: as many processes as there are
# cores, a test file in one of them, and torch with one thread in each.
TRAIN_ARGS ?=
PYTEST_ARGS ?= -n auto --dist loadfile
pytest_env := OMP_NUM_THREADS=1
# A release before node creation hooks, where the library walks the graph instead.
FALLBACK_TORCH ?= 2.13.0

venv := .venv
bin := $(venv)/bin
installed := $(venv)/.installed
fallback_venv := .venv-$(FALLBACK_TORCH)
fallback_bin := $(fallback_venv)/bin
fallback_installed := $(fallback_venv)/.installed

# What an installation is made from: it is made anew when one of them changed.
sources_of_install := pyproject.toml constraints.txt setup.py $(wildcard src/division/kernels/csrc/*)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train test test-full check format hooks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

train: $(installed) ## train the default network with the default method
	$(bin)/division train $(TRAIN_ARGS)

test: check $(fallback_installed) ## style, types, tests and doctests, and the library's tests on an older torch
	$(pytest_env) $(bin)/python -m pytest $(PYTEST_ARGS)
	$(pytest_env) $(fallback_bin)/python -m pytest --core tests $(PYTEST_ARGS)

test-full: check $(fallback_installed) ## the same with the slow tests
	$(pytest_env) $(bin)/python -m pytest -m "slow or not slow" $(PYTEST_ARGS)
	$(pytest_env) $(fallback_bin)/python -m pytest --core tests -m "slow or not slow" $(PYTEST_ARGS)

check: $(installed) ## style and types
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy

format: $(installed) ## put the sources in shape
	$(bin)/ruff check --fix
	$(bin)/ruff format

hooks: $(installed) ## run the checks at every commit
	$(bin)/pre-commit install

clean: ## remove environments, caches and builds; runs stay
	rm -rf .venv* build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache src/*.egg-info src/division/kernels/_cpu*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(installed): $(sources_of_install)
	test -x $(bin)/python || $(PYTHON) -m venv $(venv)
	$(bin)/python -m pip install --quiet -c constraints.txt -e '.[train,report,dev]'
	touch $@

# torchvision is built for one release of torch, so this environment has neither it nor what is built on it.
$(fallback_installed): $(sources_of_install)
	test -x $(fallback_bin)/python || $(PYTHON) -m venv $(fallback_venv)
	grep -v '^torch' constraints.txt > $(fallback_venv)/constraints.txt
	$(fallback_bin)/python -m pip install --quiet -c $(fallback_venv)/constraints.txt -e '.[test]' torch==$(FALLBACK_TORCH)
	touch $@
