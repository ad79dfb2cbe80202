# `make demo` and `make test` do all the set-up they need. Variables: PYTHON, ARGS of the demo, TESTS to run,
# WORKERS that run them.

PYTHON ?= python3
TESTS ?= tests
ARGS ?=

# Most tests wait for processes and servers: three at a time keep two cores busy. Status 5 is pytest's for a TESTS that
# has none of the kind.
WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: venv servers demo test lint bench clean
.DEFAULT_GOAL := test

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

# Prometheus and Alertmanager, from Debian's packages only if they are missing and we may.
servers:
	@missing=""; \
	for tool in prometheus promtool amtool; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	command -v prometheus-alertmanager >/dev/null || command -v alertmanager >/dev/null || missing="$$missing alertmanager"; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager; \
	else \
		echo "make: missing$$missing: apt-get install prometheus prometheus-alertmanager, or put them on PATH" >&2; exit 1; \
	fi

demo: venv servers
	@$(BIN)/rank-exporter demo $(ARGS)

test: lint servers
	$(BIN)/python -m pytest -m alone $(TESTS) || [ $$? = 5 ]
	$(BIN)/python -m pytest -m "not alone" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS) || [ $$? = 5 ]

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	$(BIN)/python tests/bench/recorder.py
	$(BIN)/python tests/bench/scraping.py
	$(BIN)/python tests/bench/alignment.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
