"""`fourfold plan`: what a recipe costs before it is run, and how to cut its batch for a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf

import torch
from torch import nn

from fourfold.commands.config_files import locate_value
from fourfold.commands.overview import PLAN
from fourfold.commands.recipe import Recipe, make_parser, parse, read_recipe
from fourfold.core.config import TransformerConfig
from fourfold.core.errors import InputError
from fourfold.models.clip import CLIPConfig
from fourfold.models.cost import BACKWARD, Parts, forward_flops, image_tokens, parameters
from fourfold.models.encoder_decoder import EncoderDecoderConfig
from fourfold.models.joined import CaptionerConfig, JoinedConfig
from fourfold.models.memory import Memory, split_batch, training_memory
from fourfold.models.vit import ViTConfig

GIB = 2**30
FREE = 0.9  # the share of a device that tensors may take; the rest goes to driver and fragments
PAIR = 25  # tokens on each side of a sentence pair, where no length is given
PAIRS = (EncoderDecoderConfig, JoinedConfig)  # what learns from pairs of texts
IMAGES_WITH_TEXTS = (CLIPConfig, CaptionerConfig)


def main(argv: Sequence[str]) -> int:
    """Print the plan of a config.

    Raises:
        InputError: Whatever is wrong with the config; or nothing fits into the memory given.
    """
    if not argv or list(argv) in (["-h"], ["--help"]):
        print(PLAN)
        return 0 if argv else 2
    parser = make_parser("fourfold plan")
    parser.add_argument("--devices", type=int | None, default=None)
    parser.add_argument("--memory", type=float | None, default=None)
    parser.add_argument("--length", type=int | None, default=None)
    try:
        config = parse(parser, argv)
        devices, memory, length = (config.pop(key) for key in ("devices", "memory", "length"))
        recipe = read_recipe(parser, config)
        length = row_length(recipe, length)
    except InputError as error:
        raise locate_value(error, list(argv)) from error
    lines = [
        *_model(recipe),
        "",
        *_compute(recipe, length),
        "",
        *_machine(recipe, length, recipe.devices if devices is None else devices, memory),
    ]
    print("\n".join(lines))
    return 0


def cut_to_fit(argv: Sequence[str], memory: float) -> str | None:
    """Options of `fit` for the same step in smaller micro-batches, after one that did not fit.

    Args:
        argv: The options that were given.
        memory: Of one device, in GiB.

    Returns:
        None where no plan can tell.
    """
    parser = make_parser("fourfold fit")
    try:
        recipe = read_recipe(parser, parse(parser, argv))
        length = row_length(recipe, None)

        def fits(batch: int) -> bool:
            used = micro_batch_memory(recipe, length, batch, recipe.devices).total
            return batch <= recipe.batch // 2 and used <= FREE * GIB * memory

        exact = not recipe.counts_tokens
        return _spelled(_options(recipe, *split_batch(recipe.global_batch, 1, fits, exact=exact)))
    except InputError:
        return None


def cut(argv: Sequence[str], memory: float | None) -> dict[str, int]:
    """Options of `fit` for the same global batch on the devices that `argv` names.

    Args:
        argv: The options that are given.
        memory: Of one device, in GiB; None: no micro-batch is too large.

    Returns:
        Values by key; none where the batch may stay as it is.

    Raises:
        InputError: As of the command; or the model's norms are over a batch, which would be a
            smaller one.
    """
    parser = make_parser("fourfold fit")
    recipe = read_recipe(parser, parse(parser, argv))
    micro, accumulation = _split(recipe, recipe.devices, memory)
    if (micro, recipe.devices) == (recipe.batch, 1):
        return {}
    modules = recipe.task.model.modules()
    if micro < recipe.batch and any(isinstance(module, nn.BatchNorm2d) for module in modules):
        raise InputError(
            f"its norms are over {recipe.batch} images, of which each device would have {micro}:"
            " train it on one device that holds them all"
        )
    return _options(recipe, micro, accumulation)


def smaller(command: str, options: list[str]) -> str:
    """What to try after a device has run out of memory."""
    if command != "fit":
        return "make the batches of the evaluation smaller"
    memory = torch.cuda.mem_get_info()[1] / GIB if torch.cuda.is_available() else inf
    if fitting := cut_to_fit(options, memory):
        return f"{fitting} takes the same steps in smaller parts"
    return "make batches smaller and raise --trainer.accumulate_grad_batches instead"


def _options(recipe: Recipe, micro: int, accumulation: int) -> dict[str, int]:
    found = {"trainer.accumulate_grad_batches": accumulation}
    interval, before = recipe.trainer["val_check_interval"], recipe.accumulation
    if isinstance(interval, int) and accumulation != before:  # it counts micro-batches
        found["trainer.val_check_interval"] = max(1, interval * accumulation // before)
    return {**found, f"data.init_args.{recipe.batch_key}": micro}


def _spelled(options: Mapping[str, int]) -> str:
    """Options by key as one types them."""
    return " ".join(f"--{key} {value}" for key, value in options.items())


def row_length(recipe: Recipe, asked: int | None) -> int:
    """Tokens of a row of the batch: an image's patches, a sentence, a stretch of text.

    Raises:
        InputError: A length was asked for that the model does not have.
    """
    config = recipe.config
    if not isinstance(config, TransformerConfig):
        raise InputError(f"no plan for a {type(config).__name__}: only transformers are counted")
    if isinstance(config, ViTConfig):
        if asked is not None:
            raise InputError("--length is for text: that of an image follows from its patches")
        return image_tokens(config)
    given = asked
    if asked is None:
        asked = PAIR if isinstance(config, PAIRS) else recipe.length
    limit: float = config.max_len or inf  # type: ignore[attr-defined]
    if given is None and asked is not None and asked > limit:
        raise InputError(
            f"a row of the data has {asked} tokens, but the model's max_len is {limit}"
        )
    if asked is not None and not 1 <= asked <= limit:
        raise InputError(f"--length is {asked}, but must lie between 1 and max_len {limit}")
    return int(asked or limit)


def micro_batch_memory(recipe: Recipe, length: int, batch: int, devices: int) -> Memory:
    """Bytes on one device for a micro-batch of `batch` rows or tokens."""
    tokens = batch if recipe.counts_tokens else batch * length
    source = tokens if isinstance(recipe.config, PAIRS) else 0
    if isinstance(recipe.config, IMAGES_WITH_TEXTS):
        source = batch * image_tokens(recipe.config)
    optimizer = recipe.task.optimizer_config.name
    return training_memory(
        recipe.config,
        recipe.n_parameters,
        tokens,
        source,
        n_trained=recipe.n_trained,
        precision=recipe.precision,
        optimizer=optimizer,
        replicated=devices > 1,
    )


def _model(recipe: Recipe) -> list[str]:
    parts = parameters(recipe.task.model)
    rows = [(part, f"{getattr(parts, part):,}") for part in ("embeddings", "blocks", "head")]
    return [f"{type(recipe.task.model).__name__}", *_table("parameters", f"{parts.total:,}", rows)]


def _compute(recipe: Recipe, length: int) -> list[str]:
    config = recipe.config
    is_image = isinstance(config, ViTConfig)
    tokens = None if is_image else length
    flops = forward_flops(config, tokens)
    unit = "image" if is_image else f"row of {length:,} tokens"
    if isinstance(config, PAIRS):
        unit = f"pair of {length:,} and {length:,} tokens"
    if isinstance(config, IMAGES_WITH_TEXTS):
        unit = f"image with {length:,} tokens"
    names = ("embeddings", "blocks", "head")
    rows = [(name, f"{getattr(flops, name) / 1e9:,.3f} G") for name in names]
    lines = _table(f"FLOPs, forward, one {unit}", f"{flops.total / 1e9:,.3f} G", rows)
    if not is_image and not isinstance(config, IMAGES_WITH_TEXTS):
        lines.append(_row("FLOPs, forward, per token", f"{flops.total / length / 1e6:,.2f} M"))
    return [*lines, *_training(recipe, forward_flops(config, tokens, scored=recipe.scored), length)]


def _training(recipe: Recipe, flops: Parts, length: int) -> list[str]:
    per_row = length if recipe.counts_tokens else 1
    step = BACKWARD * flops.total * recipe.global_batch / per_row
    lines = [_row("FLOPs, training, one step", f"{step:.3e}")]
    if recipe.steps is None:
        return [*lines, "FLOPs of the whole run: its steps depend on data that are not here"]
    return [*lines, _row(f"FLOPs, training, {recipe.steps:,} steps", f"{step * recipe.steps:.3e}")]


def _machine(recipe: Recipe, length: int, devices: int, memory: float | None) -> list[str]:
    """Micro-batch, accumulation, what they take, and the options that set them."""
    total = recipe.global_batch
    if devices % recipe.nodes:
        raise InputError(f"{recipe.nodes} nodes cannot have {devices} devices, as many on each")
    micro, accumulation = _split(recipe, devices, memory, length)
    used = micro_batch_memory(recipe, length, micro, devices)
    rows = [(f.name, f"{getattr(used, f.name) / GIB:,.2f} GiB") for f in fields(Memory)]
    kind = "tokens" if recipe.counts_tokens else "rows"
    lines = [
        *_table(f"memory, {recipe.precision}, one device", f"{used.total / GIB:,.2f} GiB", rows),
        "",
        f"the recipe's batch: {total:,} {kind} = {devices} device{'s' * (devices > 1)} x {micro:,}"
        f" x accumulation {accumulation}"
        + ("" if (cut := devices * micro * accumulation) == total else f" (in truth {cut:,})"),
        f"  --trainer.devices {devices // recipe.nodes}"
        f" {_spelled(_options(recipe, micro, accumulation))}",
    ]
    if accumulation > 1 and isinstance(recipe.config, CLIPConfig):
        lines.append(f"a pair is then compared among {micro * devices:,}: another recipe")
    configured = total * recipe.devices
    if configured != total:
        lines.append(f"as configured, {recipe.devices} devices would take {configured:,} {kind}")
    return lines


def _split(
    recipe: Recipe, devices: int, memory: float | None, length: int | None = None
) -> tuple[int, int]:
    """Micro-batch and accumulation; without a memory, what it takes is not asked.

    Raises:
        InputError: As of `split_batch` and `row_length`.
    """

    def fits(batch: int) -> bool:
        if recipe.counts_tokens and batch < recipe.arguments["max_len"]:
            return False  # the longest row would not fit into the batch
        if memory is None:
            return True
        asked = row_length(recipe, None) if length is None else length
        return micro_batch_memory(recipe, asked, batch, devices).total <= FREE * GIB * memory

    return split_batch(recipe.global_batch, devices, fits, exact=not recipe.counts_tokens)


def _row(name: str, value: str) -> str:
    return f"{name:<44}{value:>20}"


def _table(name: str, total: str, rows: list[tuple[str, str]]) -> list[str]:
    return [_row(name, total), *(_row(f"  {part}", value) for part, value in rows)]
