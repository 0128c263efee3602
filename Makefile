# Everything runs from .venv, which is made on first use. Only python3, its venv module and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test check bench install install-dev clean

serve: $(VENV)/.engine
	@exec $(BIN)/stoker serve $(ARGS)

test: check
	$(BIN)/pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks.bench_serve $(ARGS)

install: $(VENV)/.engine
install-dev: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[engine]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[engine,dev]'
	@touch $@ $(VENV)/.engine

clean:
	rm -rf $(VENV)
