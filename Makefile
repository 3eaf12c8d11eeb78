# `make demo` and `make test` set up everything they need in $(VENV) and run; nothing else has to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CONSTRAINTS = training/constraints.txt
TORCH = $(shell sed -n 's/^torch==//p' $(CONSTRAINTS))
# Small models gain nothing from waiting threads; more than one slows a busy machine down.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo test test-slow lint typecheck clean

setup: $(VENV)/installed

# On a machine without an NVIDIA GPU the CPU build of torch is asked for first. pip finds it where its configuration
# names PyTorch's CPU wheels (see "Installation" in the README); elsewhere pip's default build is taken.
$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	command -v nvidia-smi > /dev/null || $(BIN)/python -m pip install --quiet "torch==$(TORCH)+cpu" \
		|| echo "pip found no CPU build of torch $(TORCH); taking the default build"
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[train,plot,sparse,demo,test]"
	touch $@

demo: setup
	$(BIN)/python -m training.demo

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m "slow or not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist runs *.egg-info
