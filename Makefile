# Each target is sufficient alone, with Python 3.11 or newer and nothing else installed.
# On Debian that includes the package python3-venv; `make` says so where it is missing.

# the first Python that is new enough and can make a virtual environment; override: make PYTHON=/path/to/python3
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3.14 python3; do \
  "$$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
  && echo "$$name" && break; done)
WORKERS ?= auto
# all seeds and loads take long: make bench PLACEMENT=
PLACEMENT ?= --seeds 2 --loads 0.9
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
RUNTIME := .venv/.stamp-runtime
DEV := .venv/.stamp-dev

.PHONY: install demo test check lint bench clean help
.DEFAULT_GOAL := help

help:
	@echo "make install   .venv/bin/freegpu"
	@echo "make demo      see everything end to end on this machine, about a minute"
	@echo "make test      all tests"
	@echo "make check     format, lint, types, layers and the quick tests"
	@echo "make lint      the same without tests"
	@echo "make bench     how fast the command line, ticks and forecasts are, and how good placement is (two queues)"
	@echo "make clean     remove the virtual environment and caches"

install: $(RUNTIME)
	@echo "installed: $(BIN)/freegpu"

demo: $(RUNTIME)
	@$(BIN)/freegpu demo

test: $(DEV)
	@$(BIN)/python -m tests.servers.colab_cli
	@$(BIN)/python -m tests.servers.skypilot
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4

check: lint
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 -m "not slow"

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict freegpu tests
	$(BIN)/lint-imports

bench: $(DEV)
	@for script in benchmarks/*.py; do \
	  options=; case "$$script" in */placement.py) options='$(PLACEMENT)';; esac; \
	  echo "$$script $$options"; $(BIN)/python "$$script" $$options || exit 1; done

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache freegpu-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last: what failed or was interrupted is done again.
$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "freegpu needs Python 3.11 or newer that can make virtual environments."; \
	  echo "  Debian, Ubuntu: sudo apt install python3 python3-venv"; \
	  echo "  macOS:          brew install python@3.13"; \
	  echo "Installed already? make PYTHON=/path/to/python3"; \
	  exit 1; \
	fi
	@echo "making .venv with $(PYTHON)"
	@"$(PYTHON)" -m venv .venv || { rm -f $@; echo "on Debian: sudo apt install python3-venv"; exit 1; }

$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing freegpu and what it needs into .venv"
	@$(PIP) -e . && touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing freegpu with what its tests need into .venv"
	@$(PIP) -e '.[dev]' && touch $@ $(RUNTIME)
