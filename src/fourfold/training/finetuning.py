"""Freezing of layers and batch-norm statistics, gradual unfreezing and LoRA."""

from torch import nn

from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.layer_lr_decay import layer_ids
from fourfold.layers.base_model import Model
from fourfold.layers.heads import VocabularyHead
from fourfold.layers.token_embedding import TokenEmbedding


def apply_finetuning(model: Model, tuning: TuningConfig) -> None:
    """Freeze layers of a model and add low-rank updates, in place.

    Raises:
        InputError: There is no token embedding although `tuning.freeze` is "tokens", or no linear
            layer with a name in `tuning.lora_targets`.
    """
    if tuning.freeze == "tokens":
        embeddings = [m for m in model.modules() if isinstance(m, TokenEmbedding)]
        if not embeddings:
            message = f"must not be tokens: a {type(model).__name__} has no token embedding"
            raise InputError(message, option="model.tuning.freeze")
        for embedding in embeddings:
            embedding.tokens.requires_grad_(False)
    elif tuning.freeze:
        ids, head = layer_ids(model)
        last_frozen = head - 1 if tuning.freeze == "all" else int(tuning.freeze)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(ids[name] > last_frozen)
        model.train(model.training)  # freezes the statistics of the batch norms in frozen layers
    if tuning.lora_rank:
        from fourfold.finetuning.lora import add_lora, is_lora

        add_lora(model, tuning)
        ids, head = layer_ids(model)
        # The head of a classifier is new, and that of a language model is pre-trained.
        vocabulary = [m for m in model.modules() if isinstance(m, VocabularyHead)]
        frozen = {id(p) for module in vocabulary for p in module.parameters()}
        for name, parameter in model.named_parameters():
            is_new = ids[name] == head and id(parameter) not in frozen
            parameter.requires_grad_(is_lora(model, name) or is_new)


def frozen_at_epoch(model: Model, tuning: TuningConfig, epoch: int) -> list[nn.Parameter]:
    """Return the parameters that gradual unfreezing still freezes in an epoch, counted from 0."""
    if tuning.gradual_unfreezing_epochs is None:
        return []
    ids, head = layer_ids(model)
    last_frozen = head - 1 - epoch // tuning.gradual_unfreezing_epochs
    return [p for name, p in model.named_parameters() if ids[name] <= last_frozen]


def freeze_batchnorm(model: Model, tuning: TuningConfig, epoch: int) -> None:
    """Freeze the running statistics of batch norms in layers that are frozen in an epoch.

    Frozen batch norms are set to eval mode, and all others to training mode. Without gradual
    unfreezing, nothing is changed.
    """
    if tuning.gradual_unfreezing_epochs is None:
        return
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    frozen = set(map(id, frozen_at_epoch(model, tuning, epoch))) if norms else set()
    for norm in norms:
        norm.train(norm.weight.requires_grad and id(norm.weight) not in frozen)
