#!/bin/sh
# Sentiment of reviews from 100, 1,000 and 20,000 labels, after a masked LM on unlabelled reviews and from
# scratch with the same words: results/imdb.
#
#   FOURFOLD_DATA=DATA sh scripts/imdb_sentiment.sh [LABELS ...]
#
# The masked LM must stand in runs/bert/laptop_imdb, or in PRETRAINED; SEEDS="0,1,2" by default. What is
# done is not repeated.
set -eu
source=${PRETRAINED:-runs/bert/laptop_imdb}
words="--data.tokenizer.file $source/checkpoints/last.ckpt"
for labels in ${*:-100 1000 20000}; do
    # Few labels are seen often: about 200, 600 and 2,500 steps.
    case $labels in 100) epochs=30 ;; 1000) epochs=10 ;; *) epochs=2 ;; esac
    for start in pretrained scratch; do
        case $start in pretrained) more="--model.init_from $source/checkpoints/last.ckpt" ;; *) more=$words ;; esac
        # shellcheck disable=SC2086  # several words are meant
        python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/imdb/$start/$labels" \
            --config configs/finetune/imdb.yaml --data.train_rows "$labels" \
            --trainer.max_epochs "$epochs" $more
    done
done
