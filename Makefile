# Every target sets itself up: on a machine with Python 3.11 to 3.13 and nothing else, `make demo` or `make test` is
# enough. The environment is .venv (one that is already there is used); the second run goes straight to work.
# Another Python: make setup PYTHON=/path/to/python3

PYTHON ?=
WORKERS ?= 2
BIN := .venv/bin
RUN := $(BIN)/python -m
READY := .venv/.fourfold-ready

export PYTHON

.PHONY: help setup demo test check style lint types layers pytest test-slow docs format lock
.NOTPARALLEL:

help:
	@echo "make demo       train and test all four families on built-in data (minutes, two CPU cores)"
	@echo "make test       style, types, import layers and the whole default test suite"
	@echo "make check      style, types and import layers only"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make docs       build the documentation site in site/"
	@echo "make format     format the code and fix lint errors"
	@echo "make setup      only make .venv"
	@echo "make lock       write the versions in .venv to constraints.txt"

setup: $(READY)

$(READY): pyproject.toml constraints.txt scripts/tools/setup.sh
	@sh scripts/tools/setup.sh .venv
	@touch $@

demo: setup
	@$(BIN)/python scripts/demo

test: check pytest

# One target each, so that with --keep-going the first complaint does not hide the others.
check: style lint types layers

style: setup
	$(RUN) ruff format --check .

lint: setup
	$(RUN) ruff check .

types: setup
	$(RUN) mypy

layers: setup
	$(BIN)/lint-imports --no-logo

pytest: setup
	$(RUN) pytest -n $(WORKERS) --dist worksteal

test-slow: setup
	$(RUN) pytest -m slow

docs: setup
	@$(BIN)/python scripts/tools/build_docs.py

format: setup
	$(RUN) ruff check --fix-only .
	$(RUN) ruff format .

# Versions only, no addresses; a local build tag such as +cpu is of this machine, not of the release.
lock: setup
	$(RUN) pip freeze --all --exclude-editable > constraints.tmp
	sed -e '/ @ /d' -e '/^pip==/d' -e 's/+[a-z0-9.]*$$//' constraints.tmp > constraints.txt
	@rm constraints.tmp
