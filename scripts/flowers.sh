#!/bin/sh
# Flowers at 48 pixels by a ViT that learned CIFAR-10 at 32, with interpolated positions, and by one from
# scratch: results/flowers.
#
#   FOURFOLD_DATA=DATA sh scripts/flowers.sh
#
# The first training must stand in runs/vit/laptop_cifar10, or in PRETRAINED; SEEDS="0,1,2" by default.
# What is done is not repeated.
set -eu
source=${PRETRAINED:-runs/vit/laptop_cifar10}
for start in pretrained scratch; do
    case $start in pretrained) more="--model.init_from $source/checkpoints/last.ckpt" ;; *) more="" ;; esac
    # shellcheck disable=SC2086  # several words are meant
    python -m fourfold seeds --seeds "${SEEDS:-0,1,2}" --run_dir "runs/flowers/$start" \
        --config configs/finetune/flowers.yaml $more
done
