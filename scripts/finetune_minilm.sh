#!/bin/sh
# Seven downstream tasks from the weights of all-MiniLM-L6-v2 and from random ones: results/minilm.
#
#   FOURFOLD_DATA=DATA sh scripts/finetune_minilm.sh MODEL [TASK ...]
#
# MODEL is the directory with config.json and model.safetensors, or "random". Each task is trained
# with three seeds (SEEDS, by default "0,1,2"), in runs/minilm/MODEL/TASK; what is done is not repeated.
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
    # 67,349 sentences: larger batches, and an average of the weights. Words keep the vectors they bring.
    SST-2) recipe="configs/finetune/minilm_glue.yaml --data.task SST-2 --data.batch_size 32
        --model.optimizer.lr 1e-4 --trainer.max_epochs 3 --ema_decay 0.999 $keep" ;;
    *) recipe="configs/finetune/minilm_glue.yaml --data.task $task" ;;
    esac
    # shellcheck disable=SC2086  # several words are meant
    python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/minilm/$name/$task" \
        --config $recipe $start
done
