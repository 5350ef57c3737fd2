#!/bin/sh
# Runs the CUDA tests and the benchmarks against installed peers on one machine with torch >= 2.11 and a
# CUDA device, in about ten minutes.
#
#   sh scripts/benchmarks/gpu_suite.sh OUT
#
# OUT receives suite.json and README.md, for results/gpu, and the output of each part. A part that fails or
# exceeds its time limit is reported, and the others still run. SIZE=tiny DEVICE=cpu tests the script without
# a GPU; PARTS="tests train" selects parts; PYTHON sets the interpreter; NANOGPT is the path of nanoGPT's
# model.py; FOURFOLD_DATA is the directory of the datasets. WORKERS is the number of processes that run the
# tests, which requires pytest-xdist (default: one for each core, at most 14); WORKERS= runs them in one process.
# The tests of training require `pip install 'fourfold[demo]'`. Parts that do not run by default: compiled
# (train, with every contender compiled as well), memory (train measures it on a GPU, too), evaluate,
# shakespeare (nanoGPT's setting for one GPU, which takes minutes and requires the extra demo), and the published
# results cifar10, multi30k and inflection, whose data scripts/tools/published_data.py prepares.
set -u
out=${1:?usage: sh scripts/benchmarks/gpu_suite.sh OUT}
cd "$(dirname "$0")/../.." || exit 1
size=${SIZE:-gpu} device=${DEVICE:-cuda} python=${PYTHON:-python3}
parts=${PARTS:-tests train greedy beam}
workers=${WORKERS-$("$python" -c 'import os; print(min(14, os.cpu_count()))')}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false
mkdir -p "$out"
printf 'part,code,seconds\n' > "$out/parts.csv"

# part NAME SECONDS COMMAND ...: run a part if it is selected; save its output and exit code.
part() {
    name=$1 limit=$2
    shift 2
    case " $parts " in *" $name "*) ;; *) return 0 ;; esac
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1
    code=$?
    echo "$name,$code,$(($(date +%s) - began))" >> "$out/parts.csv"
    echo "$name: exit code $code after $(($(date +%s) - began)) s"
}

bench() {
    what=$1 limit=$2
    shift 2
    work=$what
    if [ "$what" = compiled ]; then work=train; fi
    part "$what" "$limit" "$python" scripts/benchmarks --size "$size" --device "$device" --work "$work" \
        --rounds "${ROUNDS:-7}" --out "$out/$what" "$@"
}

# Only files with CUDA tests, since others may import packages that are not installed.
# shellcheck disable=SC2046  # one argument per file
part tests 180 "$python" -m pytest -q -p no:cacheprovider ${workers:+-n "$workers"} -m cuda $(grep -rl "mark[.]cuda" tests)
# shellcheck disable=SC2086  # an option with its value, or nothing
bench train 220 ${NANOGPT:+--nanogpt "$NANOGPT"}
bench greedy 110
bench beam 50
# shellcheck disable=SC2086
bench compiled 580 --compile ${NANOGPT:+--nanogpt "$NANOGPT"}
bench evaluate 120
# shellcheck disable=SC2086
bench memory 300 ${NANOGPT:+--nanogpt "$NANOGPT"}
part shakespeare 580 "$python" -m fourfold fit --config configs/gpt2/single_gpu_shakespeare_char.yaml \
    --run_dir "$out/shakespeare"
# reproduce NAME TABLE: train the tier single-gpu of a table; repeat with the same OUT to resume.
reproduce() {
    part "$1" 580 "$python" -m fourfold reproduce "$2" --tier single-gpu --seeds "${SEEDS:-3}" \
        --out "$out/tables" --runs "$out/runs"
}
reproduce cifar10 yoshioka2024/cifar10
reproduce multi30k wu2021/multi30k
reproduce inflection cotterell2017/inflection
"$python" scripts/benchmarks/gpu_report.py "$out"
