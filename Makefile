# Every target sets up what it needs: a virtual environment with the tested set of packages.
# The first call installs it, later calls find the stamp file and start at once.
#
#   make demo TORCH_INDEX=URL   takes torch from another package index, such as PyTorch's one for CPUs
#   make demo PYTHON=python3.12 uses that Python

VENV ?= .venv
PYTHON ?=
TORCH_INDEX ?=
CONSTRAINTS ?= constraints.txt
# what is installed of badpo: make test-no-torch leaves the training packages out
EXTRAS ?= [train,dev]
TORCH := $(shell sed -n 's/^torch==/torch==/p' $(CONSTRAINTS))
# make faults FAULTS=kills     injects one kind again
FAULTS ?=
# make bench BENCHES=audit   measures one part again
BENCHES ?= training audit
STAMP := $(VENV)/.installed
# the environment that the command line names; empty where it names none
ASKED_VENV := $(if $(filter command environment,$(origin VENV)),$(VENV))
VERSION := "import sys; print('%d.%d' % sys.version_info[:2])"
BIN := $(VENV)/bin
RELEASED := build/release/bin/python
PIP := $(BIN)/python -m pip --disable-pip-version-check
# while packages are loaded a line says so every half minute
TELLING := while sleep 25 >/dev/null 2>&1; do echo "still installing packages"; done & told=$$!; trap 'kill $$told' EXIT;

.DEFAULT_GOAL := help
.PHONY: help demo demo-seeds bench audit-statistics faults fuzz linear-time codes test test-slow test-floor test-no-torch check docs release format clean

help:
	@echo "make demo        train reference, DPO, pooled and shared-mean on the bundled corpus; report in runs/demo"
	@echo "make demo-seeds  the same at five seeds and two data seeds; writes docs/results/demo_data_seed_*.md"
	@echo "make bench       speed beside TRL and beside other audits; writes tables into runs/bench (an hour)"
	@echo "make audit-statistics  what the audit's figures are worth, by simulation; writes docs/results/audit_statistics.md"
	@echo "make faults      kills runs, tears files, fills disks and more; writes docs/results/faults.md (an hour and a half of a core)"
	@echo "make fuzz        a hundred thousand generated inputs; the part of make faults, for half an hour"
	@echo "make linear-time  four times the text takes four times as long, for every reader of texts (minutes)"
	@echo "make codes       the codes of messages; writes docs/results/codes.md"
	@echo "make test        tests and documented examples; make test-slow adds processes, kills and browsers"
	@echo "make test-floor  the tests with the oldest versions that badpo allows (constraints-floor.txt), on Python 3.11"
	@echo "make test-no-torch  the tests of what needs no torch, in an environment without it; with PYTHON=python3.13 on that"
	@echo "make check       formatting, lint, types and the site; make format repairs what can be repaired"
	@echo "make docs        the site with its tutorials run, in build/docs (minutes the first time)"
	@echo "make release     sdist and wheel in dist/, checked, installed into an empty environment; audit and demo run there"
	@echo "make clean       remove caches and builds (runs/ and the environment stay)"

demo: $(STAMP)
	$(BIN)/badpo demo --out runs/demo

demo-seeds: $(STAMP)
	for seed in 1 2; do \
		$(BIN)/badpo demo --out runs/demo-data-$$seed --seeds 42,123,456,7,8 --data-seed $$seed \
		--results docs/results/demo_data_seed_$$seed.md || exit 1; done

bench: export OMP_NUM_THREADS = 1
bench: $(STAMP)
	@mkdir -p runs/bench; failed=""; \
	for name in $(BENCHES); do \
	  echo "bench.$$name"; \
	  $(BIN)/python -m bench.$$name --markdown runs/bench/$$name.md || failed="$$failed bench.$$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

audit-statistics: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.audit_statistics

faults: export OMP_NUM_THREADS = 1
faults: $(STAMP)
	$(BIN)/python -m bench.faults $(if $(FAULTS),--only $(FAULTS))

# generated inputs have six of the 79 minutes that all kinds of faults have
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.faults --only fuzz --budget-minutes 395

linear-time: $(STAMP)
	$(BIN)/python -m bench.linear_time

codes: $(STAMP)
	$(BIN)/python -m bench.codes

# a test file stays with one worker, for its fixtures are shared; a worker holds torch, half a gigabyte
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-floor:
	$(MAKE) test VENV=$(or $(ASKED_VENV),.venv-floor) CONSTRAINTS=constraints-floor.txt PYTHON=$(or $(PYTHON),python3.11)

# one environment for each Python: another call with another one must not find the first one's
test-no-torch:
	$(MAKE) test VENV=$(or $(ASKED_VENV),.venv-no-torch$(if $(PYTHON),-$(shell $(PYTHON) -c $(VERSION)))) EXTRAS= PYTHON=$(PYTHON)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) docs

docs: $(VENV)/.docs
	rm -rf build/docs
	$(BIN)/python -m sphinx -E -W --keep-going -n -d build/doctrees docs build/docs
	@echo "open build/docs/index.html"

# nothing is uploaded; the checksums come last
release: export OMP_NUM_THREADS = 1
release: export PYTHONPATH =
release: $(STAMP)
	rm -rf dist
	$(PIP) install --quiet --quiet -c $(CONSTRAINTS) build==1.6.1 twine==7.0.0
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m venv --clear build/release
	$(if $(TORCH_INDEX),$(RELEASED) -m pip install --quiet --no-deps -i $(TORCH_INDEX) $(TORCH))
	$(RELEASED) -m pip install --quiet -c $(CONSTRAINTS) "$$(echo dist/*.whl)[train]"
	cp examples/votes.csv build/release
	cd build/release && bin/badpo audit votes.csv --out audit && bin/badpo demo --out demo
	sha256sum dist/*

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@set -e; \
	test_version='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	python=""; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
	  if "$$candidate" -c "$$test_version" >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "badpo needs Python 3.11 or later with its venv module, and found none on PATH."; \
	  echo "Tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)."; \
	  echo "Install one (on Debian or Ubuntu also the package python3-venv), or name it: make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3"; \
	  exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version): the tested set of packages, a few minutes the first time."; \
	"$$python" -m venv $(VENV)
	@$(if $(and $(EXTRAS),$(TORCH_INDEX)),$(TELLING) $(PIP) install --quiet --quiet --no-deps -i $(TORCH_INDEX) $(TORCH))
	@$(TELLING) $(PIP) install --quiet --quiet -c $(CONSTRAINTS) -e ".$(EXTRAS)" $(if $(EXTRAS),,pytest pytest-xdist hypothesis jsonschema scikit-learn statsmodels)
	@touch $@

$(VENV)/.docs: $(STAMP)
	@$(TELLING) $(PIP) install --quiet --quiet -c $(CONSTRAINTS) -e ".[docs]"
	@touch $@
