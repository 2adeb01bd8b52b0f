# Two commands matter: `make up` runs everything, `make test` tests everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-header $(ARGS)
# The requirements of one extra of pyproject.toml, without the platform's own.
EXTRA = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"])'

# Processes may keep their bytecode, whatever the environment says: a role compiles its imports for seconds without.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help env up check unit docs engine browser edge test simulate-money model-sql fuzz bench-gateway bench-hostile bench-through bench-prefix bench-billing bench-books bench-scheduler bench-fairness bench-pools bench-engine gpu chaos cancels load lock lock-engine compat clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# The stamp makes `make env` free once the lock is installed.
$(VENV)/.locked: requirements/uv.txt requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --offline --editable .
	@touch $@

env: $(VENV)/.locked ## make the environment; afterwards .venv/bin/penstock works

up: env ## run everything on this machine: `make up ARGS="--engine sim"`
	@exec $(BIN)/penstock up $(ARGS)

check: env ## what needs no run: lint, format, types, direction of imports, floats near money
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.architecture.floats

docs: env ## build docs/ as a static site into site/; fails on a broken link
	$(BIN)/zensical build --clean --strict

engine: env ## make the engine's own environment (vLLM); does nothing when it is there
	$(BIN)/penstock engine install

browser: ## find Chromium; as root on Debian, install it
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium for the browser tests ..."; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium >/dev/null; \
	else \
	  echo "the browser tests need Chromium: install the package 'chromium' and run again" >&2; exit 1; \
	fi

edge: ## find Caddy, Prometheus and ShellCheck for the tests of deploy/; on Debian, fetch them below .tools, not installed
	@for each in caddy:caddy prometheus:promtool shellcheck:shellcheck; do package=$${each%:*}; program=$${each#*:}; \
	  command -v $$program >/dev/null || test -x .tools/usr/bin/$$program || \
	  (mkdir -p .tools && cd .tools && \
	   { apt-get -qq download $$package || { apt-get -qq update && apt-get -qq download $$package; }; } && \
	   dpkg -x $${package}_*.deb . && rm $${package}_*.deb) >/dev/null 2>&1 || echo "no $$program: its tests are skipped" >&2; \
	done

PYTEST := $(BIN)/pytest -q -n 2
TIMES := .pytest_cache/times.json

unit: env ## the quick tests: unit and architecture, on two cores
	$(PYTEST) --dist worksteal tests/unit tests/architecture

# The quick ones first. Each call of pytest ends with its counts, above them the times of all calls so far.
# Integration tests wait for servers half of their time: three workers keep two cores busy.
# Whole platforms and consoles are started by files: a file stays on one worker. The longest come first, in the order
# of the folders, so that both workers end at about the same time.
test: check docs ## test everything: checks, unit, integration, the real engine, killed processes, the browser
	@rm -f $(TIMES)
	$(PYTEST) --dist worksteal --times $(TIMES) tests/unit tests/architecture
	@$(MAKE) --no-print-directory engine browser edge
	$(PYTEST) -n 3 --dist worksteal --times $(TIMES) tests/integration tests/security
	$(PYTEST) --dist loadfile --no-loadscope-reorder --times $(TIMES) tests/e2e tests/faults tests/browser

simulate-money: env ## 10,000 seeded schedules of the money path on virtual time, with faults: ARGS="--schedules 500", --help
	@$(BIN)/python -m tests.simulation $(ARGS)

model-sql: env ## hold the simulation's model of the SQL functions to PostgreSQL over 2,000 random sequences: SEQUENCES=500
	SEQUENCES=$(or $(SEQUENCES),2000) $(BIN)/pytest -q -n 0 tests/integration/billing/metering/test_sql_model.py

fuzz: env ## requests made from the OpenAPI documents, ours and the official ones: EXAMPLES=200 of each operation
	EXAMPLES=$(or $(EXAMPLES),100) $(BIN)/pytest -q -n 0 tests/integration/api/test_fuzz.py

bench-gateway: env ## cost of the whole platform per request and per chunk, beside other gateways; a minute and a quarter: ARGS=--quick
	$(BIN)/python -m bench.gateway $(ARGS)

bench-hostile: env ## what hostile bodies of other customers do to open streams: delay of chunks with and without
	$(BIN)/python -m bench.hostile $(ARGS)

bench-through: env engine ## the real vLLM directly and through the platform: tokens/s, TTFT, CPU; ARGS=--quick
	$(BIN)/python -m bench.through $(ARGS)

bench-prefix: env engine ## exact prefix knowledge beside the mirror, on two real engines
	$(BIN)/python -m bench.prefix $(ARGS)

bench-placement: env ## our placement beside every published policy, for docs/results/placement.md; can be stopped
	$(BIN)/python -m bench.placement $(ARGS)

bench-fairness: env ## what fairness costs: our queue beside plain VTC, for docs/results/fairness.md; some minutes
	$(BIN)/python -m bench.fairness $(ARGS)

bench-pools: env ## a day on hosts that come and go: demand, replicas, cost, TTFT; a few minutes: ARGS="--hours 3"
	$(BIN)/python -m bench.pools $(ARGS)

bench-billing: env ## settlement, bytes per row, month reports, invoice run; full size: ARGS="--rows 100000000"
	$(BIN)/python -m bench.billing $(ARGS)

bench-books: env ## work that must not grow with history, at 10,000 organisations; ARGS="--rows 10000000 100000000 --publish"
	$(BIN)/python -m bench.books $(ARGS)

bench-scheduler: env ## one scheduling decision: CPU time over replicas, cached blocks and prompt length; bytes per block
	$(BIN)/python -m bench.scheduler $(ARGS)

bench-engine: env engine ## measure the real vLLM on this machine, for `penstock sim validate`
	$(BIN)/python -m bench.engine --out bench/out/engine.json $(ARGS)

gpu: env ## what only a GPU can show, into docs/data/gpu.json; one line where there is none
	@$(BIN)/python -m bench.gpu $(ARGS)

chaos: env ## random faults on a whole platform under load, then its books; ARGS="--faults 1000 --seed 7"
	$(BIN)/python -m bench.chaos $(ARGS)

cancels: env ## 10,000 clients leave at random instants: no answer crosses; ARGS="--cancels 1000 --seed 7"
	$(BIN)/python -m bench.cancels $(ARGS)

load: env ## 2,000 open streams and 200 new requests a second for ten minutes; shorter: ARGS="--seconds 60"
	$(BIN)/python -m bench.load $(ARGS)

lock: env ## compile requirements/*.txt from pyproject.toml; newer versions: make lock ARGS=--upgrade
	$(COMPILE) --universal --group installer -o requirements/uv.txt
	$(COMPILE) --universal pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --universal pyproject.toml --group dev -o requirements/dev.txt
	$(COMPILE) --universal --group router -o requirements/router.txt

# On Linux x86-64. The package index does not carry PyTorch's CPU build: set UV_FIND_LINKS or UV_INDEX to where it is.
# The packages left out come from elsewhere (torch) or break the CPU build's imports (workers/engine_install.py).
lock-engine: env ## compile requirements/engine-*.txt, the packages of the engine's own environment
	$(call EXTRA,engine) | $(COMPILE) --no-annotate - -o requirements/engine-gpu.txt
	$(call EXTRA,engine-cpu) | $(COMPILE) --no-annotate - -o requirements/engine-cpu.txt \
	  $(foreach name,torch torchaudio torchcodec torchvision triton,--no-emit-package $(name))

compat: env engine ## official SDKs, agents and load tools against the real vLLM; some minutes: ARGS="--only codex", --publish
	@$(BIN)/python -m tests.compat $(ARGS)

clean: ## remove the environment and caches (never data)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
