"""`fourfold plan`: parameters, FLOPs and memory of a recipe, and a micro-batch that fits.

A recipe is the config of a training. Its global batch contains all examples of one optimizer step.
The global batch is divided among the devices, and each device can divide its part into several
micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields

from torch import nn

from fourfold.analysis.flops import (
    TRAINING_TO_FORWARD,
    CostBreakdown,
    forward_flops,
    image_tokens,
    parameters,
)
from fourfold.analysis.memory import Memory, format_bytes, split_batch, training_memory
from fourfold.commands.recipe import Recipe, make_parser, parse, read_recipe
from fourfold.commands.train.config_files import expand_arguments
from fourfold.core.config import TransformerConfig
from fourfold.core.precision import AUTO
from fourfold.errors import InputError
from fourfold.models.contrastive.clip import CLIPConfig
from fourfold.models.encoder_decoder.composite import ImageToTextConfig, TextToTextConfig
from fourfold.models.encoder_decoder.model import EncoderDecoderConfig
from fourfold.models.recurrent.hierarchical import HierarchicalClassifierConfig
from fourfold.models.recurrent.language_model import RecurrentLMConfig
from fourfold.models.vit.masked_autoencoder import MaskedAutoencoderConfig
from fourfold.models.vit.model import ViTConfig

GIB = 2**30  # bytes
USABLE_FRACTION = 0.9  # of a device's memory; the driver and fragmentation take the rest
DEFAULT_SENTENCE_LENGTH = 25  # tokens on each side of a sentence pair
TEXT_PAIR_CONFIGS = (EncoderDecoderConfig, TextToTextConfig)
IMAGE_TEXT_CONFIGS = (CLIPConfig, ImageToTextConfig)


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
    length = None if memory is None else row_length(recipe)
    micro, accumulation = _split(recipe, recipe.devices, memory, length)
    if (micro, recipe.devices) == (recipe.batch, 1):
        return {}
    modules = recipe.task.model.modules()
    if micro < recipe.batch and any(isinstance(module, nn.BatchNorm2d) for module in modules):
        raise InputError(
            f"must be 1, got {recipe.devices}: batch norms compute statistics over the"
            f" {recipe.batch} images of the batch, and each device would have {micro}",
            option="trainer.devices",
        )
    return _options(recipe, micro, accumulation)


def _options(recipe: Recipe, micro: int, accumulation: int) -> dict[str, int]:
    options = {"trainer.accumulate_grad_batches": accumulation}
    interval = recipe.trainer["val_check_interval"]
    if isinstance(interval, int) and accumulation != recipe.accumulation:
        # val_check_interval counts micro-batches.
        scaled = interval * accumulation // recipe.accumulation
        options["trainer.val_check_interval"] = max(1, scaled)
    return {**options, f"data.init_args.{recipe.batch_key}": micro}


def row_length(recipe: Recipe) -> int:
    """Return the assumed number of tokens of a training example, for estimates of FLOPs and memory.

    An image classifier has the tokens of an image, an encoder-decoder of text 25 on each side (a
    typical sentence length), and any other model the maximum length of a text in the config.

    Raises:
        InputError: The model is neither a transformer nor an LSTM, or it is a masked autoencoder or
            a hierarchical classifier.
    """
    config = recipe.config
    is_known = isinstance(config, TransformerConfig | RecurrentLMConfig)
    if not is_known or isinstance(config, MaskedAutoencoderConfig | HierarchicalClassifierConfig):
        raise InputError(
            f"must be another one: the cost of a {type(config).__name__} is not known",
            option="model",
        )
    if isinstance(config, ViTConfig):
        return image_tokens(config)
    if isinstance(config, TEXT_PAIR_CONFIGS):
        limit: int | None = getattr(config, "max_len", None)
        return min(DEFAULT_SENTENCE_LENGTH, limit or DEFAULT_SENTENCE_LENGTH)
    return recipe.length or int(config.max_len)  # type: ignore[attr-defined]


def micro_batch_memory(recipe: Recipe, length: int, batch: int, devices: int) -> Memory:
    """Estimate the memory in bytes that training with a micro-batch takes on each device.

    `length` is that of `row_length`, and `batch` counts tokens if `recipe.counts_tokens`, otherwise
    examples. For several devices, DDP's copy of the gradients is included.
    """
    source = length if isinstance(recipe.config, TEXT_PAIR_CONFIGS) else None
    return training_memory(
        recipe.task.model,
        batch / length if recipe.counts_tokens else batch,
        length=length,
        source=source,
        precision=recipe.precision,
        optimizer=recipe.task.optimizer.name,
        replicated=devices > 1,
    )


def _compute_lines(recipe: Recipe, length: int) -> list[str]:
    """Return lines of text with the FLOPs of a forward pass, an optimizer step and all steps."""
    config = recipe.config
    is_image = isinstance(config, ViTConfig)
    tokens = None if is_image else length
    flops = forward_flops(recipe.task.model, tokens)
    title = f"FLOPs, forward, one {_row_description(config, length)}"
    lines = _table(title, flops, lambda count: f"{count / 1e9:,.3f} G")
    if not is_image and not isinstance(config, IMAGE_TEXT_CONFIGS):
        lines.append(_line("FLOPs, forward, per token", f"{flops.total / length / 1e6:,.2f} M"))
    # The head of a masked LM reads the masked tokens alone.
    head_fraction = float(recipe.arguments.get("masking", {}).get("mlm_probability", 1.0))
    trained = forward_flops(recipe.task.model, tokens, head_fraction=head_fraction)
    n_rows = recipe.global_batch / (length if recipe.counts_tokens else 1)
    step = TRAINING_TO_FORWARD * trained.total * n_rows
    lines.append(_line("FLOPs, training, one step", f"{step:.3e}"))
    if recipe.steps is None:
        return [*lines, "FLOPs of the whole run: unknown, its steps depend on data not available"]
    total = f"{step * recipe.steps:.3e}"
    return [*lines, _line(f"FLOPs, training, {recipe.steps:,} steps", total)]


def _row_description(config: TransformerConfig, length: int) -> str:
    if isinstance(config, ViTConfig):
        return "image"
    if isinstance(config, TEXT_PAIR_CONFIGS):
        return f"pair of {length:,} and {length:,} tokens"
    if isinstance(config, IMAGE_TEXT_CONFIGS):
        return f"image with {length:,} tokens"
    return f"row of {length:,} tokens"


def _device_lines(recipe: Recipe, length: int, devices: int, memory: float | None) -> list[str]:
    """Return lines of text with the memory of a device and the division of the global batch."""
    total = recipe.global_batch
    if devices % recipe.nodes:
        message = f"must be a multiple of the {recipe.nodes} nodes, got {devices}"
        raise InputError(message, option="--devices")
    micro, accumulation = _split(recipe, devices, memory, length)
    used = micro_batch_memory(recipe, length, micro, devices)
    unit = "tokens" if recipe.counts_tokens else "rows"
    actual = devices * micro * accumulation
    rounded = "" if actual == total else f" (rounded to {actual:,})"
    options = {"trainer.devices": devices // recipe.nodes, **_options(recipe, micro, accumulation)}
    precision = recipe.precision + f" ({AUTO})" * (recipe.trainer["precision"] == AUTO)
    lines = [
        *_table(f"memory, {precision}, one device", used, format_bytes),
        "",
        f"global batch: {total:,} {unit} = {devices} device{'s' * (devices > 1)} x {micro:,}"
        f" x accumulation {accumulation}{rounded}",
        "  " + " ".join(f"--{key.replace('init_args.', '')} {x}" for key, x in options.items()),
    ]
    if accumulation > 1 and isinstance(recipe.config, CLIPConfig):
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
    """Return the largest micro-batch that fits into `memory` GiB, and the accumulation steps.

    `length` is None if the memory is unlimited.
    """

    def fits(batch: int) -> bool:
        if recipe.counts_tokens and batch < recipe.arguments["max_len"]:
            return False  # the longest row would exceed the batch
        if memory is None or length is None:
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
