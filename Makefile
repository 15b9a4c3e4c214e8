# mpc-vote: everything starts from here.
#   make demo     set up, then run the demonstration   (options: make demo ARGS="--help")
#   make test     set up, then lint, types, layers, stubs, links, tests  (options: make test ARGS="-k ring")
#   make help     the rest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error GNU make 3.82 or newer is needed; on macOS: brew install make, then call it as gmake)
endif

VENV := .venv
BIN := $(VENV)/bin

# A Python to build the environment with; found by itself when left empty.
PYTHON ?=
# Where CPU builds of torch live. Asked only if it answers: without it, pip's own indexes decide.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=
# Tests mostly wait: one worker for each core, within reason for memory. WORKERS=0 is one process.
WORKERS ?= logical --maxprocesses 4

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/python -m pip install -qq --progress-bar off --no-warn-conflicts --no-deps
LOCKS := requirements.lock requirements-dev.lock

VENV_READY := $(VENV)/.ready-python
LOCK_READY := $(VENV)/.ready-packages
TORCH_READY := $(VENV)/.ready-torch
PROJECT_READY := $(VENV)/.ready-project

.PHONY: help setup demo test test-all test-containers test-package check docs lock sbom protos clean

help:
	@echo "make setup    build $(VENV) with the pinned packages (done once, redone when they change)"
	@echo "make demo     run the demonstration; options go in ARGS=\"...\""
	@echo "make test     make check, then the tests but the long ones; pytest's options go in ARGS=\"...\""
	@echo "make test-all make check, all tests, and the wheel's; only containers are left out"
	@echo "make test-containers  the federation in containers, on a real Docker engine"
	@echo "make check    lint, format, types, layers, fresh stubs, links, known vulnerabilities"
	@echo "make docs     build the documentation, with the API reference, into build/site"
	@echo "make test-package  build the wheel and install it from pip's index, with and without extras"
	@echo "make lock     fetch anew the hashes of the versions in $(LOCKS)"
	@echo "make sbom     print the bill of materials of the image mpc-vote:local"
	@echo "make protos   regenerate mpc_vote/proto from protos/"
	@echo "make clean    remove $(VENV) and every cache"

setup: $(PROJECT_READY)

demo: setup
	@$(BIN)/mpc-vote demo $(ARGS)

test: check
	@echo "==> tests"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-all: check
	@echo "==> tests, the long ones too"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
	    -m "not container and not package" $(ARGS)
	$(MAKE) --no-print-directory test-package ARGS='-m "package and not slow"'

test-containers: setup
	@echo "==> container tests (they build the image and need a Docker engine with compose)"
	docker compose version
	$(BIN)/python -m pytest -m container tests/system/containers $(ARGS)

test-package: setup
	@echo "==> the wheel, installed into clean environments (this asks pip's index)"
	$(BIN)/python -m pytest -m package tests/system/packaging $(ARGS)

check: setup
	@echo "==> lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/Dockerfile
	echo "==> types"
	$(BIN)/mypy --strict
	echo "==> layers"
	$(BIN)/lint-imports --no-logo
	echo "==> generated stubs"
	$(BIN)/python protos/generate.py --check
	echo "==> figures of the docs"
	$(BIN)/python tools/experiment_summary.py --check
	echo "==> links"
	$(BIN)/python -m pytest -q tests/unit/project/test_links.py
	$(MAKE) --no-print-directory docs
	echo "==> known vulnerabilities"
	$(BIN)/python tools/audit.py $(LOCKS) torch.lock

# A warning ends the build: a link or an anchor that leads nowhere, a name that is not there. Nothing is
# kept from the build before, whose warnings would not come again.
docs: setup
	@echo "==> documentation"
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -E -a -W --keep-going -q -d build/doctrees docs build/site
	echo "    build/site/index.html"

# Versions stay: to change one, change it in the lock first. Not after setup, which would refuse it.
lock: $(VENV_READY)
	@[[ -x $(BIN)/uv ]] || $(PIP) --require-hashes -r <(sed -n '/^uv==/,/[^\]$$/p' requirements-dev.lock)
	for lock in $(LOCKS); do
	    { sed '/^[^#]/,$$d' $$lock
	      sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' $$lock | $(BIN)/uv pip compile -q --no-config --no-deps \
	          --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	          --default-index https://pypi.org/simple -
	    } > $$lock.new
	    mv $$lock.new $$lock
	done

sbom:
	@docker run --rm --network none --entrypoint cat mpc-vote:local /usr/share/sbom/mpc-vote.cdx.json

protos: setup
	@$(BIN)/python protos/generate.py

clean:
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
	    .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	echo "Removed $(VENV) and the caches."

# The environment, in four steps, each with a stamp in it: what is done is not done again.

$(VENV_READY):
	@candidates="$(or $(PYTHON),python3.11 python3.12 python3.13 python3)"
	found=
	for candidate in $$candidates; do
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	            >/dev/null 2>&1; then
	        found="$$candidate"
	        break
	    fi
	done
	if [[ -z "$$found" ]]; then
	    {
	        echo "No Python 3.11 or newer with its venv module was found (tried: $$candidates)."
	        echo "Install one (Debian, Ubuntu: apt install python3.11 python3.11-venv) or name yours:"
	        echo "    make setup PYTHON=/path/to/python3.11"
	    } >&2
	    exit 1
	fi
	echo "==> setup 1/4: $(VENV) with $$("$$found" --version)"
	"$$found" -m venv $(VENV)
	touch $@

$(LOCK_READY): $(VENV_READY) $(LOCKS)
	@echo "==> setup 2/4: $$(cat $(LOCKS) | grep -c ==) pinned packages (a minute or two)"
	$(PIP) --require-hashes $(LOCKS:%=-r %)
	touch $@

$(TORCH_READY): $(LOCK_READY) torch.lock
	@index=
	if $(BIN)/python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=5)' \
	        "$(TORCH_INDEX)/torch/" >/dev/null 2>&1; then
	    index="--extra-index-url $(TORCH_INDEX)"
	    echo "==> setup 3/4: torch (CPU build from $(TORCH_INDEX))"
	else
	    echo "==> setup 3/4: torch (from pip's own sources; $(TORCH_INDEX) does not answer)"
	fi
	$(PIP) --require-hashes $$index -r torch.lock
	touch $@

$(PROJECT_READY): $(TORCH_READY) pyproject.toml
	@echo "==> setup 4/4: mpc-vote itself"
	$(PIP) --no-build-isolation --editable .
	$(BIN)/python -c 'from mpc_vote.compat import versions; print("    loaded:", versions())'
	touch $@
	echo "    ready: $(BIN)/mpc-vote"
