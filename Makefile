# `make` alone prints what can be done here.
# Everything is installed into .venv (benchmarks: .venv-bench, recipes: .venv-recipes, the wheel:
# .venv-wheel), made when it is missing.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

# The second -q also silences pip's warnings about its own configuration; errors are shown.
PIP := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test quick order costs test-lowest lint docs bench bench-scale recipes dist test-wheel test-sdist \
	config clean

help:
	@echo "make demo   show the first two examples of the README with their pictures, in a minute"
	@echo "make test   run all tests and the examples in the docstrings"
	@echo "make quick  run cheap cases of every test, in less than a minute"
	@echo "make order  run every test file alone, and all tests in reverse order"
	@echo "make costs  run all tests, print what each costs, and record which are cheap"
	@echo "make test-lowest   run them with the oldest versions of everything that are allowed"
	@echo "make lint   check style, formatting and type hints"
	@echo "make docs   build the documentation into docs/_build/html"
	@echo "make bench  measure speed and memory against peers, as ratios (minutes, on a quiet machine)"
	@echo "make bench-scale   measure fits to Dask: memory, CPU, and a worker that dies (minutes)"
	@echo "make recipes   run the recipes for Ray, Spark (needs Java) and Parquet"
	@echo "make dist   build the wheel and the source distribution into dist"
	@echo "make test-wheel   install the wheel alone and run the examples of the README with it"
	@echo "make test-sdist   run all tests in the unpacked source distribution"
	@echo "make config   check what GitHub, Read the Docs and pre-commit read, by their schemas"
	@echo "make clean  remove the environments and the built documentation"

# A stamp stands for an environment or a dependency group installed into it. It is older than
# pyproject.toml exactly when something has to be installed again; the package itself is installed in
# place.
$(VENV)/.stamp-venv:
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-%: pyproject.toml $(VENV)/.stamp-venv
	@echo "Installing scikit-random-features and the group $* into $(VENV)"
	@$(PIP) "pip>=25.1"
	@$(PIP) -e . --group $*
	@touch $@

demo: $(VENV)/.stamp-examples
	$(VENV)/bin/python benchmarks/doors.py --demo

# One BLAS and OpenMP thread per worker: two workers with two threads each would wait for each
# other on two cores.
test quick order costs: export OMP_NUM_THREADS ?= 1
test quick order costs: export OPENBLAS_NUM_THREADS ?= 1
test: $(VENV)/.stamp-tests
	$(VENV)/bin/python -m pytest -n $(WORKERS)

quick: $(VENV)/.stamp-tests
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --quick

# A test must not need what another one left. QUICK=--quick makes this short.
order: $(VENV)/.stamp-tests
	ls tests/test_*.py | xargs -n 1 -P $(WORKERS) $(VENV)/bin/python -m pytest -q $(QUICK)
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --reverse $(QUICK)

# The second run finds cases that were cheap only after others.
costs: $(VENV)/.stamp-tests
	$(VENV)/bin/python -m pytest -n $(WORKERS) --record-costs --costs
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --record-costs --quick

# SciPy 1.15 and scikit-learn 1.6 need SCIPY_ARRAY_API before scikit-learn's own checks are imported.
test-lowest:
	@$(MAKE) --no-print-directory VENV=$(VENV)-lowest $(VENV)-lowest/.stamp-lowest
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		$(VENV)-lowest/bin/python -m pytest -n $(WORKERS)

$(VENV)/.stamp-lowest: pyproject.toml $(VENV)/.stamp-venv
	@echo "Installing the lowest versions into $(VENV)"
	@grep -oE '^    "[^"]+>=[^",]+' pyproject.toml | tr -d ' "' | sed 's/\[.*\]//; s/>=/==/' \
		| sort -u > $(VENV)/lowest.txt
	@$(PIP) "pip>=25.1"
	@$(PIP) -e . --group tests -c $(VENV)/lowest.txt
	@touch $@

lint: $(VENV)/.stamp-lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(VENV)/.stamp-docs
	$(VENV)/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html

# As many threads as the machine has cores, whatever this shell says: the targets are about that.
# An environment of its own: scikit-learn imports pandas where it finds it, which counts as memory.
bench:
	@$(MAKE) --no-print-directory VENV=$(VENV)-bench $(VENV)-bench/.stamp-bench
	env -u OMP_NUM_THREADS -u OPENBLAS_NUM_THREADS $(VENV)-bench/bin/python benchmarks/speed.py

# One thread for each process: workers share the cores.
bench-scale: export OMP_NUM_THREADS = 1
bench-scale: export OPENBLAS_NUM_THREADS = 1
bench-scale: $(VENV)/.stamp-tests
	$(VENV)/bin/python benchmarks/scale.py

# Each asserts that its result is that of one machine. An environment of its own: Ray and Spark are
# large, and Spark runs the Python that it is told to.
recipes: export OMP_NUM_THREADS ?= 1
recipes: export OPENBLAS_NUM_THREADS ?= 1
recipes: export RAY_USAGE_STATS_ENABLED ?= 0
recipes: export PYSPARK_PYTHON = $(abspath $(VENV)-recipes/bin/python)
recipes:
	@$(MAKE) --no-print-directory VENV=$(VENV)-recipes $(VENV)-recipes/.stamp-recipes
	@set -e; for recipe in docs/recipes/*.py; do \
		$(VENV)-recipes/bin/python $$recipe; echo "ok   $$recipe: as on one machine"; \
	done

dist: $(VENV)/.stamp-dist
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist .
	$(VENV)/bin/python -m twine check --strict dist/*

# In a folder without the package and without the settings of pytest, so that what was installed is
# what runs, with nothing but what it requires. PYTHON may be any version that is supported.
test-wheel: dist
	rm -rf $(VENV)-wheel build/wheel
	mkdir -p build/wheel/tests
	cp README.md build/wheel
	cp tests/test_readme.py build/wheel/tests
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install -qq --disable-pip-version-check dist/*.whl pytest
	cd build/wheel && $(abspath $(VENV)-wheel)/bin/python -c \
		"import skrf; assert 'site-packages' in skrf.__file__, skrf.__file__"
	cd build/wheel && $(abspath $(VENV)-wheel)/bin/python -W error -m pytest -c /dev/null \
		--rootdir . --confcutdir . -p no:cacheprovider -k block_runs tests/test_readme.py

# The unpacked folder comes before the clone on the path of every worker.
test-sdist: export OMP_NUM_THREADS ?= 1
test-sdist: export OPENBLAS_NUM_THREADS ?= 1
test-sdist: dist $(VENV)/.stamp-tests
	rm -rf build/sdist
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz --strip-components=1 -C build/sdist
	cd build/sdist && PYTHONPATH=. $(abspath $(VENV))/bin/python -m pytest -n $(WORKERS)

config: $(VENV)/.stamp-config
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(VENV)/bin/pre-commit validate-config
	$(VENV)/bin/repo-review .
	$(VENV)/bin/zizmor --offline --quiet .github

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-lowest $(VENV)-recipes $(VENV)-wheel build dist docs/_build
