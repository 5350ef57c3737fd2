#!/bin/sh
# Creates the virtual environment of all make targets: scripts/tools/setup.sh [DIRECTORY]
# An existing environment is reused if it works; otherwise the script stops and does not delete it.
set -eu

venv=${1:-.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1

is_supported() { # true if the command runs a Python version that pyproject.toml accepts
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

fail() {
    echo "setup: $*" >&2
    exit 1
}

if [ -e "$venv" ]; then
    is_supported "$venv/bin/python" ||
        fail "$venv exists, but contains no working Python 3.11, 3.12 or 3.13; remove it and run this script again"
else
    created=
    found=
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        is_supported "$python" || continue
        found=$python
        # Some systems package ensurepip separately.
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue
        echo "setup: creating $venv with $("$python" -V); the first time, this downloads a few GB"
        "$python" -m venv "$venv" && created=yes && break
    done
    if [ -z "$found" ]; then
        fail "no Python 3.11, 3.12 or 3.13 was found; install one, or set PYTHON: make setup PYTHON=/path/to/python3"
    elif [ -z "$created" ]; then
        fail "$found cannot create virtual environments; install its venv module (on Debian and Ubuntu: python3-venv)"
    fi
fi

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
    fail "$venv has no pip; remove it and run this script again"
"$venv/bin/python" -m pip install --quiet --constraint constraints.txt --editable '.[dev]' ||
    fail "the packages could not be installed; see the messages above"
echo "setup: $venv is ready."
