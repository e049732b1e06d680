# Everything here needs Python 3.10 or newer and make; the rest is put into .venv. `make` alone lists the targets.

# The first of these that is new enough and can make virtual environments. Another: make PYTHON=/path/to/python demo
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11 python3.10
PYTHON ?= $(firstword $(foreach python,$(CANDIDATES),$(shell $(python) -c \
	'import sys, venv, ensurepip; print("$(python)" if sys.version_info >= (3, 10) else "")' 2>/dev/null)))

BIN = .venv/bin
PORT = 8000
# Type checkers read the settings but no data: a database that nobody connects to.
NO_DATABASE = DATABASE_URL=postgresql:///none

help:
	@echo 'make demo    three replicas fire one job at the same instant, without and with django-singlecron'
	@echo 'make serve   the admin on the data of the demo, at http://localhost:$(PORT)/admin/'
	@echo 'make test    everything that is asked of a change: lint, then all tests with their coverage'
	@echo 'make lint    style, types, imports, migrations'
	@echo 'make bench   what a run costs'
	@echo 'make clean   removes what the others made'

demo: .venv/demo
	@$(BIN)/python -m testproject.demo

serve: .venv/demo
	@$(BIN)/python -m testproject.demo prepare
	@echo 'The admin: http://localhost:$(PORT)/admin/, user admin, password admin.'
	@$(BIN)/python testproject/manage.py runserver --noreload localhost:$(PORT)

test: lint
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 2 --dist loadfile
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(NO_DATABASE) $(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python testproject/manage.py makemigrations --check --dry-run
	$(BIN)/python testproject/manage.py check --fail-level WARNING

bench: .venv/dev
	@$(BIN)/python -m tests.bench

clean:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m testproject.embedded stop; fi
	rm -rf .venv .demo .nox .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist

# One virtual environment, with a stamp for each dependency group that is in it. The interpreter, not a stamp, stands
# for the environment: it is missing too when the Python that it points to is gone.
.venv/demo .venv/dev: .venv/bin/python pyproject.toml tools/venv.py
	@$(BIN)/python -m tools.venv install $(notdir $@)
	@touch $@

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo 'No Python 3.10 or newer that can make virtual environments was found, as any of: $(CANDIDATES).' >&2; \
		echo 'Install one (on Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python' >&2; \
		exit 1; \
	fi
	@$(PYTHON) -m tools.venv create

.PHONY: help demo serve test lint bench clean
