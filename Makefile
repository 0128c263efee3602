# Everything runs from .venv, which is made on first use. Only python3, its venv module and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Also where PYTHONDONTWRITEBYTECODE is set, which would compile every module again at every start.
COMPILE = $(BIN)/python -m compileall -q app engine tui logparse stoker_launcher.py

.PHONY: help serve test check check-native bench install install-dev clean

help:  ## what each target does
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

serve: $(VENV)/.engine  ## install, start `stoker serve` with the default model; ARGS="..." passes flags on
	@exec $(BIN)/stoker serve $(ARGS)

# What fails is tried once more in a fresh process: of thousands of tests with real processes one may
# meet a machine's bad moment. A fault fails both times; both reports stay in the output.
test: check  ## install, every check, every test
	$(BIN)/pytest || { [ $$? -eq 1 ] && echo "Once more, what failed:" && $(BIN)/pytest --last-failed; }

check: $(VENV)/.dev  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The C++ under the address and undefined-behaviour sanitizers, in every build that this CPU can run.
SANITIZED := g++ -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZER_LIBRARIES = $(shell g++ -print-file-name=libasan.so) $(shell g++ -print-file-name=libstdc++.so)
NATIVE_TESTS := $(filter-out %_build.py,$(wildcard tests/kernels/test_native*.py))
NATIVE_TESTS += tests/kernels/test_packed_cache.py $(addprefix tests/core/test_,engine_core.py sliding_windows.py)

check-native: $(VENV)/.dev  ## the C++ under sanitizers, in every build that this CPU can run
	@for isa in avx512_bf16 avx512_vnni avx2 portable; do \
	  echo "sanitizers, $$isa"; \
	  CXX="$(SANITIZED)" STOKER_NATIVE_ISA=$$isa LD_PRELOAD="$(SANITIZER_LIBRARIES)" \
	  ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0 \
	  $(BIN)/python -m pytest -q -p no:cacheprovider $(NATIVE_TESTS) -m 'not slow' \
	  -k "(native or next_start) and (not native_isa or $$isa)" $(ARGS) || exit 1; \
	done

bench: $(VENV)/.dev  ## `stoker bench` on a running server
	$(BIN)/stoker bench $(ARGS)

install: $(VENV)/.engine  ## .venv with the engine
install-dev: $(VENV)/.dev  ## .venv with the engine and the development tools

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[engine]'
	$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[engine,dev]'
	$(COMPILE)
	@touch $@ $(VENV)/.engine

clean:  ## remove .venv
	rm -rf $(VENV)
