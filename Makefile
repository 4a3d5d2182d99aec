# Every target sets up what it needs; a second call starts at once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLOWER := $(VENV)-flower
FLOWER_STAMP := $(FLOWER)/.installed

FLOWER_TESTS := tests/algorithms/test_against_flower.py tests/deploy/test_flower.py \
  tests/deploy/test_flower_plan.py tests/deploy/test_flower_deployment.py tests/network/engines/test_flower.py \
  tests/network/engines/test_flower_records.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

# Flower needs older versions of what the other tools need, so it has an environment of its own.
$(FLOWER_STAMP): pyproject.toml constraints-flower.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
	  -e '.[deploy,flower]' hypothesis pytest pytest-randomly
	@touch $(FLOWER_STAMP)

setup: $(STAMP) ## create the environment and install fedsurf into it

demo: $(STAMP) ## run the pretrained optimizer on digits, then meta-train U-DGD
	$(BIN)/fedsurf demo

test: $(STAMP) ## run the tests, in random order
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(STAMP) $(FLOWER_STAMP) ## run the tests at full scale, and those with Flower
	$(BIN)/python -m pytest -m slow
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest -m 'slow or not slow' $(FLOWER_TESTS)

lint: $(STAMP) ## run ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) $(FLOWER_STAMP) ## run all benchmarks and print their tables
	@for benchmark in benchmarks/*.py; do echo "== $$benchmark"; \
	  case $$benchmark in */engines.py) python=$(FLOWER)/bin/python;; *) python=$(BIN)/python;; esac; \
	  $$python $$benchmark || exit 1; done

clean: ## remove the environment, caches and runs made by the demo
	rm -rf $(VENV) $(FLOWER) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build demo-run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
