# make demo and make test do all set-up themselves; after that `make setup` costs nothing.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/.installed
DATA := .venv/.data

.PHONY: setup demo test test-slow lint clean

setup: $(INSTALLED) $(DATA)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[experiments,fedcase,simulation,libcachesim,dev]'
	touch $@

$(DATA): $(INSTALLED)
	$(BIN)/fedio data fetch fashion-mnist
	touch $@

demo: setup
	$(BIN)/fedio compare quickstart --quick --jobs 2 --out runs/demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# On all cores; a slow test has processes of its own and wants to be alone.
test: lint
	$(BIN)/python -m pytest --numprocesses logical --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
