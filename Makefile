# Every target sets up what it needs in .venv; a fresh clone, make, git and Python 3.11 or 3.12 are enough.
# pip's own environment variables (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) decide where packages come from.

PYTHON ?= python3
# The GPU stack where a GPU answers, else the CPU stack. Override: make test STACK=cpu
STACK ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)
STACK := $(STACK)

BIN := .venv/bin
READY := .venv/.stamp-$(STACK)
# With what vLLM's Python imports as well, for the rung `source`. The GPU stack has it all, by vLLM itself.
SOURCE := $(if $(filter cpu,$(STACK)),.venv/.stamp-source,$(READY))
UV := uv==0.13.8
MUTATION := cosmic-ray==8.7.0
# 3.11 pins also install on 3.12. The platform is named so that any machine compiles the same pins.
COMPILE = $(BIN)/uv pip compile pyproject.toml --extra lab --extra site --extra test --annotation-style line \
	--python-version 3.11 --python-platform x86_64-manylinux_2_31 --custom-compile-command 'make pins' --quiet

# Two processes, each with one thread of torch's; what lies in one file, a notebook above all, stays together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

define VENV
@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 12) or sys.exit( \
	"mrv2lab needs Python 3.11 or 3.12, but $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 ..." % v)'
$(PYTHON) -m venv .venv
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce test lab site source notebooks mutants links pins format clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

reproduce: $(READY) ## run every case on the best rung here and write out/report.html
	$(BIN)/mrv2lab run --all --report out/report.html

test: $(SOURCE) ## run all that CI runs: ruff, mypy, the tests, the notebooks, vLLM's own classes, a browser
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST)
	$(PYTEST) --nbval notebooks/
	$(PYTEST) -m source
	$(PYTEST) -m browser

source: $(SOURCE) ## set up for vLLM's own classes: mrv2lab run --rung source, mrv2lab history

# In a container root is often the only user there is, and Jupyter refuses root unless told.
lab: $(READY) ## open the workbook in JupyterLab (LAB_FLAGS=--no-browser over ssh)
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_FLAGS)

site: $(READY) ## write static pages of the README and the notebooks as they are stored: out/site/index.html
	$(BIN)/sphinx-build -W --keep-going -q -c site -d out/site-doctrees . out/site

# Widget state and cell times change with every run and nobody reads them: they would only fill the diff.
notebooks: $(READY) ## run all notebooks again, in place
	MRV2LAB_PROGRESS=$(CURDIR)/out/progress.json $(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.store_widget_state=False \
		--ExecutePreprocessor.record_timing=False notebooks/*.ipynb

mutants: $(READY) ## change 300 lines, one at a time, and see which changes no test notices (about two hours)
	$(BIN)/pip install $(MUTATION)
	$(BIN)/python tests/mutation

links: $(READY) ## set the links between the pages anew, and the numbers that they quote from records
	$(BIN)/python -m mrv2lab.links
	$(BIN)/python -m mrv2lab.quoted

format: $(READY) ## fix what ruff can fix
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

# Pins still allowed are kept; to renew them all, remove the files first.
pins: ## compile requirements/*.txt from pyproject.toml
	$(VENV)
	$(BIN)/pip install $(UV)
	$(COMPILE) --extra cpu --output-file requirements/cpu.txt
	$(COMPILE) --extra gpu --extra source --output-file requirements/gpu.txt
	$(COMPILE) --extra cpu --extra source --constraint requirements/cpu.txt \
		--output-file requirements/cpu-source.txt

clean: ## remove .venv, out/ and caches
	rm -rf .venv out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# .venv holds one stack at a time, so a set-up takes the other one's stamp away.
$(READY): pyproject.toml requirements/$(STACK).txt
	$(VENV)
	$(BIN)/pip install -r requirements/$(STACK).txt
	$(BIN)/pip install --no-deps -e .
	@rm -f .venv/.stamp-*
	@touch $@

.venv/.stamp-source: $(READY) requirements/cpu-source.txt
	$(BIN)/pip install -r requirements/cpu-source.txt
	@touch $@
