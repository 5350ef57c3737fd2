#!/bin/sh
# Seven downstream tasks from the weights of all-MiniLM-L6-v2 and from random ones: results/minilm.
#
#   FOURFOLD_DATA=DATA sh scripts/finetune_minilm.sh MODEL [TASK ...]
#
# MODEL is the directory with config.json and model.safetensors, or "random". Each task is trained
# with three seeds (SEEDS="0 1 2" as commas), in runs/minilm/MODEL/TASK; what is done is not repeated.
set -eu
model=$1
shift
tasks=${*:-MRPC STS-B SST-2 CoLA RTE wnut17 xquad}
case $model in
random) start="" name=random ;;
*) start="--model.init_from $model" name=pretrained ;;
esac
for task in $tasks; do
    case $task in
    wnut17 | xquad) recipe="configs/finetune/minilm_$task.yaml" ;;
    # 67,349 sentences: one epoch of larger batches.
    SST-2) recipe="configs/finetune/minilm_glue.yaml --data.task SST-2 --data.batch_size 32
        --trainer.max_epochs 1" ;;
    *) recipe="configs/finetune/minilm_glue.yaml --data.task $task" ;;
    esac
    # shellcheck disable=SC2086  # several words are meant
    python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/minilm/$name/$task" \
        --config $recipe $start
done
