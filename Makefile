# SPDX-License-Identifier: BSD-3-Clause
# `make test`, `make demo` and `make lab` include the set-up: Debian packages, .venv, Node packages, C libraries. Each step
# of it prints one line; `make V=1 ...` shows everything.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := $(CURDIR)/.venv
STAMPS := .venv/.stamps
export PATH := $(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
# Otherwise, each of the hundreds of processes that the tests start would compile our sources again.
export PYTHONDONTWRITEBYTECODE :=
# Playwright uses the system's Chromium.
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD := 1
# jlpm (yarn) must not ask questions, send telemetry or draw progress bars.
export YARN_ENABLE_TELEMETRY := 0
export YARN_ENABLE_PROGRESS_BARS := 0
export COREPACK_ENABLE_DOWNLOAD_PROMPT := 0

# One build makes the JupyterLab extension and the Hub page, which share sources.
LABEXTENSION := jupyter_gpushare/labextension/package.json
HUB_PAGE := hub/static/page.js
LABEXTENSION_SOURCES := $(shell find labextension hub/page -path '*/node_modules' -prune -o -path labextension/lib -prune \
    -o -path labextension/.yarn -prune -o -type f -not -name '*.tsbuildinfo' -print)
C_SOURCES = $(shell git ls-files 'csrc/*.[ch]' 'tests/*.[ch]' 2>/dev/null)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

## Set-up

.PHONY: packages packages-test packages-acceptance
packages:
	@tools/setup-debian build
packages-test: | packages
	@tools/setup-debian test
packages-acceptance: | packages
	@tools/setup-debian acceptance

$(STAMPS)/venv: requirements/test.txt tools/setup-venv tools/setup-node | packages
	@tools/setup-venv .venv $<
	@tools/setup-node
	@mkdir -p $(@D) && touch $@

$(STAMPS)/node: labextension/package.json labextension/yarn.lock $(STAMPS)/venv
	@tools/step "Installing the packages of the JupyterLab extension" env -C labextension jlpm install --immutable
	@touch $@

# JupyterHub's proxy, for its tests.
$(STAMPS)/proxy: tests/hub/package.json tests/hub/yarn.lock $(STAMPS)/venv
	@tools/step "Installing the JupyterHub proxy" env -C tests/hub jlpm install --immutable
	@touch $@

$(LABEXTENSION) $(HUB_PAGE) &: $(LABEXTENSION_SOURCES) $(STAMPS)/node
	@tools/step "Building the JupyterLab extension" env -C labextension jlpm build:prod
	@touch $(LABEXTENSION) $(HUB_PAGE)

# The libraries come first, because the installation compiles them, too.
$(STAMPS)/installed: pyproject.toml hatch_build.py csrc/protocol.h csrc/pool.h csrc/pool_directory.h csrc/pool_care.h csrc/pool_disk.h scheduler/protocol/build.py $(LABEXTENSION) $(HUB_PAGE) $(STAMPS)/venv | libraries
	@SKIP_JUPYTER_BUILDER=1 tools/step "Installing jupyter-gpushare into .venv" \
	    python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Separate environments: one with the lowest version of every dependency that pyproject.toml declares, the others with the other
# software of the acceptance tests. The main environment builds the wheel for them, because they lack the build requirements.
# Enterprise Gateway has one of its own, without the wheel: it needs a jupyter_client that is too old for jupyter-gpushare.
LOWER_BOUNDS := build/lower-bounds
ACCEPTANCE := build/acceptance
FRONT_ENDS := build/front-ends
ENTERPRISE_GATEWAY := build/enterprise-gateway
$(LOWER_BOUNDS)/venv $(ACCEPTANCE)/venv $(FRONT_ENDS)/venv: build/%/venv: requirements/%.txt tools/setup-venv | packages
	@rm -rf $(@D)
	@tools/setup-venv $(@D) $<
	@touch $@

# Its pyzmq is not built for the newest versions of Python.
$(ENTERPRISE_GATEWAY)/venv: requirements/enterprise-gateway.txt tools/setup-venv | packages
	@rm -rf $(@D)
	@tools/setup-venv $(@D) $< || { rm -rf $(@D); echo "Skipping the test of Enterprise Gateway." >&2; }
	@mkdir -p $(@D) && touch $@

$(LOWER_BOUNDS)/stamp $(ACCEPTANCE)/stamp $(FRONT_ENDS)/stamp: build/%/stamp: build/%/venv $(STAMPS)/installed
	@rm -f $(@D)/*.whl
	SKIP_JUPYTER_BUILDER=1 python -c '__import__("hatchling.build").build.build_editable("$(@D)")' >/dev/null
	$(@D)/bin/python -m pip install --quiet --no-deps --force-reinstall $(@D)/*.whl
	@touch $@

.PHONY: libraries labextension setup
# Not $(MAKE): --output-sync does not hold back the lines of a recursive make, which would mix with those of other targets.
libraries: $(STAMPS)/venv
	@tools/step "Compiling the C libraries" env -u MAKEFLAGS make --silent -j2 -C csrc PYTHON=$(VENV)/bin/python
labextension: $(LABEXTENSION) $(HUB_PAGE) ## build the JupyterLab extension and the Hub page
setup: $(STAMPS)/installed ## install everything into .venv

## Use

.PHONY: demo lab
demo: setup ## run two notebooks on one GPU, and check the results
	@gpushare demo --run
lab: setup ## open the demo's notebooks in JupyterLab
	@gpushare demo

## Check

# A command that ends the tests in time. Targets with a time limit set it.
BOUND :=
# The tests start make, too, which must not take part in this make's jobs.
PYTEST = env -u MAKEFLAGS $(BOUND) python -m pytest -q --durations=15
# Tests wait about half of the time, so there are three workers for each of the two cores of continuous integration. All
# tests of a file run in one worker, because they share servers.
WORKERS := 6
PYTEST_PARALLEL = $(PYTEST) --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
# Compiles the tests once, with pytest's assertions. Otherwise, each of the workers, which start at the same time, would
# compile all of them.
COLLECT := env -u MAKEFLAGS python -m pytest -q --collect-only

.PHONY: test test-labextension test-python test-lower-bounds acceptance test-slow screenshots lint lint-labextension format
# The set-up is part of the parallel run: while one core installs and builds what pytest needs, the other runs the targets
# that need less. The lines of a step appear when it has ended.
test: ## run all checks, and all tests except the slow ones
	@$(MAKE) --jobs=2 --output-sync=target PACKAGES=packages-test test-python test-lower-bounds lint test-labextension
# Only `make test` installs the Debian packages without which some tests are skipped.
PACKAGES :=

test-labextension: $(STAMPS)/node ## run the tests of the JupyterLab extension
	cd labextension && jlpm test

test-python: setup $(STAMPS)/proxy $(PACKAGES) ## run pytest, without the slow tests
	@tools/step "Collecting the tests" $(COLLECT) $(TESTS)
	$(PYTEST_PARALLEL) $(TESTS)

TESTS = -m "not slow" --ignore=tests/lower_bounds --ignore=$(OLDEST_JUPYTERLAB)
# Its server runs in the environment below, and its browser is driven from .venv.
OLDEST_JUPYTERLAB := tests/labextension/test_oldest_jupyterlab.py

test-lower-bounds: setup $(LOWER_BOUNDS)/stamp $(PACKAGES) ## run some tests with the lowest declared version of every dependency
	env -u MAKEFLAGS PATH="$(CURDIR)/$(LOWER_BOUNDS)/bin:$(PATH)" $(BOUND) python -m pytest -q -m "not slow" \
	    tests/lower_bounds tests/scheduler/test_protocol.py tests/scheduler/test_control.py
	$(PYTEST) $(OLDEST_JUPYTERLAB)

# Limits in minutes, which include the set-up. At the limit, make interrupts pytest, which has a minute to stop what the tests
# started.
ACCEPTANCE_MINUTES := 29
SLOW_MINUTES := 119
STARTED := $(shell date +%s)
within = timeout --foreground --signal=INT --kill-after=60 \
    $$(left=$$(($(STARTED) + 60 * $(1) - $$(date +%s))); echo $$((left > 1 ? left : 1)))

# Tests that use the product as people install it. `make test-slow` runs the slow tests of the other folders.
ACCEPTANCE_TESTS := tests/acceptance tests/packaging tests/labextension/test_shared_documents.py

acceptance: BOUND = $(call within,$(ACCEPTANCE_MINUTES))
acceptance: packages-acceptance setup test-lower-bounds $(STAMPS)/proxy $(ACCEPTANCE)/stamp $(FRONT_ENDS)/stamp $(ENTERPRISE_GATEWAY)/venv ## test upgrades, attacks and other software with the installed product (30 minutes at most)
	$(PYTEST) $(ACCEPTANCE_TESTS)

test-slow: BOUND = $(call within,$(SLOW_MINUTES))
test-slow: packages-test setup $(STAMPS)/proxy ## run the slow tests: sanitizers, seeded defects, new property test examples (2 hours at most)
	$(PYTEST_PARALLEL) -m slow $(ACCEPTANCE_TESTS:%=--ignore=%)
	$(PYTEST_PARALLEL) -m "hypothesis and not slow" --hypothesis-profile=new-examples

screenshots: setup ## update the pictures and the animation in docs/images
	mkdir -p docs/images
	GPUSHARE_SCREENSHOTS=$(CURDIR)/docs/images python -m pytest -q tests/labextension tests/hub/test_service_page.py

lint: setup lint-labextension ## check style and types
	ruff check .
	ruff format --check .
	mypy
	mypy hatch_build.py $$(git ls-files 'tools/*.py')
	lint-imports --no-cache
	python tools/import_circles.py jupyter_gpushare
	for part in interposer sim hibernator fuzz; do python tools/c_circles.py csrc/$$part build/csrc/$$part || exit 1; done
	codespell $$(git ls-files)
	@echo clang-format --dry-run --Werror
	@clang-format --dry-run --Werror $(C_SOURCES)

lint-labextension: $(STAMPS)/node
	cd labextension && jlpm lint:check

format: $(STAMPS)/node ## format all sources
	ruff check --fix-only --quiet .
	ruff format --quiet .
	clang-format -i $(C_SOURCES)
	cd labextension && jlpm lint

## Package

.PHONY: docs build wheels lock clean
docs: setup ## build the documentation into build/docs/index.html
	python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

build: setup ## build the sdist and a wheel for this machine
	rm -rf dist jupyter_gpushare/labextension $(HUB_PAGE)
	python -m build --no-isolation

wheels: build ## build a wheel for aarch64 in addition
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then \
	    GPUSHARE_CC=aarch64-linux-gnu-gcc python -m build --no-isolation --wheel; \
	else \
	    echo "Skipped: the aarch64 wheel (no aarch64-linux-gnu-gcc; Debian: apt-get install gcc-aarch64-linux-gnu)"; \
	fi
	@ls -l dist

# The extras that `make test-lower-bounds` installs.
LOWEST := demo jupyterhub kubernetes plots pytest
COMPILE := uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links
lock: $(STAMPS)/venv ## update the pinned versions in requirements/
	python -m pip install --quiet uv
	$(COMPILE) --extra dev --output-file requirements/test.txt pyproject.toml
	$(COMPILE) --extra acceptance --output-file requirements/acceptance.txt pyproject.toml
	$(COMPILE) --extra front-ends --output-file requirements/front-ends.txt pyproject.toml
	echo 'jupyter-enterprise-gateway>=3.2' | $(COMPILE) --output-file requirements/enterprise-gateway.txt -
	$(COMPILE) --resolution lowest-direct $(LOWEST:%=--extra %) --output-file requirements/lower-bounds.txt pyproject.toml

clean: ## remove .venv and everything that was built
	rm -rf build dist .venv jupyter_gpushare/lib jupyter_gpushare/labextension jupyter_gpushare/_protocol*.so
	rm -rf $(HUB_PAGE) hub/static/third-party-licenses.json
	rm -rf labextension/lib labextension/node_modules labextension/.yarn labextension/*.tsbuildinfo
	rm -rf tests/hub/node_modules tests/hub/.yarn
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	if [ -f csrc/Makefile ]; then $(MAKE) -C csrc clean; fi
