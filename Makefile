# Commands for people and for CI. Every target does its own set-up: `make quickstart` and
# `make test` work in a fresh clone. What set-up does is at the top of scripts/setup.sh.

SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin

# Passed on to `armillary quickstart`, e.g. ARGS="--seed 7".
ARGS ?=
# Files stay on one worker each, so that what a file prepares is prepared once.
PYTEST_ARGS ?= -n auto --dist loadfile

.PHONY: help setup setup-test quickstart test test-full lint bench lock clean

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## install everything into this folder; then .venv/bin/armillary works
	@sh scripts/setup.sh

setup-test: setup ## set-up, plus the agent environments that only tests use
	@sh scripts/setup.sh harness harbor

quickstart: setup ## train a tiny tool-using model, end to end; ARGS="--seed 7"
	@sh scripts/setup.sh sandbox
	@$(BIN)/armillary quickstart $(ARGS)

test: setup-test lint ## what CI runs: lint and all tests that are not slow
	$(BIN)/pytest -m "not slow" $(PYTEST_ARGS)

test-full: setup-test lint ## every test, the slow ones too
	$(BIN)/pytest $(PYTEST_ARGS)

lint: setup ## ruff, pyright and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: setup ## all benchmarks; each prints one JSON object as its last line
	@for script in bench/*.py; do \
		echo "== $$script"; $(BIN)/python "$$script" --json || exit 1; \
	done

lock: setup ## bring locks/*.txt up to date with pyproject.toml
	@sh scripts/lock.sh

clean: ## remove what was built or cached here; runs/ stays
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
