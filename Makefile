# Needs Python 3.11 or later, make and pip; everything else goes into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Three processes on two cores: half of the tests wait for brokers, devices and aggregators.
JOBS ?= 3
EXTRAS ?= aggregator,broker,dp,export,images,mlflow,monitor,plots,prometheus,tensorboard,tools,dev
STAMP := $(VENV)/.installed
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Fast tests of every layer: names, documentation, pure functions, state machines, and real brokers.
CHECKS := $(addprefix tests/,test_layout.py lint test_docs_pages.py \
	devices/test_store.py devices/test_conditions.py mqtt_broker/aggregator/test_messages.py \
	firmware_export/tflite/test_quantized_model.py firmware_export/codegen/test_lint.py firmware_export/codegen/test_buffers.py) \
	$(addprefix tests/edgefl/,base data program/plan learning/privacy protocol)

.PHONY: check demo test test-all test-loaded test-deep test-faults test-fuzz test-parity lint docs install clean
.DEFAULT_GOAL := demo

demo: install  ## four device processes federate, personalize and quantize; about a minute
	$(BIN)/edgefl demo $(ARGS)

check: lint  ## lint, types and a fast part of the tests, before each commit
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q $(CHECKS) $(ARGS)

# The tests start thousands of processes. Where this variable is set, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

test: install  ## all that a change is likely to break, in three processes; JOBS=0 runs the tests in this one
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

test-all: install  ## every test, with as many random cases as the four targets below; hours
	EDGEFL_SCHEDULES=2500 EDGEFL_FAULT_RUNS=50 EDGEFL_FUZZ_SCALE=1 EDGEFL_PARITY_SAMPLES=1000 \
		$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 3600 $(ARGS)
	$(BIN)/python -m tests.typed.digests

test-loaded: install  ## the tests in random order on a busy machine: what fails here fails elsewhere by chance
	trap 'kill $$busy' EXIT INT TERM; (while :; do :; done) & busy=$$!; (while :; do :; done) & busy="$$busy $$!"; \
		$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" --random-order $(ARGS)

test-deep: install  ## ten thousand schedules of lost messages, crashes and hostile boards for both machines
	EDGEFL_SCHEDULES=$${EDGEFL_SCHEDULES:-2500} $(BIN)/python -m pytest $(addprefix tests/edgefl/protocol/server/test_,round_server.py hostile_board.py masked_schedules.py) $(ARGS)

test-faults: install  ## fifty fleets that something happens to; ARGS="-k 'happens[17]'" repeats the one of seed 17
	EDGEFL_FAULT_RUNS=$${EDGEFL_FAULT_RUNS:-50} $(BIN)/python -m pytest tests/mqtt_broker/test_fault_suite.py $(ARGS)

test-fuzz: install  ## a million damaged inputs to every parser of foreign bytes, and to the C of boards; `make test` runs a tenth
	EDGEFL_FUZZ_SCALE=$${EDGEFL_FUZZ_SCALE:-1} $(BIN)/python -m pytest tests/fuzz tests/firmware_export/test_fuzz_c.py -rP $(ARGS)

test-parity: install  ## every kind of mixture on three data sets, 1,000 samples each: tflite-micro = C on this computer = C in QEMU
	EDGEFL_PARITY_SAMPLES=$${EDGEFL_PARITY_SAMPLES:-1000} $(BIN)/python -m pytest tests/firmware_export/certificate/test_every_mixture.py -rP $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m tests.lint

docs: install $(VENV)/.docs  ## the documentation site, in build/docs; what mkdocs warns of is an error
	$(BIN)/mkdocs build --config-file docs/site/mkdocs.yml

install: $(STAMP)

# The install is editable, so only the metadata makes it stale: pyproject.toml and the version.
$(STAMP): pyproject.toml edgefl/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python {sys.version.split()[0]} is too old, expected 3.11 or later; say make PYTHON=...")'
	@echo 'This installs edgefl and the tools of its tests into $(VENV): about two minutes and 3 GB.'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]'
	@echo "Installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)."
	@touch $@

$(VENV)/.docs: pyproject.toml | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
