"""`fourfold plan`: parameters, FLOPs and memory of a recipe, and a micro-batch that fits.

A recipe is the config of a training. Its global batch contains all examples of one optimizer step.
The global batch is divided among the devices, and each device can divide its part into several
micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields

from torch import nn

from fourfold.analysis.flops import TRAINING_TO_FORWARD, CostBreakdown, forward_flops, parameters
from fourfold.analysis.memory import Memory, format_bytes, split_batch, training_memory
from fourfold.commands.config_files import expand_arguments
from fourfold.commands.recipe import Recipe, make_parser, parse, read_recipe
from fourfold.core.precision import AUTO
from fourfold.errors import InputError
from fourfold.layers.base_model import Model

GIB = 2**30  # bytes
USABLE_FRACTION = 0.9  # of a device's memory; the driver and fragmentation take the rest
DEFAULT_SENTENCE_LENGTH = 25  # tokens on each side of a sentence pair


def main(argv: Sequence[str]) -> int:
    """Print parameters, FLOPs, memory and batch sizes of a training, computed from its config.

    Further options than those of `fourfold fit` are `--devices` (number on all nodes together) and
    `--memory` (GiB of one device).

    Raises:
        InputError: The config is invalid, or no micro-batch fits into the memory.
    """
    parser = make_parser("fourfold plan")
    parser.add_argument("--devices", type=int | None, default=None)
    parser.add_argument("--memory", type=float | None, default=None)
    config = parse(parser, expand_arguments(argv, evaluates=True))
    devices, memory = config.pop("devices"), config.pop("memory")
    recipe = read_recipe(parser, config)
    length = row_length(recipe)
    lines = [
        type(recipe.task.model).__name__,
        *_table("parameters", parameters(recipe.task.model), "{:,.0f}".format),
        "",
        *_compute_lines(recipe, length),
        "",
        *_device_lines(recipe, length, recipe.devices if devices is None else devices, memory),
    ]
    print("\n".join(lines))
    return 0


def micro_batch_options(argv: Sequence[str], memory: float | None) -> dict[str, int]:
    """Return options of `fourfold fit` that divide the global batch of a recipe among devices.

    They keep the global batch that the config gives for one device; a size in tokens may become
    slightly smaller by rounding. The dict of values by key, such as
    trainer.accumulate_grad_batches, is empty if no option needs to change. `memory` is that of one
    device in GiB.

    Raises:
        InputError: The devices cannot share the batch equally, no micro-batch fits, or the model
            has batch norms, whose statistics would change with a smaller micro-batch.
    """
    parser = make_parser("fourfold fit")
    recipe = read_recipe(parser, parse(parser, argv))
    micro, accumulation = _split(recipe, recipe.devices, memory, row_length(recipe))
    if (micro, recipe.devices) == (recipe.batch, 1):
        return {}
    modules = recipe.task.model.modules()
    if micro < recipe.batch and any(isinstance(module, nn.BatchNorm2d) for module in modules):
        message = f"must be 1, got {recipe.devices}: batch norms compute statistics over the"
        message += f" {recipe.batch} images of the batch, and each device would have {micro}"
        raise InputError(message, option="trainer.devices")
    return _options(recipe, micro, accumulation)


def _options(recipe: Recipe, micro: int, accumulation: int) -> dict[str, int]:
    options = {"trainer.accumulate_grad_batches": accumulation}
    interval = recipe.trainer["val_check_interval"]
    if isinstance(interval, int) and accumulation != recipe.accumulation:
        # val_check_interval counts micro-batches.
        scaled = interval * accumulation // recipe.accumulation
        options["trainer.val_check_interval"] = max(1, scaled)
    return {**options, f"data.init_args.{recipe.batch_key}": micro}


def _has_pairs(model: Model) -> bool:
    return hasattr(model, "tgt_embed") and not model.accepts_images


def row_length(recipe: Recipe) -> int | None:
    """Return the assumed number of tokens of a training example, for estimates of FLOPs and memory.

    It is None for images without text, 25 on each side for an encoder-decoder of text (a typical
    sentence length), and for any other model the maximum length of a text in the config.

    Raises:
        InputError: The cost of the model is not known.
    """
    if not recipe.task.model.has_known_cost:
        message = f"must be another one: the cost of a {type(recipe.task.model).__name__} is not"
        raise InputError(f"{message} known", option="model")
    config = recipe.task.config
    if not hasattr(config, "vocab_size"):
        return None
    limit: int | None = getattr(config, "max_len", None)
    if _has_pairs(recipe.task.model):
        return min(DEFAULT_SENTENCE_LENGTH, limit or DEFAULT_SENTENCE_LENGTH)
    return recipe.length or limit


def micro_batch_memory(recipe: Recipe, length: int | None, batch: int, devices: int) -> Memory:
    """Estimate the memory in bytes that training with a micro-batch takes on each device.

    `length` is that of `row_length`, and `batch` counts tokens if `recipe.counts_tokens`, otherwise
    examples. For several devices, DDP's copy of the gradients is included.
    """
    return training_memory(
        recipe.task.model,
        batch / length if recipe.counts_tokens and length else batch,
        length=length,
        source=length if _has_pairs(recipe.task.model) else None,
        precision=recipe.precision,
        optimizer=recipe.task.optimizer.name,
        replicated=devices > 1,
        head_fraction=_head_fraction(recipe),
    )


def _compute_lines(recipe: Recipe, length: int | None) -> list[str]:
    """Return lines of text with the FLOPs of a forward pass, an optimizer step and all steps."""
    model = recipe.task.model
    flops = forward_flops(model, length)
    title = f"FLOPs, forward, one {_row_description(model, length)}"
    lines = _table(title, flops, lambda count: f"{count / 1e9:,.3f} G")
    if length and not model.accepts_images:
        lines.append(_line("FLOPs, forward, per token", f"{flops.total / length / 1e6:,.2f} M"))
    trained = forward_flops(model, length, head_fraction=_head_fraction(recipe))
    n_rows = recipe.global_batch / (length if recipe.counts_tokens and length else 1)
    step = TRAINING_TO_FORWARD * trained.total * n_rows
    lines.append(_line("FLOPs, training, one step", f"{step:.3e}"))
    if recipe.steps is None:
        return [*lines, "FLOPs of the whole run: unknown, its steps depend on data not available"]
    return [*lines, _line(f"FLOPs, training, {recipe.steps:,} steps", f"{step * recipe.steps:.3e}")]


def _head_fraction(recipe: Recipe) -> float:
    """Return the fraction of tokens that the head reads: of a masked LM, the masked ones."""
    masking = {} if recipe.task.model.can_generate else recipe.arguments.get("masking", {})
    return float(masking.get("mlm_probability", 1.0))


def _row_description(model: Model, length: int | None) -> str:
    if length is None:
        return "image"
    if _has_pairs(model):
        return f"pair of {length:,} and {length:,} tokens"
    return f"{'image with' if model.accepts_images else 'row of'} {length:,} tokens"


def _device_lines(
    recipe: Recipe, length: int | None, devices: int, memory: float | None
) -> list[str]:
    """Return lines of text with the memory of a device and the division of the global batch."""
    total, nodes = recipe.global_batch, int(recipe.trainer["num_nodes"])
    if devices % nodes:
        message = f"must be a multiple of the {nodes} nodes, got {devices}"
        raise InputError(message, option="--devices")
    micro, accumulation = _split(recipe, devices, memory, length)
    used = micro_batch_memory(recipe, length, micro, devices)
    unit = "tokens" if recipe.counts_tokens else "rows"
    actual = devices * micro * accumulation
    rounded = "" if actual == total else f" (rounded to {actual:,})"
    options = {"trainer.devices": devices // nodes, **_options(recipe, micro, accumulation)}
    precision = recipe.precision + f" ({AUTO})" * (recipe.trainer["precision"] == AUTO)
    lines = [
        *_table(f"memory, {precision}, one device", used, format_bytes),
        "",
        f"global batch: {total:,} {unit} = {devices} device{'s' * (devices > 1)} x {micro:,}"
        f" x accumulation {accumulation}{rounded}",
        "  " + " ".join(f"--{key.replace('init_args.', '')} {x}" for key, x in options.items()),
    ]
    if accumulation > 1 and hasattr(recipe.task.model, "similarity"):
        lines.append(
            f"the contrastive loss then compares {micro * devices:,} pairs, which is another recipe"
        )
    configured = total * recipe.devices
    if configured != total:
        lines.append(f"as configured, {recipe.devices} devices take {configured:,} {unit}")
    return lines


def _split(
    recipe: Recipe, devices: int, memory: float | None, length: int | None
) -> tuple[int, int]:
    """Return the largest micro-batch that fits into `memory` GiB, and the accumulation steps."""

    def fits(batch: int) -> bool:
        if recipe.counts_tokens and batch < recipe.arguments["max_len"]:
            return False  # the longest row would exceed the batch
        if memory is None:
            return True
        used = micro_batch_memory(recipe, length, batch, devices).total
        return used <= USABLE_FRACTION * GIB * memory

    return split_batch(recipe.global_batch, devices, fits, exact=not recipe.counts_tokens)


def _line(name: str, value: str) -> str:
    return f"{name:<44}{value:>20}"


def _table(title: str, parts: CostBreakdown | Memory, form: Callable[[float], str]) -> list[str]:
    """Return a line with the total, and a line for each part."""
    rows = [(f"  {part.name}", getattr(parts, part.name)) for part in fields(parts)]
    return [_line(name, form(value)) for name, value in [(title, parts.total), *rows]]
