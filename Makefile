# `make demo` and `make test` do all the set-up they need. Variables: PYTHON, ARGS of demo, backtest or preview,
# TESTS to run, WORKERS that run them.

PYTHON ?= python3
TESTS ?= tests
ARGS ?=

# Most tests wait for processes and servers: four at a time keep two cores busy. Status 5 is pytest's for a TESTS that
# has none of the kind.
WORKERS ?= 4

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Without compiled files each of hundreds of processes would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv servers engines demo test lint bench backtest dashboards dashboards-preview clean
.DEFAULT_GOAL := test

venv: $(INSTALLED)

# Of the thousands of files that pip would compile, one after the other, few are ever imported.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[test]'
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

# Another engine for the rules, likewise: only the tests need it.
engines:
	@command -v vmalert >/dev/null && command -v victoria-metrics >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends victoria-metrics; \
	else \
		echo "make: missing vmalert: apt-get install victoria-metrics, or put it and vmalert on PATH" >&2; exit 1; \
	fi

demo: venv servers
	@$(BIN)/rank-exporter demo $(ARGS)

test: lint servers engines
	$(BIN)/python -m pytest -m alone $(TESTS) || [ $$? = 5 ]
	$(BIN)/python -m pytest -m "not alone" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS) || [ $$? = 5 ]

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	$(BIN)/python tests/bench/recorder.py
	$(BIN)/python tests/bench/accounting.py
	$(BIN)/python tests/bench/no_code.py
	$(BIN)/python tests/bench/scraping.py
	$(BIN)/python tests/bench/alignment.py

# An hour; ARGS="--quick" takes minutes. See tests/bench/backtest.py.
backtest: venv servers
	@$(BIN)/python -m tests.bench.backtest $(ARGS)

# Writes grafana/dashboards anew from grafana/source.
dashboards: venv
	cd grafana && ../$(BIN)/python -m source

# Pictures of all dashboards in grafana/preview/screenshots. Needs Node 20 and npm, and Chromium (BROWSER=, or Debian's).
dashboards-preview: venv servers
	cd grafana/preview && npm ci && npm run build
	$(BIN)/python -m grafana.preview.preview $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	rm -rf grafana/preview/node_modules grafana/preview/dist grafana/preview/screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
