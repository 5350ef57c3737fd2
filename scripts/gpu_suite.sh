#!/bin/sh
# One command on one machine with a CUDA device and torch >= 2.11, under ten minutes: the tests that need
# one and the benchmark against the peers that are installed.
#
#   sh scripts/gpu_suite.sh OUT
#
# OUT gets suite.json and README.md, for results/gpu, and what each part wrote. A part that fails or runs out
# of its time is named there and does not keep the others from running. SIZE=tiny DEVICE=cpu tries it all out
# without a GPU; PARTS="tests train" takes some parts only; PYTHON names another interpreter; NANOGPT is the
# path of nanoGPT's model.py; FOURFOLD_DATA the data sets. Parts beyond the default: compiled (train with
# every way compiled, too: eleven models to compile), evaluate, growth, and two that train, for which
# `pip install -e '.[demo]'` is needed: precisions and shakespeare (nanoGPT's setting for one GPU: minutes).
set -u
out=${1:?usage: sh scripts/gpu_suite.sh OUT}
cd "$(dirname "$0")/.." || exit 1
size=${SIZE:-gpu} device=${DEVICE:-cuda} python=${PYTHON:-python3}
parts=${PARTS:-tests train memory greedy beam}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false
mkdir -p "$out"
printf 'part,code,seconds\n' > "$out/parts.csv"

# part SECONDS COMMAND ...: run it if it was asked for, keep what it says, note how it ended.
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
    part "$what" "$limit" "$python" -m fourfold bench --size "$size" --device "$device" --work "$work" \
        --rounds "${ROUNDS:-7}" --out "$out/$what" "$@"
}

# Only the files that have any: the others may import what a bare machine lacks.
# shellcheck disable=SC2046  # a word each
part tests 120 "$python" -m pytest -q -p no:cacheprovider -m cuda $(grep -rl "mark[.]cuda" tests)
# shellcheck disable=SC2086  # an option and its value, or nothing
bench train 240 ${NANOGPT:+--nanogpt "$NANOGPT"}
bench memory 90
bench greedy 90
bench beam 60
# shellcheck disable=SC2086
bench compiled 580 --compiled ${NANOGPT:+--nanogpt "$NANOGPT"}
bench evaluate 120
bench growth 300
part precisions 300 "$python" scripts/precisions.py "$out/precisions"
part shakespeare 580 "$python" -m fourfold fit --config configs/gpt2/single_gpu_shakespeare_char.yaml \
    --run_dir "$out/shakespeare"
"$python" scripts/gpu_report.py "$out"
