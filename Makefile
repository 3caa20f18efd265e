# Every target sets up what it needs in .venv; a fresh clone, make, git and Python 3.11 to 3.13 are enough.
# pip's own environment variables (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...) decide where packages come from.

# The first Python here that will do, else the one whose refusal is shown.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python requirements/supported.py >/dev/null 2>&1 && echo $$python && exit; done; echo python3)
# The GPU stack where a GPU answers, else the CPU stack. Override: make test STACK=cpu
STACK ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)
STACK := $(STACK)
# Where PyTorch publishes its builds without CUDA. Where it does not answer, pip's own settings decide.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := .venv/bin
READY := .venv/.stamp-$(STACK)
# With what vLLM's Python imports as well, for the rung `source`. The GPU stack has it all, by vLLM itself.
SOURCE := $(if $(filter cpu,$(STACK)),.venv/.stamp-source,$(READY))
UV := uv==0.13.8
MUTATION := cosmic-ray==8.7.0
TOOLS := cyclonedx-bom==7.5.0 pip-audit==2.10.1
COMPILE = $(BIN)/uv pip compile pyproject.toml --extra lab --extra site --extra test --annotation-style line \
	--python-version 3.11 --custom-compile-command 'make pins' --quiet
# One file for Linux and macOS, x86-64 and arm64, Python 3.11 to 3.13. vLLM's wheels, so the GPU stack, are for Linux.
# conda's environment takes those of the GPU stack beside this clone, for which pip would want a hash as well.
ANYWHERE := --universal --fork-strategy fewest --generate-hashes
PLATFORMS := x86_64-manylinux_2_31 aarch64-manylinux_2_31 aarch64-apple-darwin
export MACOSX_DEPLOYMENT_TARGET ?= 14.0
# Tests start hundreds of processes: what they import, vLLM above all, is compiled once and not by each.
export PYTHONDONTWRITEBYTECODE :=

# Two processes, each with one thread of torch's; what lies in one file, a notebook above all, stays together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile
TESTS := $(PYTEST) -p no:nbval
FAST := $(addprefix tests/,test_crash.py test_libtriton.py test_limits.py test_links.py test_looks.py test_named.py \
	test_progress.py test_project.py test_quiz.py test_results.py test_setup.py test_show.py test_walkthroughs.py \
	graphs/test_contract.py)

# One stage of a set-up: $(1) is said, what $(2) prints goes to the log, whose end is shown if it fails.
LOG := out/setup.log
stage = @echo "  $(1)"; mkdir -p out; { $(2); } >>$(LOG) 2>&1 || \
	{ tail -n 30 $(LOG); echo "Stopped at: $(1). All of it: $(LOG)"; exit 1; }
SIZE := 0.6 GB to download and 2.3 GB of disk
ifeq ($(shell uname),Darwin)
SIZE := 0.5 GB to download and 1.3 GB of disk
endif
ifeq ($(STACK),gpu)
SIZE := several GB to download and 15 GB of disk
endif

define REFUSE
@command -v $(PYTHON) >/dev/null || { echo "mrv2lab needs Python 3.11, 3.12 or 3.13: no $(PYTHON) here." >&2; exit 1; }
@$(PYTHON) requirements/supported.py
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup reproduce check test slow fuzz faults soak costs lab site pdf assignments source notebooks mutants links pins pins-check sbom advisories format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(READY) ## install what the workbook needs into .venv, and nothing anywhere else
	@echo "Ready: make lab opens the workbook, make reproduce runs every case."

reproduce: $(READY) ## run every case on the best rung here and write out/report.html
	$(BIN)/mrv2lab run --all --report out/report.html
	@echo "Next: open out/report.html, or make lab for the workbook."

check: $(READY) ## lint, types and the quick tests, in about 90 s on two cores
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(TESTS) $(FAST)

# The browser is looked for first: the tests that need it come last, and a run takes a while.
test: $(SOURCE) ## run all that CI runs: ruff, mypy, the tests, the notebooks, vLLM's own classes, a browser
	@mkdir -p out
	$(BIN)/python tests/browser/get_chromium.py >out/chromium
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(TESTS) -m 'not live and not browser and not slow'
	$(PYTEST) --nbval notebooks/
	MRV2LAB_CHROMIUM="$$(cat out/chromium)" $(TESTS) -m browser

slow: $(SOURCE) ## more of what the tests show, and every verdict as without Triton's native library
	$(TESTS) -m slow

fuzz: $(READY) ## random programs, NUM=2000 of them, and audits of some with a fault and without, for docs/reliability.md
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.random_programs data/fuzz-$(if $(filter gpu,$(STACK)),cuda,cpu).json \
		$(or $(NUM),2000) 2>out/fuzz.log
	$(BIN)/python tests/faults/page.py

faults: $(SOURCE) ## provoke faults, see what is told and left, and write docs/reliability.md; on a GPU those of a GPU
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/faults --deselect tests/faults/test_page.py --ignore tests/faults/test_engine.py \
		-m "$(if $(filter gpu,$(STACK)),gpu,not gpu)" --faults data/faults-$(if $(filter gpu,$(STACK)),cuda,cpu).json
	$(if $(filter gpu,$(STACK)),OMP_NUM_THREADS=1 $(BIN)/pytest tests/faults/test_engine.py -m gpu --faults data/faults-vllm.json)
	$(BIN)/python tests/faults/page.py

soak: $(READY) ## the same some thousand times in one process, which must not grow (five to ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/soak.py data/soak-$(if $(filter gpu,$(STACK)),cuda,cpu).json
	$(BIN)/python tests/faults/page.py

costs: $(READY) ## count anew what each case (or NAME=case) captures and its step does: nodes, launches, bytes
	MRV2LAB_COSTS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/cases/test_costs.py $(if $(NAME),-k $(NAME))

source: $(SOURCE) ## set up for vLLM's own classes: mrv2lab run --rung source, mrv2lab history
	@echo "Ready: mrv2lab run --rung source and mrv2lab history run vLLM's own classes."

# JupyterLab shows no SVG of a notebook that was not run here, unless told that it may, and errors for panels of a
# kernel that is gone, unless their state is saved. In a container root is often
# the only user there is, and Jupyter refuses root unless told.
lab: $(READY) ## open the workbook in JupyterLab (LAB_FLAGS=--no-browser over ssh)
	@ls notebooks/00_start_here.ipynb >/dev/null 2>&1 || \
		{ echo "No notebooks/00_start_here.ipynb here: git restore notebooks brings it back." >&2; exit 1; }
	$(BIN)/jupyter trust notebooks/*.ipynb >/dev/null
	@mkdir -p .venv/share/jupyter/lab/settings
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},' \
		'"@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": true}}' \
		>.venv/share/jupyter/lab/settings/overrides.json  # it would ask first, over the workbook
	$(BIN)/python -P site/lab.py $(if $(filter 0,$(shell id -u)),--allow-root) \
		$(if $(findstring --ip,$(LAB_FLAGS)),,--ip=127.0.0.1) --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_FLAGS)

site: $(READY) ## write static pages of the README and the notebooks as they are stored: out/site/index.html
	$(BIN)/sphinx-build -E -W --keep-going -q -c site -d out/site-doctrees . out/site

pdf: $(READY) ## write the same pages as one to print: out/mrv2lab.pdf
	@mkdir -p out
	$(BIN)/python tests/browser/get_chromium.py >out/chromium
	$(BIN)/sphinx-build --keep-going -q -b singlehtml -D html_theme=basic -c site -d out/pdf-doctrees . out/pdf
	"$$(cat out/chromium)" --headless --no-sandbox --disable-gpu --no-pdf-header-footer \
		--print-to-pdf=out/mrv2lab.pdf "file://$(CURDIR)/out/pdf/README.html"

assignments: $(READY) ## write the exercises for otter-grader, a folder for each case, below out/assignments
	$(BIN)/python site/assignments.py out/assignments

# Widget state and cell times change with every run and nobody reads them: they would only fill the diff.
notebooks: $(READY) ## run all notebooks again, in place; NB=12_lora_short_circuit runs one
	MRV2LAB_PROGRESS="$(CURDIR)/out/progress.json" $(BIN)/jupyter nbconvert --to notebook --execute --inplace \
		--ExecutePreprocessor.store_widget_state=False --ExecutePreprocessor.record_timing=False notebooks/$(or $(NB),*).ipynb
	$(BIN)/python site/stored.py

mutants: $(READY) ## change 300 lines, one at a time, and see which changes no test notices (about two hours)
	$(BIN)/pip install $(MUTATION)
	$(BIN)/python tests/mutation

links: $(READY) ## set the links between the pages anew, and the numbers that they quote from records
	$(BIN)/python site/links.py
	$(BIN)/python site/quoted.py

format: $(READY) ## fix what ruff can fix
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

# Pins still allowed are kept; to renew them all, remove the files first.
pins: ## compile requirements/*.txt from pyproject.toml
	$(REFUSE)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(UV)
	$(COMPILE) $(ANYWHERE) --extra cpu --output-file requirements/cpu.txt
	$(COMPILE) --python-platform x86_64-manylinux_2_31 --extra gpu --extra source --output-file requirements/gpu.txt
	$(COMPILE) $(ANYWHERE) --extra cpu --extra source --constraint requirements/cpu.txt \
		--output-file requirements/cpu-source.txt

pins-check: ## ask the package index for a wheel of each CPU pin, for each platform and Python
	$(REFUSE)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(UV)
	@set -e; for platform in $(PLATFORMS); do for python in 3.11 3.12 3.13; do echo "$$platform, Python $$python"; \
		$(BIN)/uv pip compile requirements/cpu-source.txt --only-binary :all: --quiet \
		--python-platform $$platform --python-version $$python >/dev/null; done; done

sbom: ## list the parts of the CPU stack, with vLLM's needs, as CycloneDX: out/sbom.json
	@mkdir -p out; $(PYTHON) -m venv out/tools; out/tools/bin/pip install --quiet $(TOOLS)
	out/tools/bin/cyclonedx-py requirements requirements/cpu-source.txt --output-file out/sbom.json

advisories: sbom ## ask the package index which of them has known faults; fails where it does not answer
	out/tools/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements/cpu-source.txt

clean: ## remove .venv, out/ and caches
	rm -rf .venv out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# .venv holds one stack at a time, so a set-up first takes all stamps away: one that is interrupted is not ready.
$(READY): pyproject.toml requirements/$(STACK).txt
	$(REFUSE)
	@rm -f .venv/.stamp-*
	@mkdir -p out; date >$(LOG); echo "Setting up the $(STACK) stack: about $(SIZE); log: $(LOG)"
	$(call stage,a Python environment in .venv,$(PYTHON) -m venv .venv)
	@cp requirements/$(STACK).txt out/pins.txt
ifeq ($(STACK)-$(shell uname),cpu-Linux)
	$(call stage,PyTorch without CUDA from $(TORCH_INDEX),$(BIN)/pip install --no-deps --retries 0 --timeout 20 \
		--index-url $(TORCH_INDEX) "$$(grep -o '^torch==[^ ]*' requirements/cpu.txt)" || touch out/no-torch)
	@if rm out/no-torch 2>/dev/null; then echo "  ... does not answer, so torch comes from where pip looks: on x86-64" \
		"that may be the build with CUDA, some 3 GB"; sed -i '/^torch==/,/# via/d' out/pins.txt; fi
endif
	$(call stage,all of requirements/$(STACK).txt,$(BIN)/pip install $(if $(filter cpu,$(STACK)),--no-deps) -r out/pins.txt && \
		{ grep -q '^torch==' out/pins.txt || $(BIN)/pip install "$$(grep -o '^torch==[^ ]*' requirements/cpu.txt)"; })
	$(call stage,mrv2lab itself,$(BIN)/pip install --no-deps -e .)
ifneq ($(shell uname),Linux)
	$(call stage,what is Python in Triton,$(BIN)/python -m mrv2lab.triton_python)
endif
	@touch $@

.venv/.stamp-source: $(READY) requirements/cpu-source.txt
	$(call stage,what vLLM's Python imports: about 0.1 GB to download,$(BIN)/pip install --no-deps -r requirements/cpu-source.txt)
	@touch $@
