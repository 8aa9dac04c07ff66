# `make help` lists the targets. CI calls the same targets as a person.
.DEFAULT_GOAL := help
.PHONY: help install run browser test test-fast test-times test-pythons test-gpu stress deploy-demo deploy-demo-tables reproduce leaderboard \
	docs lint format bench bench-privacy parity papers map wheel check-wheel sbom release audit-packages lock clean

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# Versions or paths. uv finds those that are installed, and downloads the others where it may.
PYTHONS ?= 3.11 3.12 3.13
# pyenv answers to the versions that are named here, else uv takes its python3.13 for broken.
FRESH = PYENV_VERSION=$$(pyenv versions --bare 2>/dev/null | sort -rV | paste -sd: -) $(PY) -m uv venv --quiet --no-config
# One process more than the two cores that CI has: some tests wait for other processes.
JOBS ?= 3
FIND_CHROMIUM = command -v chromium || command -v chromium-browser || command -v google-chrome
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

install: $(VENV)/installed ## everything into .venv, from requirements.txt (hashes are checked)

# The last line writes the bytecode of what a run imports: where Python may not, every start would compile torch anew.
$(VENV)/installed: requirements.txt pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@awk '/^[a-z]/ {on = /^uv==/} on' requirements.txt >$(VENV)/uv.txt
	@$(PY) -m uv --version >/dev/null 2>&1 || $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@$(PY) -m uv pip install --quiet --python $(PY) --require-hashes -r requirements.txt
	@$(PY) -m uv pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -c "import fedpriv.commands.runs, fedpriv.runs.start, fedpriv.engines.ray, fedpriv.report.page"
	@touch $@

run: install ## the default job: Fed-CAD on the digits data, about half a minute
	$(PY) -m fedpriv $(ARGS)

browser: ## Chromium for the tests of pages: by apt-get, if it is missing and we are root
	@{ $(FIND_CHROMIUM); } >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium for the tests of pages (apt-get)"; \
		export DEBIAN_FRONTEND=noninteractive; \
		get="apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20"; \
		{ $$get update && $$get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
			|| echo "Chromium could not be installed; going on without it"; \
	else echo "no Chromium here, and only root can install it with apt-get; going on without it"; fi

test: install browser ## all tests in JOBS processes, some of them in turn by commit (all: FEDPRIV_ALL_RUNS=1; real pictures: ../shared/data)
	@marks="not gpu"; \
	{ $(FIND_CHROMIUM); } >/dev/null || { marks="not gpu and not browser"; \
		echo "the browser tests are left out: there is no Chromium here"; }; \
	set -x; $(PY) -m pytest -m "$$marks" -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(ARGS)

test-fast: install ## quick tests of the lower rooms, about a minute, for daily work; ARGS="-k mechanisms" tries one room
	$(PY) -m pytest --fast -m "not gpu and not browser" -n $(JOBS) --dist loadfile --max-worker-restart=0 \
		$(patsubst %,--ignore=tests/%,system engines contract attacks methods deployment runs doors studies) $(ARGS)

test-times: ## runs all tests and writes which of them are slow (tests/slow_tests.txt)
	$(MAKE) test ARGS="--list-slow $(ARGS)"

test-pythons: install ## all tests on each of PYTHONS, in build/pythons (hours; a minute or two each: RUNS=test-fast)
	@for one in $(PYTHONS); do place=build/pythons/$$(basename $$one); set -e; \
		test -x $$place/bin/python || $(FRESH) --seed --python $$one $$place; $(MAKE) $(or $(RUNS),test) VENV=$$place; done

test-gpu: install ## tests of the GPU paths; fails where there is no GPU
	$(PY) -m pytest -m gpu $(ARGS)

docs: install ## the documentation as a site in build/docs; to search in it: python -m http.server -d build/docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo build/docs/index.html

stress: install ## the sampled tests of `make test` in full: every method, a million damaged messages, as many found by coverage, 1,000 kills
	FEDPRIV_STRESS=1 FEDPRIV_FUZZ_CASES=1000000 FEDPRIV_KILLS=1000 $(PY) -m pytest -s --timeout=7200 \
		tests/common/test_records.py tests/engines/test_requests.py tests/system/test_fuzz.py tests/config/test_remote_options.py \
		tests/deployment/test_data_ledger.py tests/certificates/test_lines_agree.py $$(grep -rl "mark.rotates" tests --include=test_*.py) $(ARGS)

lint: install ## ruff (lint and format), mypy, and the container files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/hadolint deploy/*.Dockerfile
	$(VENV)/bin/compose-lint check --fail-on low deploy/compose.yaml

format: install ## let ruff format and sort
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

deploy-demo: install ## a deployment rehearsed on this machine: SuperLink, four SuperNodes, TLS, policies, a secure sum (three minutes)
	$(PY) -m deploy.demo

deploy-demo-tables: install ## the same with five hospitals that hold a CSV file each (four minutes)
	$(PY) -m deploy.demo tables

bench: install ## speed: against a bare loop and Flower's own runtime, by size, and by part of a round (a quarter of an hour)
	$(PY) -m benchmarks $(ARGS)

bench-privacy: install ## accounting, noise and auditor: agreement with other accountants, throughput, power
	$(PY) benchmarks/bench_accounting.py
	$(PY) benchmarks/bench_noise.py
	$(PY) benchmarks/bench_auditor.py

parity: install ## the same jobs by pfl, Opacus, Flower's strategies, scikit-learn and a plain loop: accuracy and epsilon (half an hour)
	@test -x build/parity/env/bin/python || $(PY) -m uv venv --quiet --no-config --python $(PY) build/parity/env
	@$(PY) -m uv pip install --quiet --no-config --python build/parity/env/bin/python --require-hashes -r parity/requirements.txt
	OMP_NUM_THREADS=1 $(PY) -m parity $(ARGS)

reproduce: install ## every paper's experiments at scale=small: tables, figures and verdicts in results/ (under an hour on two cores)
	$(PY) -m fedpriv.reproduce paper=all scale=small $(ARGS)

leaderboard: install ## all methods at equal verified epsilon, by threat model (nine hours of runs; ARGS="board=example data=DIR")
	$(PY) -m fedpriv.leaderboard $(ARGS)

papers: install ## lists where each equation of the papers is in the code
	$(PY) -m fedpriv.papers

map: install ## docs/architecture.svg: the rooms and floors of the code, drawn from its imports
	$(PY) -m tools.architecture

wheel: install ## the wheel and the source distribution, in build/dist
	PATH="$$PWD/$(VENV)/bin:$$PATH" $(PY) -m uv build --quiet --no-build-isolation -o build/dist

check-wheel: install ## the wheel fedpriv-check, of `fedpriv check` alone, in build/dist
	PATH="$$PWD/$(VENV)/bin:$$PATH" $(PY) -m tools.check_wheel

sbom: install ## lists of materials (SBOM, CycloneDX) of servers and nodes, from the locks, in build/dist
	@mkdir -p build/dist
	@for list in requirements node; do \
		$(PY) -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
			-o build/dist/$$list.sbom.json deploy/$$list.txt || exit 1; done

release: install ## a release in build/dist (wheels, source, SBOM), tried with its locks on each of PYTHONS; docs in build/docs (minutes)
	@rm -rf build/dist build/release
	@$(MAKE) wheel check-wheel sbom docs
	@$(MAKE) audit-packages || ! grep -q "^Found " build/audit.txt
	@for one in $(PYTHONS); do place=build/release/$$(basename $$one); set -e; export FEDPRIV_HOME=$$PWD/build/release/home; \
		$(FRESH) --python $$one $$place/full; $(FRESH) --python $$one $$place/check; \
		$(PY) -m uv pip install --quiet --python $$place/full/bin/python --require-hashes -r deploy/requirements.txt; \
		$(PY) -m uv pip install --quiet --python $$place/full/bin/python --no-deps build/dist/fedpriv-*.whl; \
		$(PY) -m uv pip install --quiet --python $$place/check/bin/python -c requirements.txt build/dist/fedpriv_check-*.whl; \
		(cd $$place && full/bin/fedpriv -q num_rounds=2 hydra.run.dir=run && full/bin/fedpriv certificate run && \
			full/bin/fedpriv audit run=run trials=2000 && check/bin/fedpriv-check --help >/dev/null); \
		echo "$$one: $$($$place/full/bin/fedpriv --version) works"; rm -rf $$place; done
	@ls build/dist

audit-packages: install ## known weaknesses of all locked packages; needs the network
	@for list in requirements deploy/requirements deploy/node; do \
		$(VENV)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $$list.txt \
			>build/audit.txt 2>&1; code=$$?; \
		cat build/audit.txt; \
		if [ $$code != 0 ] && ! grep -q "^Found " build/audit.txt; then \
			echo "audit-packages: the database of advisories could not be reached: nothing is known of $$list.txt"; exit 2; \
		elif [ $$code != 0 ]; then exit 1; fi; \
	done

LOCK = $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

lock: install ## resolve requirements.in into requirements.txt, parity's likewise, what servers need into deploy/requirements.txt, and nodes into deploy/node.txt
	$(PY) -m tools.pins none
	$(LOCK) requirements.in -o requirements.txt
	$(LOCK) parity/requirements.in -o parity/requirements.txt
	$(LOCK) pyproject.toml --extra simulation -c requirements.txt -o deploy/requirements.txt
	$(LOCK) pyproject.toml --extra node -c requirements.txt -o deploy/node.txt
	$(PY) -m tools.pins

clean: ## remove caches and the environment, never outputs
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
