"""Layer-wise learning-rate decay, and the layer index of each parameter."""

from fourfold.layers.base_model import Model


def layer_ids(model: Model) -> tuple[dict[str, int], int]:
    """Return the index of each parameter's group in `Model.layer_groups`, and that of the head."""
    groups = model.layer_groups()
    layers: dict[int, int] = {}
    for i, group in enumerate(groups):
        for module in group:
            for parameter in module.parameters():
                layers.setdefault(id(parameter), i)
    return {name: layers[id(p)] for name, p in model.named_parameters()}, len(groups) - 1


def layer_lr_scales(model: Model, layer_decay: float) -> dict[str, float]:
    """Return the factor of layer-wise learning-rate decay for each parameter, by name.

    The factor is 1 for the head and ``layer_decay**k`` for a parameter k layers below the head
    (Clark et al. 2020, ELECTRA; Bao et al. 2021, BEiT).
    """
    ids, head = layer_ids(model)
    return {name: layer_decay ** (head - layer) for name, layer in ids.items()}
