# Everything is built in $(VENV); nothing outside this directory is changed, but for pip's own cache.

VENV ?= .venv
# The interpreter to build $(VENV) with; empty: the newest suitable one.
PYTHON ?=
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=
ONCE ?=
MINUTES ?= 10
# Tests at the same time: most wait most of the time, for processes and clocks.
JOBS ?= 3

BIN := $(VENV)/bin
# Named after PYTHON, so that another interpreter makes another start.
STAMP := $(VENV)/.installed$(if $(PYTHON),-$(subst /,-,$(PYTHON)))
# So that neither a .env file nor a database decides whether the code is in order.
CHECKED := DOWNSTREAM_URL=http://127.0.0.1:9 DATABASE_URL=sqlite://:memory: SECRET_KEY=only-for-checks

.DEFAULT_GOAL := help
.PHONY: help setup constraints demo test test-postgres test-browser test-engines test-clients fuzz drill soak check docs run bench clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## build .venv (PYTHON=... to choose the interpreter); again when pyproject.toml has changed

constraints: $(STAMP)  ## write constraints.txt anew: the versions in .venv of what the gateway needs, once its tests have passed
	@pins=$$($(BIN)/python dependencies/pins.py tested) && { \
		echo "# The versions of what the gateway needs with which its tests have passed; written by \`make constraints\`."; \
		echo "$$pins"; } > constraints.txt

demo: $(STAMP)  ## watch broken answers being continued (ONCE=1 ends by itself, with status 0 or 1)
	@$(BIN)/python manage.py demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

test: $(STAMP)  ## run the tests: on PostgreSQL those that depend on the database, then all on SQLite (ARGS=... for pytest; JOBS=1 for one at a time)
	@on_postgres=0; $(BIN)/python -m tests.postgresql -n $(JOBS) --dist loadfile $(ARGS) || on_postgres=$$?; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS) || exit; \
	[ $$on_postgres = 0 ] || { echo "make: tests failed on PostgreSQL: see above, before those on SQLite" >&2; exit $$on_postgres; }

test-postgres: $(STAMP)  ## run on PostgreSQL alone (DATABASE_URL=postgres://... for a server of yours)
	@$(BIN)/python -m tests.postgresql -n $(JOBS) --dist loadfile $(ARGS)

test-engines: $(STAMP)  ## run the tests against real engines, which are installed in .engines first (ENGINES_DIR=...)
	@$(BIN)/python engines/prepare.py
	@$(BIN)/python -m pytest tests/engines -m engine $(ARGS)

test-clients: $(STAMP)  ## read streams with the clients of PyPI and npm, which are installed in build/clients first
	@$(BIN)/python tests/clients/prepare.py
	@$(BIN)/python -m pytest tests/clients -m clients $(ARGS)

test-browser: $(STAMP)  ## break answers in chromium, which is Debian's packages chromium and chromium-driver; needs node too
	@$(BIN)/python -m pytest tests/browser -m browser $(ARGS)

fuzz: $(STAMP)  ## let random events loose on the core, each fuzzer for MINUTES=10 (ARGS=NAME for one)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -qq --disable-pip-version-check atheris \
		2>/dev/null || echo "atheris cannot be installed for this Python: hypothesis alone"
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)

drill: $(STAMP)  ## break many streams at random places and compare each answer (ARGS="--total 10000 --seed 1")
	@$(BIN)/python manage.py drill $(ARGS)

soak: $(STAMP)  ## the drill for an hour, with memory, descriptors, tasks and latency drawn in build/soak.png
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[soak]'
	@mkdir -p build
	@$(BIN)/python manage.py drill --minutes 60 --plot build/soak.png --require-flat $(ARGS)

check: $(STAMP)  ## lint, format, imports, types, missing migrations, system checks, documentation
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@found=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$found"; exit 1; }
	@$(CHECKED) $(BIN)/mypy
	@$(CHECKED) $(BIN)/python manage.py makemigrations --check --dry-run
	@$(CHECKED) $(BIN)/python manage.py check --fail-level WARNING
	@$(MAKE) --no-print-directory docs

docs: $(STAMP)  ## build the documentation as a site in build/docs; a link that leads nowhere is an error
	@$(BIN)/python -m mkdocs build --quiet --strict

run: $(STAMP)  ## migrate, then serve with the settings of .env (HOST=127.0.0.1 PORT=8000)
	@$(BIN)/python manage.py check
	@$(BIN)/python manage.py migrate --no-input
	@exec $(BIN)/python manage.py serve -b $(HOST) -p $(PORT)

bench: $(STAMP)  ## measure CPU time per forwarded chunk, side by side (ARGS="--streams 20 --rounds 3")
	@$(BIN)/python -c 'import uvloop' 2>/dev/null || $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[bench]'
	@$(BIN)/python bench/relays.py $(ARGS)
	@$(BIN)/python bench/transports.py

clean:  ## delete .venv and caches; .env and the database stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships python3 without ensurepip; pip, where it is installed for that python, can fill the new one from outside.
$(STAMP): pyproject.toml
	@suits() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	version() { "$$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo 'not there'; }; \
	built() { suits $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1; }; \
	wanted() { [ -z '$(PYTHON)' ] || [ "$$(version $(BIN)/python)" = "$$(version '$(PYTHON)')" ]; }; \
	fail() { echo "make: $$*" >&2; exit 1; }; \
	if built && wanted; then \
		echo "bringing $(VENV) (Python $$(version $(BIN)/python)) up to date with pyproject.toml"; \
	else \
		for python in $(if $(PYTHON),'$(PYTHON)',python3.13 python3.12 python3.11 python3) ''; do \
			if suits "$$python"; then break; fi; \
		done; \
		[ "$$python" ] || fail "Python 3.11 or newer is needed, and $(or $(PYTHON),python3) is $$(version '$(or $(PYTHON),python3)'):" \
			"name one, such as PYTHON=/path/to/python3.12"; \
		echo "building $(VENV) with Python $$(version "$$python"), once"; \
		if "$$python" -c 'import ensurepip' 2>/dev/null; then \
			"$$python" -m venv --clear '$(VENV)' || fail "$$python could not build $(VENV)"; \
		else \
			"$$python" -m pip --version >/dev/null 2>&1 || \
				fail "pip is missing: install python3-venv or python3-pip, or name another Python with PYTHON=..."; \
			"$$python" -m venv --clear --without-pip '$(VENV)' && \
			"$$python" -m pip --python $(BIN)/python install -qq --disable-pip-version-check pip || \
				fail "$$python could not build $(VENV)"; \
		fi; \
	fi; \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]' || \
		fail "pip could not install what pyproject.toml names"
	@touch '$(STAMP)'
