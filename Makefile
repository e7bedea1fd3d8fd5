# `make demo` runs the main job for real, `make test` passes the tests; each sets up what it needs.
# What is there already isn't made again.

VENV := .venv
BIN := $(VENV)/bin
MODEL := smollm2-135m
SETUP := $(VENV)/.setup
CLIENTS := .venv-clients

.PHONY: help setup models demo test test-quick test-clients test-systemd test-systemd-vm deb lint format clean

help:
	@echo "make demo    run trimtab on a real model and squeeze its memory (builds the model once)"
	@echo "make test    run the tests"
	@echo "make test-quick  the same without the slow ones"
	@echo "make test-clients  LangChain and LlamaIndex against the daemon, in an environment of their own"
	@echo "make lint    run the linters"
	@echo "make deb     build the package for Debian 12 in dist/"
	@echo "make test-systemd  install that package under a throw-away systemd and check the service"
	@echo "make setup   prepare .venv alone"
	@echo "make models  build the SmolLM2 variants alone"

setup: $(SETUP)

$(SETUP): pyproject.toml
	@python=""; for name in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	  "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { python=$$name; break; }; \
	done; \
	test -n "$$python" || { echo "trimtab needs Python 3.11 or newer: apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.11"; exit 1; }; \
	echo "setup: making the virtual environment in $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV) || { echo "the venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@echo "setup: installing trimtab with its dependencies, tests and linters (a minute or two)"
	@$(BIN)/python -m pip install --quiet --editable '.[plot]' --group test --group lint
	@touch $@
	@echo "setup: done"

models: setup
	@$(BIN)/trimtab models build $(MODEL)

demo: models
	@$(BIN)/trimtab demo $(DEMO_ARGS)

test: setup
	@echo "test: running the tests on the real engine with the tiny model of tests/tiny"
	@$(BIN)/python -m pytest $(TEST_ARGS)

test-quick: setup
	@$(BIN)/python -m pytest -m 'not slow' $(TEST_ARGS)

test-clients: setup $(CLIENTS)/.setup
	@$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients

$(CLIENTS)/.setup: pyproject.toml
	@echo "test-clients: installing LangChain and LlamaIndex in $(CLIENTS) (a minute or two)"
	@$(BIN)/python -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(CLIENTS)/bin/python -m pip install --quiet --group clients
	@touch $@

deb: setup
	@$(BIN)/python tools/build_deb.py

test-systemd: deb
	@tests/systemd/run

test-systemd-vm: deb
	@tests/systemd/run-vm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(CLIENTS) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
