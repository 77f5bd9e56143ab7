# Every target sets up what it needs: `.venv` is made when missing and refreshed when a dependency file changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := install
.PHONY: install quickstart test torture lint format benchmark clean

install: $(STAMP)  ## make .venv with the tested versions

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "vitrail needs Python >= 3.10: choose one with 'make PYTHON=/path/to/python3'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

quickstart: $(STAMP)  ## check the embedded data, train a small PatchConvNet on it, evaluate, predict: minutes on two cores
	$(BIN)/vitrail check fashion --out runs/quickstart-check
	$(BIN)/vitrail train small data=fashion out=runs/quickstart
	$(BIN)/vitrail evaluate runs/quickstart
	$(BIN)/vitrail predict runs/quickstart docs/pictures/fashion --top 3

# Tests start many processes: whatever the environment says, each is to find the bytecode of the first.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)  ## run the tests; options for pytest go into ARGS
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

MINUTES ?= 20
SEED ?= 0
torture: $(STAMP)  ## kill runs, break files and the like at random for MINUTES; prints tried and failed
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED) $(ARGS)

lint: $(STAMP)  ## formatting, rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(STAMP)  ## side by side with timm; prints ratios
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/loader.py

clean:  ## remove the environment, caches and build products
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
