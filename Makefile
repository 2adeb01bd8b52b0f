# Two commands matter: `make up` runs everything, `make test` tests everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help env up test check lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# The stamp makes `make env` free once the lock is installed.
$(VENV)/.locked: requirements/uv.txt requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(BIN)/python -m cli.link $(VENV)
	@touch $@

env: $(VENV)/.locked ## make the environment; afterwards .venv/bin/penstock works

up: env ## run everything on this machine: `make up ARGS="--engine sim"`
	@exec $(BIN)/penstock up $(ARGS)

lock: ## resolve the requirements anew
	cd requirements && for name in uv runtime dev; do \
	  ../$(BIN)/uv pip compile --python-version 3.11 --universal --generate-hashes \
	    --no-emit-index-url --no-header --upgrade -q $$name.in -o $$name.txt; done

clean: ## remove the environment and caches (never data)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
