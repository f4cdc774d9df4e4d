# Everything runs in .venv, which is made on the first call. `make help` lists the targets.
PYTHON ?= python3
PRESET ?= quick
COUNT  ?= 100
INSTALL := .ci/install .ci/tools.txt .ci/models.txt $(wildcard .ci/jupyter/*)
VENV   := .venv
BIN    := $(VENV)/bin
READER := $(VENV)/.readable
STAMP  := $(VENV)/.installed

.PHONY: help report archive pdf test bench bench-gpu mutate peers lint stubs same new locks reader env pins clean
.DELETE_ON_ERROR:

help:
	@echo "make report   execute the chapters and build the site (PRESET=quick|full)"
	@echo "make archive  the built site as one file with its checksum, in dist/"
	@echo "make pdf      all pages but the reference as dist/tasklab.pdf, by Chromium and poppler-utils"
	@echo "make test     run every test (PYTEST_ARGS='-m \"not site\"' for a part)"
	@echo "make bench    how many times as long the papers' own procedures take"
	@echo "make bench-gpu PART=steps  a CUDA device, nine minutes a part: steps, chapters, paths, merges, many, paper"
	@echo "make mutate   plant faults in a room (ROOM=analyses COUNT=100); print those that survive"
	@echo "make peers    compare merges with installed mergekit, fusion_bench and peft, in .venv-peers"
	@echo "make lint     style, docstrings, the import order and types"
	@echo "make stubs    list new experiments and figures for type checkers"
	@echo "make same     lock changed code of experiments, if the frozen numbers come out"
	@echo "make new      measure results anew (OF=\"merging stitching\" WHY=\"the reason\")"
	@echo "make locks    the same as make same, with data files and stubs"
	@echo "make reader   only the environment of the report, in $(VENV)"
	@echo "make env      the same, and what tests, clusters and pre-training need"
	@echo "make pins     renew the exact versions in requirements.txt and requirements-dev.txt"
	@echo "make clean    remove what was built (the environment and your store stay)"

report: $(READER)
	$(BIN)/python -m tasklab report --preset $(PRESET)

# Three processes for two cores, as a test often waits: a file of tests in one of them, the long ones first.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# In turns with the papers' procedures; the numbers are kept beside the script, and a page shows them.
bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

# A card, in parts of nine minutes: make bench-gpu PART=steps (chapters, paths, merges, many, paper). What is
# measured already stays, so a part can be repeated until nothing is left.
PART ?= all
bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/card.py $(PART)

archive: report
	mkdir -p dist
	tar -C book/_build -czf dist/tasklab-site.tar.gz --owner=0 --group=0 --sort=name html
	cd dist && sha256sum tasklab-site.tar.gz > SHA256SUMS

pdf: report $(STAMP)
	$(BIN)/python book/print.py

# One fault at a time in a room of the package, each against the tests that reach it.
mutate: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutate $(ROOM) --count $(COUNT) $(if $(TESTS),--tests $(TESTS))

# Merges against mergekit, fusion_bench and peft of the package index, in .venv-peers.
peers: $(STAMP)
	bash .ci/peers $(VENV)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

stubs: $(BIN)/python
	$(BIN)/python -m tests.locks stubs

same: $(BIN)/python
	$(BIN)/python -m tests.locks same

new: $(BIN)/python
	$(BIN)/python -m tests.locks new '$(OF)' '$(WHY)'

locks: $(BIN)/python
	$(BIN)/python -m tests.locks all

reader: $(READER)

env: $(STAMP)

# Made again only when the package's needs or the pinned versions change.
$(READER): pyproject.toml requirements.txt $(INSTALL)
	PYTHON="$(PYTHON)" bash .ci/install $(VENV) requirements.txt
	touch $@

# In one go where nothing is there yet: the report's environment is a part of this one.
$(STAMP): pyproject.toml requirements.txt requirements-dev.txt $(INSTALL)
	PYTHON="$(PYTHON)" bash .ci/install $(VENV) requirements.txt requirements-dev.txt
	touch $(READER) $@

# An environment that is there suffices for locks.
$(BIN)/python:
	$(MAKE) env

pins: $(STAMP)
	bash .ci/pins $(VENV)

clean:
	rm -rf book/_build build/lib build/bdist.* tasklab.egg-info .pytest_cache .ruff_cache .import_linter_cache .mypy_cache
	rm -f dist/tasklab-site.tar.gz dist/SHA256SUMS dist/tasklab.pdf dist/tasklab-*.whl
	for made in build dist; do if [ -d $$made ]; then rmdir --ignore-fail-on-non-empty $$made; fi; done
	find tasklab pretraining tests book notebooks benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
