# make demo: see what it is for. make test: everything a change must pass. make check: its quick part. make bench: the measurements.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format bench clean


demo: .venv/ready
	$(BIN)/surefind demo --out build/demo.html

test: check
	$(BIN)/pytest -q -n auto --dist loadgroup

check: .venv/ready
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
	$(BIN)/python benchmarks/tables.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "surefind needs Python 3.11 or newer; this is %d.%d. Name another one: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
