# `make demo`, `make test` and `make mutate`. Each makes its own environment in .venv first, and again only
# when pyproject.toml has changed or the environment no longer runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2
# Without bytecode, each process compiles all that it imports anew, and each worker rewrites the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo mutate test lint types pytest browser pictures chromium clean outdated

demo: $(READY)
	@$(BIN)/python examples/gemm/demo.py

# Pyright has one thread: beside it there is room for a worker of pytest.
test: lint
	@$(MAKE) --no-print-directory -j2 types pytest

# Plants faults in the kernels of the gallery, and writes what the check finds to benchmarks/results/mutation.md: two hours
# of one core, and all cores work.
mutate: $(READY)
	@$(BIN)/python -m tests.mutation --write

lint: $(READY)
	@echo "==> ruff"
	@$(BIN)/ruff check .

# With a larger young generation node's garbage collector takes less time: a tenth of all.
types: $(READY)
	@echo "==> pyright (strict)"
	@NODE_OPTIONS="$(NODE_OPTIONS) --max-semi-space-size=64" $(BIN)/pyright

# A file is run by one worker: its tests share what they compile. In their order, short files come last.
pytest: $(READY)
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The page of a report in a real browser. Chromium is installed where there is none, which needs root and apt.
browser: chromium
	@$(BIN)/python -m pytest -m browser tests/browser

# Those of docs/report.md.
pictures: chromium
	@$(BIN)/python -m tests.browser.pictures

chromium: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@$(BIN)/python -m tests.browser.chromium || \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium; }

# An environment whose Python is gone or too old is made again.
ifneq ($(shell $(BIN)/python -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null),True)
$(READY): outdated
endif

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "tiledsl needs Python 3.11 or newer, got: $$($(PYTHON) --version). Name another: make PYTHON=python3.12"; exit 1; }
	@echo "==> environment in $(VENV)"
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "==> installing tiledsl and its tools (once; some 300 MB of wheels)"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
