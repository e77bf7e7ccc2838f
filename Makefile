# `make demo` and `make test` do all the set-up: a virtual environment in .venv, made once.
#   make demo PYTHON=python3.12        another Python
#   make test PYTEST_ARGS="-m slow"    more words for pytest

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
DEMO_ARGS ?=

RUN := $(VENV)/bin/python
STAMP := $(VENV)/.made

.PHONY: help demo test lint ruff mypy clean

help:
	@echo "make demo   the whole job on a small suite; ends by naming the files to open"
	@echo "make test   the tests"
	@echo "make lint   ruff, and mypy where the public interface is"
	@echo "make clean  remove $(VENV) and what the tools leave behind"

demo: $(STAMP)
	$(RUN) -m tritongemm demo $(DEMO_ARGS)

test: $(STAMP)
	$(RUN) -m pytest $(PYTEST_ARGS)

lint: ruff mypy

ruff: $(STAMP)
	$(RUN) -m ruff check .

mypy: $(STAMP)
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache

$(STAMP): .ci/environment.py setup.cfg pyproject.toml constraints.txt
	$(PYTHON) .ci/environment.py $(VENV)
	touch $@
