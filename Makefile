# Needs Python, Java and make; everything else is fetched into .venv.

# The minor release of Spark to build for and to test with: 4.3 or 4.2. Each has an environment of its own.
SPARK := 4.3
# Processes that tests run in, each with a Spark session of its own (1 GB).
JOBS := 2
VENV := .venv$(if $(filter-out 4.3,$(SPARK)),-$(SPARK))
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
# Tests sync many thousands of small files, which takes as long as all else. In memory it takes no time, if there is room.
MEMORY = $(shell ( df -Pk /dev/shm | awk 'NR == 2 && $$4 > 12000000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }' ) 2>/dev/null)
# Programs of the tests are packages of these folders.
TESTS := PYTHONPATH=python:integration-tests:support
ANY_PYTHON = $(if $(wildcard $(RUN)),$(RUN),$(PYTHON))

# What the caller's environment says about Python and Spark must not reach into the virtual environment.
unexport PYTHONPATH PYTHONHOME SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS

.DEFAULT_GOAL := help
.PHONY: help demo demo-kafka demo-pipeline demo-availability test test-more test-fast test-scala coverage test-long test-long-kafka test-long-cluster test-long-rest test-storage test-spark messages lint bench soak screenshots docs jar wheel clean distclean tools
.DELETE_ON_ERROR:

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '%-24s %s\n' "$$name" "$$text"; done

demo: jar  ## run the purchases job, kill it three times, compare every row; UI=1: keep Spark's UI open until Ctrl-C
	$(RUN) examples/purchases.py $(if $(UI),--ui)

demo-kafka: jar  ## the same from Kafka: a broker of its own, three kills, every row compared
	$(RUN) examples/kafka_purchases.py

demo-pipeline: jar  ## a pipeline of seven flows: an executor and the driver are killed, every row compared
	$(RUN) examples/pipeline_purchases.py

demo-availability: jar  ## three sensors, one is cut off: answers within X, marked as tentative, and the right ones later
	$(RUN) examples/sensors.py

test: jar  ## lint, then every test, on real Spark too; SPARK=4.2 for that release
	@# The unit tests of the Scala part need one processor, so lint runs beside them.
	@mkdir -p build; ( $(if $(filter 4.3,$(SPARK)),$(MAKE) lint &&) $(TESTS) $(RUN) -m cec_it.class_archive ) > build/lint.log 2>&1 & \
		lint=$$!; $(TESTS) $(RUN) -m scala_tests; scala=$$?; wait $$lint; linted=$$?; cat build/lint.log; test $$scala$$linted = 00
	$(MEMORY) $(RUN) -m pytest -q -n $(JOBS) --dist loadgroup --no-loadscope-reorder python/tests integration-tests

test-more: jar  ## the tests that `make test` leaves out so that it takes a quarter of an hour; PART=1 to 6: a sixth of them
	$(MEMORY) $(RUN) -m pytest -q -m $(if $(PART),part$(PART),more) -n $(JOBS) --dist loadgroup --no-loadscope-reorder integration-tests

test-fast: $(INSTALLED)  ## the unit tests, without Spark and without Java: few examples, few seeds
	CEC_TESTS=fast $(MEMORY) $(RUN) -m pytest -q -n $(JOBS) --dist worksteal python/tests

test-scala: jar  ## the unit tests of the Scala part, in one JVM without Python; SUITES="state.PagesSuite", SEED=..., JAVA=another one
	$(TESTS) $(RUN) -m scala_tests $(SUITES:%=--suite %) $(if $(SEED),--seed $(SEED)) $(if $(JAVA),--java $(JAVA))

coverage: jar  ## lines and branches that the unit tests run, by package: Scala (JaCoCo), then Python (coverage.py)
	@mkdir -p build/coverage
	$(TESTS) $(RUN) -m scala_tests --coverage
	CEC_TESTS=fast $(RUN) -m pytest -q -n $(JOBS) --dist worksteal --cov=python/spark_cec --cov=python/spark_cec_lab --cov-branch \
		--cov-report=json:build/coverage/python.json python/tests
	@$(TESTS) $(RUN) -m cec_it.python_coverage build/coverage/python.json

test-long: test-long-rest test-long-kafka test-long-cluster  ## all that takes long: Kafka, clusters

test-long-rest: jar  ## the tests that `make test` leaves out; ROUNDS=20 kills each pipeline in more rounds
	$(if $(ROUNDS),CEC_ROUNDS=$(ROUNDS)) $(RUN) -m pytest -q -m long -n $(JOBS) --dist loadgroup --no-loadscope-reorder integration-tests

test-long-kafka: jar  ## ten runs of queries on Kafka with five kills each; SEED=... repeats one; prints a table
	$(TESTS) $(RUN) -m cec_it.long_kafka $(if $(SEED),--seed $(SEED))

test-long-cluster: jar  ## what may befall a cluster, at length: a table; SEED=..., RUNS=... per scenario
	PYTHONPATH=$(CURDIR)/python:$(CURDIR)/integration-tests:$(CURDIR)/support \
		$(RUN) -m cec_it.cluster_campaign $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS))

test-storage: jar  ## the storage layer on real servers (S3, Google Cloud Storage, Azure), 1,000 damages and faults, kills on a cluster; SEED=..., RUNS=...
	@$(RUN) -c 'import gcsfs, adlfs' 2>/dev/null || \
		$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[gs,azure]' || true
	$(TESTS) $(RUN) -m cec_it.storage_servers
	$(TESTS) $(RUN) -m cec_it.storage_campaign $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS))
	$(TESTS) $(RUN) -m cec_it.storage_kills --quick $(if $(SEED),--seed $(SEED))

test-spark: jar  ## run Spark's own streaming suites on our provider (fetches its test jars; SUITES="A B" for some)
	$(TESTS) $(RUN) -m spark_suites $(SUITES:%=--suite %)

messages: $(INSTALLED)  ## write the Scala classes of the agent's messages from python/spark_cec/agent/messages.py
	PYTHONPATH=python:support $(RUN) -m shim_messages

lint: $(INSTALLED)  ## ruff and mypy
	$(RUN) -m ruff check python integration-tests examples support
	$(RUN) -m mypy --strict python

bench: jar  ## compare batch times with Spark's own state stores; prints JSON lines
	$(VENV)/bin/cec bench

soak: jar  ## run one query for MINUTES (30) and draw all that might grow: soak-output/soak.png
	cd integration-tests && ../$(RUN) -m cec_it.soak --minutes $(or $(MINUTES),30) --out ../soak-output

screenshots: jar  ## write the pictures of the tab in Spark's UI to docs/images; needs Debian's chromium and chromium-driver
	$(TESTS) $(RUN) -m cec_it.ui_screenshots docs/images

docs: $(INSTALLED)  ## build the pages of docs/ as a site: build/site/index.html
	@$(RUN) -c 'import material' 2>/dev/null || \
		$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict

jar: $(INSTALLED)  ## build the jar of the JVM part, if it is not up to date; SPARK=4.2 for that release
	@$(RUN) -m spark_cec.build -q

wheel: jar  ## build dist/spark_cec-*.whl with a jar for each release of Spark that is supported
	$(MAKE) jar SPARK=4.2
	$(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove what was built, but not .venv*
	rm -rf python/spark_cec/jars build dist demo-output* demo-kafka-output* demo-pipeline-output* bench-output soak-output .gradle .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python integration-tests examples support -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv and .venv-* too
	rm -rf .venv .venv-*

$(INSTALLED): pyproject.toml | tools
	@echo "setting up $(VENV), which takes some minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 'pyspark==$(SPARK).*'
	@touch $@

tools:
	@$(or $(ANY_PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "no Python 3.11 or newer (pyspark 4.3 needs that): install it (Debian 12, Ubuntu: apt-get install python3 python3-venv) or say make PYTHON=..." >&2; exit 1; }
	@$(ANY_PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(ANY_PYTHON) cannot make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@PYTHONPATH=python $(ANY_PYTHON) -B -m spark_cec.toolchain
