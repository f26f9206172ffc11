# Tollgate's targets. A newcomer needs `make run` and `make test`; CI runs the same.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Compiling all modules takes pip 15 s; those that are used compile themselves at the first start, in 4 s.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile --require-hashes --no-deps
# The virtual environment's Python where there is one: it is what runs.
ANY_PYTHON = $(or $(wildcard .venv/bin/python),$(PYTHON))
ASKED := make $(or $(MAKECMDGOALS),run)
# Any Python from 3.6 on can read the preflight; an older one, or none, is told here.
HAS_PYTHON = $(ANY_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 6))' || { \
	echo "Tollgate supports Python 3.11, 3.12 and 3.13, and '$(ANY_PYTHON)' is none of them." \
	"Install one, then name it: $(ASKED) PYTHON=python3.12" >&2; exit 2; }
PREFLIGHT = $(ANY_PYTHON) -I engine/preflight.py --command "$(ASKED)" --venv .venv
# Each command of a test would else compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE
STEP := $(BIN)/python -m deploy.run_step
# An environment of its own for outside judges, made again if its requirements change: its name, the
# folder of its requirements, its Python, options of pip.
judges = cmp -s $(2)/requirements.txt .venv/$(1)/made-of || { rm -rf .venv/$(1) && $(3) -m venv .venv/$(1) && \
	.venv/$(1)/bin/pip install --disable-pip-version-check --no-compile --no-deps $(4) -qr $(2)/requirements.txt && \
	cp $(2)/requirements.txt .venv/$(1)/made-of; }
EDITABLE := $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: help setup run test test-days engine-environment check coverage chaos residency foreign-rows fuzz clients engines fuzz-api oracles request-oracle reconcile-seeds month-sequences report-oracle focus dashboard-tour fmt lint types imports bench ratchets demo-crash lock clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/run.stamp ## Install what `make run` needs; leaves .venv/bin/tollgate
	@:

run: ## Everything on this machine: engine, database, gateway, dashboard
	@$(HAS_PYTHON)
	@$(PREFLIGHT)
	@$(MAKE) --no-print-directory setup
	@$(BIN)/tollgate up

# Each of the two installations uses one core. Side by side they print plain lines (TERM).
test: | .venv/bin/python ## Install what is missing and run all tests, real engine and browser included
	@touch .venv/test.begun
	@TERM=dumb $(MAKE) --no-print-directory -j2 .venv/dev.stamp engine-environment
	@bash tests/install_tools.sh
	@touch .venv/test.installed
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
	@touch .venv/test.passed

test-days: .venv/dev.stamp ## Run the tests at the moments at which calendars surprise; DAYS="31 January;28 November" TESTS=tests/cli for some
	@$(BIN)/python -m tests.days

engine-environment: | .venv/bin/python
	@$(BIN)/python -m engine.environment

check: .venv/dev.stamp lint types imports test ## Format, lint, types, imports, tests

fmt: .venv/dev.stamp ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: .venv/dev.stamp ## Check format and style; installs the development tools
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: .venv/dev.stamp ## Check the types
	@$(BIN)/mypy

imports: .venv/dev.stamp ## Check that the layers import one way
	@$(BIN)/lint-imports --no-cache

coverage: .venv/dev.stamp ## Prove 100 % branch coverage of domain, wire and journal
	@$(BIN)/python -m coverage run --branch --source=gateway/domain,gateway/wire,gateway/storage/journal -m pytest tests/unit tests/policy tests/journal tests/attacks
	@$(BIN)/python -m coverage report --fail-under=100 --show-missing --skip-covered

bench: .venv/dev.stamp ## Measure the gateway against a plain proxy, in one run
	@$(BIN)/python -m bench.overhead

chaos: .venv/dev.stamp ## Break it on purpose and count: about 45 minutes (docs/chaos.md)
	@for scenario in kill cuts drain cancel pgfaults outage "outage --budgets" budgets limits twins; do $(BIN)/python -m tests.chaos $$scenario || exit 1; done

residency: .venv/dev.stamp ## 20,000 policies against an oracle, then each rule's operator flipped
	@$(BIN)/python -m tests.residency
	@$(BIN)/python -m tests.residency --mutations

foreign-rows: .venv/dev.stamp ## REQUESTS=10000 random requests as a team: 0 foreign rows, and each view's condition is missed
	@$(BIN)/python -m tests.access --requests $(or $(REQUESTS),10000)

fuzz: .venv/dev.stamp ## Feed our HTTP/1.1 client damaged answers for SECONDS=60; needs no gateway
	@$(BIN)/python -m tests.http1 --seconds $(or $(SECONDS),60)

clients: .venv/dev.stamp ## Run the clients of other projects against the gateway; ONLY=codex,aider for some, BUDGET_USD=50 for a hard budget of each team
	@TOLLGATE_CLIENTS_BUDGET_USD=$(BUDGET_USD) $(BIN)/python -m tests.clients $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write)

engines: .venv/dev.stamp ## Real llama.cpp and a pooling vLLM behind a gateway; the first build takes 20 minutes
	@$(BIN)/python -m engine setup
	@$(BIN)/python -m tests.engines.build
	@TOLLGATE_TEST_ENGINES=1 $(BIN)/python -m pytest tests/engines

fuzz-api: .venv/dev.stamp ## Fuzz a gateway by its OpenAPI description with CASES=20000 (about 6 minutes)
	@$(call judges,fuzz-api,tests/openapi,$(BIN)/python,)
	@SCHEMATHESIS=$(CURDIR)/.venv/fuzz-api/bin/schemathesis CASES=$(or $(CASES),20000) \
		$(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/openapi/fuzz_api.py

oracles: .venv/dev.stamp ## Let litellm, SDKs and their tests, llm-comply, real tokenizers and recorded usages (CORPUS=FILE) judge answers and bounds
	@$(BIN)/python -m pytest -q tests/oracles/recorded_bodies.py
	@$(call judges,oracles,tests/oracles,$(BIN)/python,--require-hashes)
	@.venv/oracles/bin/python -m pytest -q --noconftest -p no:cacheprovider -o addopts= -W ignore \
		tests/oracles/outside_shapes.py tests/oracles/outside_usage.py tests/oracles/outside_tokenizers.py \
		tests/oracles/outside_streams.py tests/oracles/outside_schemas.py
	@LLM_COMPLY=$(CURDIR)/.venv/oracles/bin/llm-comply ORACLES_PYTHON=$(CURDIR)/.venv/oracles/bin/python \
		$(BIN)/python -m pytest -q tests/oracles/outside_answers.py tests/oracles/outside_sdk_tests.py

request-oracle: .venv/dev.stamp ## Judge CASES=20000 generated conversations for each translated target by its published rules (about 2 minutes a target)
	@CASES=$(or $(CASES),20000) $(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/oracles/requests

reconcile-seeds: .venv/dev.stamp ## Find seven planted differences in providers' bills, over SEEDS=50 (about a minute)
	@RECONCILE_SEEDS=$(or $(SEEDS),50) $(BIN)/python -m pytest -q tests/invoices/test_planted_gaps.py

month-sequences: .venv/dev.stamp ## Close and reopen months amid late facts, in SEQUENCES=100 random orders (about 6 minutes)
	@TOLLGATE_MONTH_SEQUENCES=$(or $(SEQUENCES),100) HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q -s \
		-o faulthandler_timeout=0 tests/reports/months/test_month_machine.py

report-oracle: .venv/dev.stamp ## Ask QUESTIONS=1500 random reports and add each up again from the raw tables (about 8 minutes)
	@REPORT_ORACLE_QUESTIONS=$(or $(QUESTIONS),1500) REPORT_ORACLE_REQUESTS=1500 \
		$(BIN)/python -m pytest -q -o faulthandler_timeout=0 tests/reports/oracle/test_report_oracle.py

focus: .venv/dev.stamp ## Let the official FOCUS validator judge an export; needs Python 3.12, 600 MB of disk
	@$(call judges,focus,tests/focus,$(or $(PYTHON3_12),python3.12),--require-hashes)
	@FOCUS_VALIDATOR=$(CURDIR)/.venv/focus/bin/focus-validator \
		$(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/focus/official_validator.py

dashboard-tour: .venv/dev.stamp ## Click through the dashboard as finance and as a team lead, with 3 and 300 teams; screenshots in tests/output/tour
	@bash tests/install_tools.sh
	@$(BIN)/python -m tests.dashboard.tour $(if $(TEAMS),--teams $(TEAMS))

ratchets: .venv/dev.stamp ## Print the figures that may not grow: lines, seconds of tests, instructions, memory, start of a command
	@bash bench/install.sh >/dev/null
	@command -v valgrind >/dev/null || { echo "Install valgrind, which counts the instructions." >&2; exit 2; }
	@$(BIN)/python -m bench.ratchets

demo-crash: .venv/dev.stamp ## Kill a gateway in mid-stream and show what its ledger lost
	@$(BIN)/python -m bench.demo_crash

lock: ## Compile the requirements files anew (needs uv on the PATH)
	@bash deploy/lock.sh

clean: ## Remove the environment of this checkout (not ~/.tollgate)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache

.venv/bin/python:
	@$(HAS_PYTHON)
	@$(PREFLIGHT) --no-engine --no-ports --quiet
	@$(PYTHON) -m deploy.run_step "Making .venv" --usual-s 10 -- $(PYTHON) -m venv .venv

.venv/run.stamp: requirements-run.lock requirements-build.lock pyproject.toml | .venv/bin/python
	@$(STEP) "Installing gateway, Postgres, dashboard" --usual-s 60 -- \
		$(PIP) -r requirements-build.lock -r requirements-run.lock
	@$(STEP) "Installing Tollgate from this clone" --usual-s 4 -- $(EDITABLE)
	@touch $@

.venv/dev.stamp: requirements-dev.lock .venv/run.stamp
	@$(STEP) "Installing the development tools" --usual-s 40 -- $(PIP) -r requirements-dev.lock
	@touch $@
