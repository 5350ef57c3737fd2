#!/bin/sh
# Makes the virtual environment that every make target runs in: scripts/setup.sh [DIRECTORY]
# An environment that is already there and works is adopted; a broken or unsuitable one is named, never deleted.
set -eu

venv=${1:-.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1

suits() { # does this command run a Python that pyproject.toml accepts?
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

fail() {
    echo "setup: $*" >&2
    exit 1
}

if [ -e "$venv" ]; then
    suits "$venv/bin/python" ||
        fail "$venv exists but holds no working Python 3.11, 3.12 or 3.13; remove it and run this again."
else
    made=
    found=
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        suits "$python" || continue
        found=$python
        # Some systems ship Python without the part that puts pip into an environment.
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue
        echo "setup: making $venv with $("$python" -V); the first time this fetches a few GB."
        "$python" -m venv "$venv" && made=yes && break
    done
    if [ -z "$found" ]; then
        fail "no Python 3.11, 3.12 or 3.13 was found; install one, or name it: make setup PYTHON=/path/to/python3"
    elif [ -z "$made" ]; then
        fail "$found cannot make virtual environments; install its venv module (on Debian and Ubuntu: python3-venv)."
    fi
fi

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
    fail "$venv has no pip; remove it and run this again."
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable '.[dev]' ||
    fail "the packages could not be installed; the lines above say why (no network, or a full disk?)."
echo "setup: $venv is ready."
