# make demo: see what it is for. make check: format, lint, types and the quick tests, for the working day.
# make test: everything a change must pass.
# make nightly: what takes longer: soaks, kills, fuzzing and several processes at length, databases, the package.
# make e2e: the service's page in a real Chromium. make docs: the site, in build/site.
# make package: wheel and sdist, used in an environment of their own.
# make databases: decisions on what real vector databases return; it installs them.
# make bench: the measurements that need no data folder and have no result yet in benchmarks/results.
PYTHON ?= python3
BIN := .venv/bin
DIST := build/package
INSTALL := $(DIST)/env/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "surefind needs Python 3.11 or newer; this is %d.%d. Name another one: make PYTHON=python3.11 ..." % sys.version_info[:2])'

# What Python and pytest compile is kept: each of the tests' processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test nightly lint e2e package databases docs format bench clean

demo: .venv/demo
	$(BIN)/surefind demo --out build/demo

check: lint
	$(BIN)/pytest -q -n auto --dist loadfile -m "not slow and not nightly and not e2e and not databases"

test: lint
	$(BIN)/pytest -q -n auto --dist loadfile -m "not nightly and not e2e and not databases"

nightly: package databases
	$(BIN)/pytest -q -m nightly $(NIGHTLY)

e2e: .venv/ready
	command -v chromium >/dev/null || (apt-get update && apt-get install -y chromium)
	$(BIN)/pytest -q -m e2e tests/e2e

# The wheel is built from the sdist. Its environment has what the wheel asks for and nothing else.
package: .venv/ready
	rm -rf $(DIST)
	$(BIN)/python -m build --outdir $(DIST) .
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/python tests/package/contents.py $(DIST)
	$(BIN)/python -m venv $(DIST)/env
	$(INSTALL) $$(echo $(DIST)/*.whl)
	$(DIST)/env/bin/python tests/package/smoke.py core
	$(INSTALL) "$$(echo $(DIST)/*.whl)[torch]"
	$(DIST)/env/bin/python tests/package/smoke.py torch
	$(INSTALL) "$$(echo $(DIST)/*.whl)[client,serve]"
	$(DIST)/env/bin/python tests/package/smoke.py serve
	$(BIN)/python tests/package/typing_completeness.py $(DIST)/env/bin

databases: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[databases]'
	$(BIN)/pytest -q -m databases tests/databases

docs: .venv/ready
	$(BIN)/mkdocs build --strict

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/gallery.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/vectors.py
	$(BIN)/python benchmarks/decisions.py --only 'promise, simulated'
	$(BIN)/python benchmarks/decider.py
	$(BIN)/python benchmarks/drift.py
	$(BIN)/python benchmarks/tables.py

# The demo needs less than the tests: it does not wait for their tools.
.venv/demo: pyproject.toml constraints.txt
	$(NEW_ENOUGH)
	test -d .venv/bin || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[serve]'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(NEW_ENOUGH)
	test -d .venv/bin || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
