# Everything a newcomer types. `make up` and `make test` do their own set-up; a second one takes no time.

# Debian's own Python first: it is built with profile-guided optimization, which version managers mostly leave out, and
# makes the daemon half as fast again.
DEBIAN_PYTHON ?= /usr/bin/python3.11
PYTHON ?= $(shell for python in $(DEBIAN_PYTHON) python3.11 python3; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	command -v "$$python" && break; done)
BIN := .venv/bin
# Containers often tell Python to keep no compiled files. Then each start of the daemon would compile everything anew:
# 2 s of computing in place of 0.7.
export PYTHONDONTWRITEBYTECODE :=
ARGS ?=
BENCH ?= gateway scheduler traffic scale spool loops promises plans
# Test processes at once: twice as many as a small machine has cores, because half of the tests wait.
JOBS ?= 4

# The form in which locks are made: hashes, every platform, no download addresses.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate $(if $(UPGRADE),--upgrade)
EXTRAS = --extra fast --extra local --extra nats --extra schema --extra sign

.DEFAULT_GOAL := help
.PHONY: help python setup setup-dev up test check check-clients wheel docs pictures bench torture lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

python:
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "Python 3.11 or newer is missing: apt install python3 python3-venv" >&2; exit 2; }

setup: python ## build .venv with watchbill in it
	@"$(PYTHON)" tools/setup.py

setup-dev: python ## the same with what tests and checks need
	@"$(PYTHON)" tools/setup.py --dev

up: setup ## start the daemon: make up ARGS="--port 0 --root DIR"
	@exec $(BIN)/watchbill up $(ARGS)

test: setup-dev ## run every test: make test ARGS="tests/unit -k name"
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: setup-dev ## lint, format, types, known vulnerabilities
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/basedpyright
	@$(BIN)/python tools/audit.py

check-clients: setup-dev ## clients of npm and large ones of Python against a gateway: needs node, fetches some 900 MB once
	@cd tests/clients && npm ci --no-audit --no-fund
	@test -x .cache/clients/bin/python || "$(PYTHON)" -m venv --without-pip .cache/clients
	@$(BIN)/uv pip sync --quiet --require-hashes --python .cache/clients requirements-clients.lock
	@$(BIN)/python -m pytest tests/clients $(ARGS)

wheel: setup-dev ## build dist/watchbill-*.whl, for pipx, uv tool or pip
	@$(BIN)/python -m hatchling build -t wheel -d dist

docs: setup ## write the list of modules in docs/structure.md anew, and the site of the documentation to dist/site
	@"$(PYTHON)" tools/structure.py
	@$(BIN)/python tools/docs_site.py

pictures: setup-dev ## make the pictures in docs/ anew: runs of the simulator, and of a real daemon in Chromium; five minutes
	@$(BIN)/watchbill simulate bench/scenarios/flood.toml --compare --svg docs/pictures/flood.svg --quiet > /dev/null
	@$(BIN)/watchbill simulate --frontier --svg docs/pictures/frontier.svg --quiet > /dev/null
	@$(BIN)/python tests/page/screenshots.py

bench: setup-dev ## measure; prints pass or fail per target: make bench BENCH="gateway scheduler"
	@status=0; for name in $(BENCH); do $(BIN)/python bench/$$name.py $(ARGS) || status=1; done; exit $$status

torture: setup-dev ## the long forms of the fault tests; the spool's own trials run without ARGS only
	@$(BIN)/python -m pytest --torture $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python bench/torture_spool.py

lock: setup-dev ## make the lock files anew: make lock UPGRADE=1 for newer versions
	@$(LOCK) pyproject.toml $(EXTRAS) --group build --output-file requirements.lock
	@$(LOCK) pyproject.toml $(EXTRAS) --group build --group dev --constraints requirements.lock --output-file requirements-dev.lock
	@$(LOCK) --group setup --output-file requirements-setup.lock
	@$(LOCK) --group clients --output-file requirements-clients.lock

clean: ## remove what was built; models and state are not touched
	@rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis dist
