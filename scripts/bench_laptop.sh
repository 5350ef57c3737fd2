#!/bin/sh
# Measures the benchmarks of results/bench on an idle machine; takes an hour on two cores.
#
#   FOURFOLD_DATA=DATA NANOGPT=model.py sh scripts/bench_laptop.sh OUT [OPTION ...]
#
# Options such as --peers or --threads are passed to each `python scripts/benchmarks`.
# OUT receives a folder for each part, and a README.md with all tables. Peers that are not installed are left out.
# A part with a bench.json is not measured again. PARTS="wide decoding_bf16" selects parts, ROUNDS (5) sets the rounds,
# SIZE=tiny tests the script. Only `sentences` requires data: Multi30k and SST-2.
set -eu
out=${1:?usage: sh scripts/bench_laptop.sh OUT [OPTION ...]}
shift
size=${SIZE:-laptop} rounds=${ROUNDS:-5}
parts=${PARTS:-train_bf16 train_fp32 compiled wide decoding_bf16 decoding_fp32 sentences growth}

# part NAME OPTION ...: measure a part if it is selected and has no results yet.
part() {
    name=$1
    shift
    case " $parts " in *" $name "*) ;; *) return 0 ;; esac
    [ -e "$out/$name/bench.json" ] && return 0
    python "$(dirname "$0")/benchmarks" --size "$size" --device cpu --rounds "$rounds" ${NANOGPT:+--nanogpt "$NANOGPT"} \
        --out "$out/$name.part" "$@"
    mv "$out/$name.part" "$out/$name"
}

wide=wide
[ "$size" = laptop ] || wide=$size
part train_bf16 --work train evaluate memory --precision bf16 "$@"
part train_fp32 --work train --precision fp32 "$@"
part compiled --work train --compile "$@"
part wide --size "$wide" --work train --family causal_lm masked_lm "$@"
part decoding_bf16 --work greedy beam --precision bf16 "$@"
part decoding_fp32 --work greedy beam --precision fp32 "$@"
part sentences --work sentences "$@"
part growth --growth length vocabulary --peers transformers "$@"
python "$(dirname "$0")/bench_tables.py" "$out"
