# Two commands from a bare machine: `make run` starts the gateway, `make test` runs every check and every test.
# Needed: Python 3.11 or later with its venv module; for `make test` also what tests/servers/install.sh installs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK := $(VENV)/.installed-spark
RUNS := $(VENV)/.installed-run
SITE := $(VENV)/.installed-site

# The first Python that is new enough; a version manager's shim may exist and still not run, so each is asked.
FIND_PYTHON = for python in $${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$python"; break; fi; done

# Companies put their own certificate authority into the system's store: ask it, not a built-in list.
export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)

.PHONY: help install lock run check test test-all test-spark test-deploy test-supply chaos schemathesis licences sbom release-files audit faults attack simulate powerloss mutants fuzz fuzz-guided bench bench-compare bench-spark pipeline-demo style types layers docs docs-site

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/' | expand -t 16

install: $(STAMP)  ## the virtual environment .venv, as locked

# $(call install,OPTIONS OF UV): the environment. It says what it does: the first time takes a while.
define install
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "make: no Python 3.11 or later was found (tried python3, python3.11 to python3.14)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then \
		"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
			echo "make: $$python has no working venv module (Debian: apt-get install python3-venv)." >&2; exit 1; }; fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement deploy/uv.txt
	@$(BIN)/uv sync --locked --quiet $(1)
	@touch $@
endef

$(STAMP): pyproject.toml uv.lock deploy/uv.txt
	@echo "make: installing what the gateway and its tests need into $(VENV)" >&2
	$(call install,)
	@touch $(RUNS)

$(RUNS): pyproject.toml uv.lock deploy/uv.txt
	@if [ -e $(STAMP) ]; then echo "make: bringing $(VENV) up to date" >&2; \
	else echo "make: installing what the gateway needs into $(VENV), about 30 packages" >&2; fi
	$(call install,$$(test -e $(STAMP) || echo --no-dev))

$(SPARK): $(STAMP)
	@$(BIN)/uv sync --locked --quiet --inexact --extra spark
	@touch $@

$(SITE): $(STAMP)
	@$(BIN)/uv sync --locked --quiet --inexact --group site
	@touch $@

lock:  ## write uv.lock anew after a change of the dependencies
	@test -x $(BIN)/uv || { echo "make: run make install first" >&2; exit 1; }
	$(BIN)/uv lock
	@$(BIN)/uv export --quiet --frozen --only-group bootstrap --no-emit-project --no-annotate --no-header --output-file deploy/uv.txt

run: $(RUNS)  ## start the gateway and its embedded broker
	@exec $(BIN)/gateway serve

check: $(STAMP)  ## rules, types, layers, language and the tests without servers; at most 3 minutes
	@exec $(BIN)/python tests/suites.py --tier check

test: $(SPARK)  ## each test once, on RabbitMQ 4.0 and Broker-J, 0-8 on RabbitMQ 3.10; at most 25 minutes
	@tests/servers/install.sh
	@exec $(BIN)/python tests/suites.py

test-all: $(SPARK) $(SITE)  ## that, RabbitMQ 4.3, and the long suites: Spark, chart, release tools; at most 80 minutes
	@tests/servers/install.sh
	@tests/deploy/install.sh
	@tests/supply/install.sh
	@tests/clients/install.sh
	@tests/generated/install.sh
	@tests/models/install.sh
	@exec $(BIN)/python tests/suites.py --tier all

test-spark: $(SPARK)  ## all tests that run Spark: with kills of driver and JVM, and a cluster on loopback
	@tests/servers/install.sh
	@exec $(BIN)/python tests/suites.py --tier all spark-logs spark-jobs spark-kills

test-deploy: $(STAMP)  ## the chart over many values, and its manifests as processes on real brokers; builds helm once
	@tests/servers/install.sh
	@tests/deploy/install.sh
	@exec $(BIN)/python tests/suites.py deploy deploy-processes

chaos: $(STAMP)  ## all 34 experiments, and the table; CHAOS="F01 F18" for some, FORM=--full in full, SEED=7
	@tests/servers/install.sh
	@exec $(BIN)/python -m tests.chaos $(CHAOS) $(FORM) $(if $(SEED),--seed $(SEED))

simulate: $(STAMP)  ## the models, then worlds under virtual time, each from its seed; WORLDS=1000 FIRST=1 for others
	@tests/models/install.sh
	@$(BIN)/python -m tests.models
	@exec $(BIN)/python -m tests.simulation --worlds $(or $(WORLDS),200) --first $(or $(FIRST),1)

powerloss: $(STAMP)  ## losses of power at every point of a run; POINTS=1000, PARTS=losses
	@exec $(BIN)/python -m tests.powerloss $(PARTS) --points $(or $(POINTS),10000)

mutants: $(SPARK)  ## changes of the code, each judged by the tests that cover it; SEED=7 MUTANTS=200 JOBS=2, TABLE=1 for the table
	@tests/servers/install.sh
	@exec $(BIN)/python -m tests.mutants --seed $(or $(SEED),1) --mutants $(or $(MUTANTS),200) --jobs $(or $(JOBS),1) $(if $(TABLE),--table)

faults: $(STAMP)  ## every fault on real brokers in full, and the table; ROWS="killed half-open" for some
	@tests/servers/install.sh
	@exec $(BIN)/python -m tests.faults $(FAULTS) $(ROWS)

attack: $(STAMP)  ## every class of attacks on live gateways, in full, and the table; ROWS="pipelining frames" for some
	@exec $(BIN)/python -m tests.attack $(ROWS)

fuzz: $(STAMP)  ## 1,000,000 hostile inputs; SEED=7 for the same ones again
	@exec $(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))

schemathesis: $(STAMP)  ## the API beside its own OpenAPI document, all checks; SECONDS=600, EXAMPLES=50, SEED=7
	@exec $(BIN)/python -m tests.contract $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(EXAMPLES),--examples $(EXAMPLES))

fuzz-guided: $(STAMP)  ## hostile inputs chosen by coverage, for SECONDS=300
	@$(BIN)/uv sync --locked --quiet --inexact --group fuzz
	@exec $(BIN)/python -m tests.fuzz.guided --seconds $(or $(SECONDS),300)

bench: $(SPARK)  ## how fast it is, beside its peers in the same run; SECTIONS="codec link", BENCH="--json FILE"
	@tests/servers/install.sh
	@exec $(BIN)/python -m tests.benchmarks $(BENCH) $(SECTIONS)

bench-compare: $(STAMP)  ## two commits beside each other: BASE=COMMIT [HEAD=COMMIT] [SECTIONS="codec"]
	@test -n "$(BASE)" || { echo "make: name a commit: make bench-compare BASE=main~1" >&2; exit 1; }
	@exec $(BIN)/python -m tests.benchmarks.compare $(COMPARE) $(BASE) $(HEAD) --sections $(or $(SECTIONS),codec)

pipeline-demo: $(SPARK)  ## 20,000 messages over three versions, and what the pipeline says; MESSAGES=2000
	@tests/servers/install.sh
	@exec $(BIN)/python -m tests.pipeline.demo $(if $(MESSAGES),--messages $(MESSAGES))

bench-spark: $(SPARK)  ## the pipeline beside SQL and Spark's own JDBC; SECTIONS="read events", BENCH="--growth 10,30,100"
	@tests/servers/install.sh
	@mvn -B -q -f tests/benchmarks/jdbc/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.servers/jdbc
	@exec $(BIN)/python -m tests.benchmarks.spark $(SECTIONS) $(BENCH)

licences: $(SPARK)  ## the licence of each locked package; the table in docs/, and their texts in dist/licences.txt
	@$(BIN)/python deploy/supply/licences.py --texts dist/licences.txt
	@exec $(BIN)/python docs/generate.py

sbom: $(STAMP)  ## what the service is made of, as CycloneDX: dist/sbom.cdx.json
	@tests/supply/install.sh sbom
	@exec $(BIN)/python deploy/supply/release.py sbom

release-files: $(SPARK)  ## wheel, sources, hashed requirements, SBOM, licences and their digests, in dist/
	@tests/supply/install.sh sbom
	@exec $(BIN)/python deploy/supply/release.py all

audit: $(STAMP)  ## known weaknesses of the locked packages, where their lists are reached
	@tests/supply/install.sh audit
	@exec $(BIN)/python deploy/supply/audit.py

test-supply: $(STAMP)  ## the workflows by their linters, the scripts by shellcheck, the SBOM against the lock
	@tests/supply/install.sh
	@exec $(BIN)/python tests/suites.py supply-tools

style: $(STAMP)  ## ruff: rules and format
	@exec $(BIN)/python tests/suites.py style

types: $(SPARK)  ## mypy, strict
	@exec $(BIN)/python tests/suites.py types

layers: $(SPARK)  ## imports point down; protocol code does no I/O; time and chance come from the seams
	@exec $(BIN)/python tests/suites.py layers

docs: $(SPARK)  ## write the generated tables of docs/, and the schema of the chart's values, anew
	@$(BIN)/python deploy/helm/generate.py
	@$(BIN)/python deploy/helm/dashboards.py
	@exec $(BIN)/python docs/generate.py

docs-site: $(SITE)  ## the documentation as a site with search, for a browser without a network: dist/site/index.html
	@exec $(BIN)/python deploy/site/build.py dist/site
