#!/bin/sh
# Fine-tunes all-MiniLM-L6-v2, or a randomly initialized model, on seven tasks: results/minilm.
#
#   FOURFOLD_DATA=DATA sh scripts/finetune_minilm.sh MODEL [TASK ...]
#
# MODEL is the directory with config.json and model.safetensors, or "random". Each task is trained with
# three seeds (SEEDS, default "0,1,2") in runs/minilm/MODEL/TASK; finished trainings are not repeated.
set -eu
model=$1
shift
tasks=${*:-MRPC STS-B SST-2 CoLA RTE wnut17 xquad}
case $model in
random) start="" name=random keep="" ;;
*) start="--model.init_from $model" name=pretrained keep="--model.tuning.freeze 1" ;;
esac
for task in $tasks; do
    case $task in
    wnut17 | xquad) recipe="configs/finetune/minilm_$task.yaml" ;;
    # 67,349 sentences: larger batches and weight averaging; the pretrained embeddings are frozen.
    SST-2) recipe="configs/finetune/minilm_glue.yaml --data.task SST-2 --data.batch_size 32
        --model.optimizer.lr 1e-4 --trainer.max_epochs 3 --ema_decay 0.999 $keep" ;;
    *) recipe="configs/finetune/minilm_glue.yaml --data.task $task" ;;
    esac
    # shellcheck disable=SC2086  # a list of arguments
    python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/minilm/$name/$task" \
        --config $recipe $start
done
