# Two commands from a bare machine: `make run` starts the gateway, `make test` runs every check and every test.
# Needed: Python 3.11 or later with its venv module; for `make test` also what tests/servers/install.sh installs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first Python that is new enough; a version manager's shim may exist and still not run, so each is asked.
FIND_PYTHON = for python in $${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$python"; break; fi; done

# Companies put their own certificate authority into the system's store: ask it, not a built-in list.
export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)

.PHONY: help install lock run test bench style types layers docs

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/' | expand -t 16

install: $(STAMP)  ## the virtual environment .venv, as locked

$(STAMP): pyproject.toml uv.lock
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "make: no Python 3.11 or later was found (tried python3, python3.11 to python3.14)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then \
		"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
			echo "make: $$python has no working venv module (Debian: apt-get install python3-venv)." >&2; exit 1; }; fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'
	@$(BIN)/uv sync --locked --quiet
	@touch $@

lock:  ## write uv.lock anew after a change of the dependencies
	@test -x $(BIN)/uv || { echo "make: run make install first" >&2; exit 1; }
	$(BIN)/uv lock

run: $(STAMP)  ## start the gateway and its embedded broker
	@exec $(BIN)/gateway serve

test: $(STAMP)  ## every check and every test, on real brokers
	@tests/servers/install.sh
	@exec $(BIN)/python tests/suites.py

bench: $(STAMP)  ## how fast it is, beside pika and pamqp in the same run
	@exec $(BIN)/python -m tests.benchmarks

style: $(STAMP)  ## ruff: rules and format
	@exec $(BIN)/python tests/suites.py style

types: $(STAMP)  ## mypy, strict
	@exec $(BIN)/python tests/suites.py types

layers: $(STAMP)  ## imports point down; protocol code does no I/O
	@exec $(BIN)/python tests/suites.py layers

docs: $(STAMP)  ## write the generated tables of docs/ anew
	@exec $(BIN)/python docs/generate.py
