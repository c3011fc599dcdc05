# make demo   set up, then learn from the built-in images
# make test   set up, then run the tests
# make test-oldest   the tests with the oldest dependencies that pyproject.toml allows; before a release
# make docs   write the documentation site to docs/_build/html
# make release   build wheel and sdist, and try them in an empty environment; before a release
# make lock   write down the versions that are installed for the tests
# A machine without an NVIDIA GPU can do with a much smaller torch:
#   make demo TORCH_INDEX=URL     with the CPU index that pytorch.org/get-started names

PYTHON ?= python3
TORCH_INDEX ?=
BIN := .venv/bin
OLDEST := .venv-oldest

.PHONY: demo test test-oldest docs release lock check clean

demo: .venv/.ready
	$(BIN)/protonce demo --out protonce-demo

test: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-oldest:
	$(PYTHON) -m venv --clear $(OLDEST)
	$(PYTHON) .ci/oldest.py > $(OLDEST)/constraints.txt
	$(if $(TORCH_INDEX),$(OLDEST)/bin/pip install --quiet --index-url $(TORCH_INDEX) -c $(OLDEST)/constraints.txt torch torchvision)
	$(OLDEST)/bin/pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[dev]'
	$(OLDEST)/bin/python -m pytest -n 2 -m "not slow"

docs: .venv/.ready-dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html in a browser."

release: .venv/.ready-dev
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python .ci/release.py

# Neither where packages came from nor that torch was built for the CPU is written down.
lock: .venv/.ready-dev
	@{ echo "# Versions with which the tests pass, of all that pyproject.toml asks for with [dev,peers]; written by make lock."; \
	echo "# For the same ones: pip install --constraint requirements-dev.lock --editable '.[dev,peers]'"; \
	$(BIN)/pip freeze --exclude-editable | sed -n 's/^\([A-Za-z0-9._-]*==[^+ ]*\).*/\1/p'; } > requirements-dev.lock

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
	$(BIN)/pip install --quiet --editable '.[dev,peers]'
	@touch $@

clean:
	rm -rf .venv .venv-oldest protonce-demo dist docs/_build
