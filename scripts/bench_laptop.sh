#!/bin/sh
# The benchmarks of results/bench, for a machine with nothing else to do: an hour on two cores.
#
#   FOURFOLD_DATA=DATA NANOGPT=model.py sh scripts/bench_laptop.sh OUT [OPTION ...]
#
# Options go to each `fourfold bench`, as --peers or --threads.
# OUT gets a folder for each part, and its README.md the tables of all. Peers are those that are installed. A part
# that has its bench.json is not measured again; PARTS="wide greedy_bf16" takes some only, ROUNDS is 5.
# SIZE=tiny tries it all out. The data, Multi30k and SST-2, are needed by `sentences` alone.
set -eu
out=${1:?usage: sh scripts/bench_laptop.sh OUT [OPTION ...]}
shift
size=${SIZE:-laptop} rounds=${ROUNDS:-5}
parts=${PARTS:-train_bf16 train_fp32 compiled wide writing_bf16 writing_fp32 sentences growth}

# part NAME OPTION ...: measure it if it was asked for and is not there.
part() {
    name=$1
    shift
    case " $parts " in *" $name "*) ;; *) return 0 ;; esac
    [ -e "$out/$name/bench.json" ] && return 0
    python -m fourfold bench --size "$size" --device cpu --rounds "$rounds" ${NANOGPT:+--nanogpt "$NANOGPT"} \
        --out "$out/$name.part" "$@"
    mv "$out/$name.part" "$out/$name"
}

wide=wide
[ "$size" = laptop ] || wide=$size
part train_bf16 --work train evaluate memory "$@"
part train_fp32 --work train --precision fp32 "$@"
part compiled --work train --compiled "$@"
part wide --size "$wide" --work train --family causal_lm masked_lm "$@"
part writing_bf16 --work greedy beam "$@"
part writing_fp32 --work greedy beam --precision fp32 "$@"
part sentences --work sentences "$@"
part growth --growth length vocabulary --peers transformers "$@"
python "$(dirname "$0")/bench_tables.py" "$out"
