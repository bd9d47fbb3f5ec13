# Two commands for a fresh machine: `make demo` and `make test`. Both set everything up themselves.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
TRITON ?= triton==3.7.1
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
# Python compiles what is imported; compiling all that is installed takes nearly half of the set-up.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile

.PHONY: demo check test slow lint docs build container clean

demo: $(READY)
	$(BIN)/scimult demo

# Two workers, for two cores (WORKERS=n for more): each imports all tests, which takes 27 seconds, and
# the rest is bound by the processor (two cores: 818 seconds with 2 workers, 880 with 3, 905 with 4).
# A file's tests stay together for its fixtures, and files begin in the order of tests/conftest.py:
# xdist's own puts those with few tests last, which are the long ones.
WORKERS ?= 2
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: $(READY) $(VENV)/.triton
	$(PYTEST) -m 'not slow and not ranks and not long'

test: $(READY) $(VENV)/.triton
	$(PYTEST)

slow: $(READY) $(VENV)/.triton
	$(PYTEST) -m 'slow or hypothesis' --hypothesis-profile thorough

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	$(INSTALL) --editable '.[docs]'
	$(BIN)/zensical build --strict

build: $(READY)
	$(INSTALL) build
	$(BIN)/python -m build

container:
	docker build --file Dockerfile.serve --build-arg TORCH="$(TORCH)" --tag scimult-serve .
	docker run --rm scimult-serve --help

# The stamp makes the second call instant; a change of the dependencies installs again.
$(READY): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'error: $(PYTHON) is older than Python 3.10. Fix: make PYTHON=python3.11 ...' >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { $(PYTHON) -m venv --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install pip; } || \
	  { echo 'error: $(PYTHON) cannot make a virtual environment. Fix: install its venv module' \
	         '(Debian, Ubuntu: apt install python3-venv) or choose another with make PYTHON=...' >&2; \
	    exit 1; }
	$(INSTALL) --upgrade pip setuptools
	$(INSTALL) $(TORCH) --editable '.[test]'
	@touch $@

# For the interpreter of GPU kernels. CUDA builds of torch bring theirs; where there is none, the tests of kernels skip.
$(VENV)/.triton: $(READY)
	-@{ $(BIN)/python -c 'import triton' 2>/dev/null || \
	    $(INSTALL) '$(TRITON); sys_platform == "linux"'; } && touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
