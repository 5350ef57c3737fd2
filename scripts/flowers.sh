#!/bin/sh
# Trains a ViT on Flowers at 48 pixels, from scratch and from a model trained on CIFAR-10 at 32 pixels with
# interpolated position embeddings: results/flowers.
#
#   FOURFOLD_DATA=DATA sh scripts/flowers.sh
#
# The pretraining must be in runs/vit/laptop_cifar10 or PRETRAINED; SEEDS is "0,1,2" by default. Finished
# trainings are not repeated.
set -eu
source=${PRETRAINED:-runs/vit/laptop_cifar10}
for start in pretrained scratch; do
    case $start in pretrained) more="--model.init_from $source/checkpoints/last.ckpt" ;; *) more="" ;; esac
    # shellcheck disable=SC2086  # a list of arguments
    python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/flowers/$start" \
        --config configs/finetune/flowers.yaml $more
done
