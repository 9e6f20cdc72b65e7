# Every target sets up what it needs. `make test` and `make demo` are all that a new machine wants.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
RUN := .venv/bin/python
CLUSTER ?= local
# Tests without a cluster keep all cores busy. Tests with one mostly wait, so more of them run side by side than there are cores.
WITHOUT_CLUSTER = tests/unit tests/property tests/page
CLUSTER_WORKERS ?= 3
# Which tests run by their marks, and on which Kubernetes versions; empty MARKS: all tests.
MARKS = not extended
VERSIONS =
# Where ARGS picks tests, a stage may be left without any: pytest's status 5.
OR_NONE_PICKED = $(if $(strip $(ARGS)),|| [ $$? -eq 5 ])
# Of a release: what the image runs on, where the chart pulls it from, where on the web its files will be had.
PLATFORMS ?= linux/amd64 linux/arm64
REPOSITORY ?= gpu-topology-dra
URL ?=

# Without compiled modules each worker, and each Python that a test starts, compiles all of them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install lint unit programs test test-without-cluster test-cluster test-all test-owners bench proto metrics reference lock image release demo down

install: .venv/installed  ## the development environment in .venv

.venv/installed: requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found: install python3"; exit 1; }
	@echo "installing Python packages into .venv (about 180 s)"
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lint: install  ## style, types, layers, prose, generated code
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	.venv/bin/lint-imports
	$(RUN) -m mypy
	$(RUN) -m docs.prose
	$(RUN) protos/generate.py --check

unit: install  ## unit and property tests but the slow ones: no root, no Go, about 75 s on two cores
	$(RUN) -m pytest -n auto --dist worksteal -m "not slow" tests/unit tests/property $(ARGS)

test: test-without-cluster test-cluster  ## the tests of every change; those on a real cluster need Linux, root and Go

test-all: MARKS =
test-all: VERSIONS = all
test-all: test-without-cluster test-cluster test-owners  ## the same on all Kubernetes versions, benchmarks as tests, and test-owners

programs: install  ## what the tests run: Kubernetes, containerd, Helm, the image and others, built once into the cache
	@$(RUN) -m tests.cluster build $(VERSIONS) || { test -z "$$CI" && echo "The tests on the real cluster are left out."; }

test-without-cluster: programs  ## unit, property and page tests, on the image's Python and packages
	$(RUN) -m tests.image_python -n auto --dist worksteal -m "$(MARKS)" $(WITHOUT_CLUSTER) $(ARGS) $(OR_NONE_PICKED)

test-cluster: programs  ## all other tests: contract, e2e, NVIDIA's programs, the cluster itself
	$(RUN) -m pytest -n $(CLUSTER_WORKERS) -p tests.groups --dist loadscope --no-loadscope-reorder -m "$(MARKS)" \
		$(WITHOUT_CLUSTER:%=--ignore=%) $(ARGS) $(OR_NONE_PICKED)

test-owners: install  ## gangs by JobSet, LeaderWorkerSet, Kubeflow and Kueue, which are built first; needs what `test` does
	$(RUN) -m tests.peers.owners $(ARGS)

bench: install  ## figures: the allocator beside its peers, reading a machine, pods on the demo's cluster
	$(RUN) -m tests.bench.allocator
	$(RUN) -m tests.bench.discovery
	$(RUN) -m tests.bench.publishing
	$(RUN) -m tests.bench

proto: install  ## the kubelet's gRPC stubs from protos/
	$(RUN) protos/generate.py

metrics: install  ## docs/reference/metrics.md from the code; the dashboard and docs/reference/questions.md from the questions
	$(RUN) -m docs.metrics
	$(RUN) -m docs.questions

reference: install  ## docs/reference/commands.md, docs/reference/messages.md, tables of docs/reference/annotations.md and docs/internals/gpu-faults.md, the chart's README and docs/images
	$(RUN) -m docs.commands
	$(RUN) -m docs.annotations
	$(RUN) -m docs.values
	$(RUN) -m docs.faults
	$(RUN) -m docs.messages
	$(RUN) -m docs.diagrams

lock: install  ## requirements/ from pyproject.toml
	$(RUN) requirements/lock.py

image: install  ## the driver's image for this machine as an OCI archive in dist/: docs/start/install.md says what to do with it
	$(RUN) image/build.py --output dist/gpu-topology-dra.tar --reference gpu-topology-dra:$$($(RUN) -m image.packages)

release: install  ## dist/VERSION: image, chart, wheel, kubectl's plugin, bill of materials, changelog, checksums
	$(RUN) -m image.release --platform $(PLATFORMS) --repository "$(REPOSITORY)" --url "$(URL)"

demo: install  ## a Kubernetes with two GPU nodes, the driver and its examples; CLUSTER=kind uses kind
	$(RUN) -m tests.demo --cluster=$(CLUSTER)

down: install  ## the demo's cluster away, without a trace
	$(RUN) -m tests.demo --cluster=$(CLUSTER) --down
