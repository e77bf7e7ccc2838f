# `make demo` and `make test` do all the set-up: a virtual environment in .venv, made once.
#   make demo PYTHON=python3.12        another Python
#   make test PYTEST_ARGS="-k split"   more words for pytest
#   make test PYTEST_ARGS="-n 0"       one test at a time

PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
PYTEST_ARGS ?=
DEMO_ARGS ?=

RUN := $(VENV)/bin/python
STAMP := $(VENV)/.made

# Several tests at a time, where pytest-xdist is installed.
PARALLEL = $(shell $(RUN) -c "import xdist" 2>/dev/null && echo "-n auto --dist worksteal")

.PHONY: help demo test test-all test-oldest docs lint ruff mypy clean

help:
	@echo "make demo      the whole job on a small suite; ends by naming the files to open"
	@echo "make test      the tests that find most mistakes: 3 to 5 minutes on two cores"
	@echo "make test-all  all tests that need no GPU: 14 to 30 minutes on two cores"
	@echo "make test-oldest  compiled calls and transforms on torch 2.10 (downloads 3 GB once)"
	@echo "make docs      the documentation site, into site/, strictly"
	@echo "make lint      ruff, and mypy where the public interface is"
	@echo "make clean     remove $(VENV) and what the tools leave behind"

demo: $(STAMP)
	$(RUN) -m tritongemm demo $(DEMO_ARGS)

test: $(STAMP)
	$(RUN) -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-all: $(STAMP)
	$(RUN) -m pytest $(PARALLEL) --thorough $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.made
	$(OLDEST)/bin/python -m pytest tests/integration tests/ops $(PYTEST_ARGS)

# PyPI has torch 2.10 for Linux with CUDA only; it runs without a GPU. Triton 3.6, which belongs to
# it, does not interpret with numpy 2.4.
$(OLDEST)/.made:
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/pip install --quiet "torch==2.10.*" "numpy<2.4" pandas filelock platformdirs \
	    rich pytest hypothesis expecttest
	touch $@

docs: $(STAMP)
	@$(RUN) -c "import mkdocs, material, mkdocstrings" || \
	    { echo "the site needs the packages of the extra [docs] (setup.cfg)"; exit 1; }
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

lint: ruff mypy

ruff: $(STAMP)
	$(RUN) -m ruff check .

mypy: $(STAMP)
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache

$(STAMP): .ci/environment.py .ci/locked.txt setup.cfg pyproject.toml constraints.txt
	$(PYTHON) .ci/environment.py $(VENV)
	touch $@
