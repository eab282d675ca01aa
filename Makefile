# make build   .venv with everything in it, ready to use: .venv/bin/plait
# make serve   build, then serve the default model on 127.0.0.1:8000 (ARGS="..." passes arguments on)
# make test    lint, native tests, Python tests
# others: lint format native-test neon-test tsan asan fuzz bench soak docs clean

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 600

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# The wheels of cmake, ninja and clang-format put their programs here.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

NATIVE_FILES := $(shell find native -name '*.h' -o -name '*.cc')
NINJA := $(CURDIR)/$(BIN)/ninja

.PHONY: build serve test lint format native-test neon-test tsan asan fuzz bench soak docs clean check-tools

build: $(STAMPS)/editable
	@tools/build_extension.sh $(BIN)

check-tools:
	@tools/check_tools.sh $(PYTHON)

# Fresh environments bring a pip that does not know dependency groups yet, so it is renewed first.
$(STAMPS)/venv: | check-tools
	@echo "plait: making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv pyproject.toml tools/list_requirements.py
	@echo "plait: installing packages"
	@$(BIN)/python tools/list_requirements.py > $(VENV)/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	@touch $@

# One build of the extension through the packaging backend, which also makes .venv/bin/plait; from then on ninja
# alone keeps it up to date (tools/build_extension.sh).
$(STAMPS)/editable: $(STAMPS)/packages
	@echo "plait: building the extension (the first time takes a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

serve: build
	@exec $(BIN)/plait serve $(ARGS)

test: build lint native-test
	@$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_FILES)
	@$(BIN)/python tools/check_layers.py
	@$(BIN)/python tools/check_config_docs.py

format: $(STAMPS)/packages
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(NATIVE_FILES)
	@$(BIN)/python tools/check_config_docs.py --write

docs: $(STAMPS)/packages
	@$(BIN)/python tools/check_config_docs.py --write

# configure and build one preset: $(call native_build,PRESET)
native_build = $(BIN)/cmake --preset $(1) -DCMAKE_MAKE_PROGRAM=$(NINJA) > build/$(1).log || { cat build/$(1).log; exit 1; }; \
	$(BIN)/cmake --build build/$(1) --parallel $(JOBS)

# In the folder of the extension: the library is compiled once for both.
native-test: build
	@$(BIN)/cmake -S . -B build/python -DPLAIT_BUILD_TESTS=ON > build/native-test.log || { cat build/native-test.log; exit 1; }
	@$(NINJA) -C build/python
	@$(BIN)/ctest --test-dir build/python --output-on-failure --no-tests=error --timeout 300

asan tsan: $(STAMPS)/packages
	@mkdir -p build; $(call native_build,$@)
	@UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/ctest --test-dir build/$@ --output-on-failure --no-tests=error --timeout 600

# The native tests for aarch64, run by emulation: on a CPU with everything, then on one without dot products, where
# nothing outside the NEON kernels may stumble.
neon-test: $(STAMPS)/packages
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64; do \
	  if ! command -v $$tool > /dev/null; then echo "neon-test: skipped, $$tool is not installed"; exit 0; fi; \
	done; \
	mkdir -p build; $(call native_build,aarch64); \
	ctest="$(BIN)/ctest --test-dir build/aarch64 --output-on-failure --no-tests=error --timeout 300 -j $(JOBS)"; \
	PLAIT_EXPECT_ISA=neon $$ctest; \
	QEMU_CPU=cortex-a53 PLAIT_EXPECT_ISA=scalar $$ctest

fuzz: $(STAMPS)/packages
	@if ! command -v clang++ > /dev/null; then echo "fuzz: skipped, clang++ is not installed"; exit 0; fi; \
	mkdir -p build; $(call native_build,fuzz); \
	tools/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

bench: build
	@mkdir -p build; $(call native_build,release)
	@$(BIN)/plait bench step $(ARGS)

soak: build
	@PLAIT_STRESS=1 PLAIT_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m stress $(ARGS)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src native tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
