# make demo   set up, then learn from the built-in images
# make test   set up, then run the tests
# A machine without an NVIDIA GPU can do with a much smaller torch:
#   make demo TORCH_INDEX=URL     with the CPU index that pytorch.org/get-started names

PYTHON ?= python3
TORCH_INDEX ?=
BIN := .venv/bin

.PHONY: demo test check clean

demo: .venv/.ready
	$(BIN)/protonce demo --out protonce-demo

test: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 -m "not slow"

check: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "protonce needs Python 3.11 or newer; this is $$($(PYTHON) --version). Name another: make PYTHON=python3.12"; exit 2; }
	@echo "Installing into $(CURDIR)/.venv: on Linux 2.6 GB come down and fill 6 GB, nearly all of it torch with CUDA."
	@echo "Without an NVIDIA GPU far less will do: make $(firstword $(MAKECMDGOALS)) TORCH_INDEX=URL, with the CPU index that pytorch.org/get-started names."
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install --quiet --index-url $(TORCH_INDEX) torch torchvision)
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/.ready-dev: .venv/.ready
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv protonce-demo
