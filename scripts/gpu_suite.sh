#!/bin/sh
# Runs the parts of gpu_parts.csv on one machine with torch >= 2.11 and a CUDA device, in the order of the
# table, and skips those whose result for the same sources is in results/gpu.
#
#   sh scripts/gpu_suite.sh [--budget SECONDS] [--out DIR] [--parts NAME ...]
#
# A second call continues. PYTHON sets the interpreter; NANOGPT is the path of nanoGPT's model.py;
# FOURFOLD_DATA is the directory of the datasets. SIZE=tiny DEVICE=cpu tests the parts without a GPU.
# The tests of training require `pip install 'fourfold[demo]'` and pytest-xdist.
set -u
cd "$(dirname "$0")/.." || exit 1
export PYTHON="${PYTHON:-python3}" SIZE="${SIZE:-gpu}" DEVICE="${DEVICE:-cuda}" ROUNDS="${ROUNDS:-7}"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
export WITH_NANOGPT="${NANOGPT:+--nanogpt $NANOGPT}"
export BENCH="$PYTHON scripts/benchmarks --size $SIZE --rounds $ROUNDS"
# Parts on the CPU get two cores of their own if there are enough.
cores=$("$PYTHON" -c 'import os; print(os.cpu_count())')
if [ "$cores" -ge 8 ]; then export ON_CPU="taskset -c $((cores - 4)),$((cores - 2))"; else export ON_CPU=; fi
exec "$PYTHON" scripts/tools/gpu_queue.py "$@"
