#!/bin/sh
# Trains sentiment classifiers on 100, 1,000 and 20,000 labels, from a masked LM of unlabeled reviews and from
# scratch with the same tokenizer: results/imdb.
#
#   FOURFOLD_DATA=DATA sh scripts/imdb_sentiment.sh [LABELS ...]
#
# The masked LM must be in runs/bert/laptop_imdb or PRETRAINED; SEEDS is "0,1,2" by default. Finished
# trainings are not repeated.
set -eu
source=${PRETRAINED:-runs/bert/laptop_imdb}
tokenizer="--data.tokenizer.file $source/checkpoints/last.ckpt"
for labels in ${*:-100 1000 20000}; do
    # About 200, 600 and 2,500 steps.
    case $labels in 100) epochs=30 ;; 1000) epochs=10 ;; *) epochs=2 ;; esac
    for start in pretrained scratch; do
        case $start in pretrained) more="--model.init_from $source/checkpoints/last.ckpt" ;; *) more=$tokenizer ;; esac
        # shellcheck disable=SC2086  # a list of arguments
        python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/imdb/$start/$labels" \
            --config configs/finetune/imdb.yaml --data.train_rows "$labels" \
            --trainer.max_epochs "$epochs" $more
    done
done
