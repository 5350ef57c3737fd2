"""Base class of all models, their token embedding, and models without memory for weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from fourfold.core.attention import Attention
from fourfold.core.block import Stack, norm_from_config
from fourfold.core.config import TransformerConfig
from fourfold.core.kv_cache import KVCache
from fourfold.core.validation import check_positive, height_width
from fourfold.errors import InputError
from fourfold.layers.heads import ClassHead
from fourfold.layers.patch_embedding import PatchEmbedding
from fourfold.layers.token_embedding import TokenEmbedding

if TYPE_CHECKING:
    from fourfold.tokenization.tokenizer import Tokenizer


ActivationCheckpointing = Literal["none", "block", "attention"] | int


@dataclass(frozen=True)
class BaseSizeConfig(TransformerConfig):
    """Config of a transformer of the size of BERT-base, GPT-2 and ViT-B."""

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072


class Layers(nn.Module):
    """Base class of the modules between embedding and head that are no `Stack` of blocks."""


class Model(nn.Module):
    """Base class of all models of this package.

    A subclass sets `config` in its constructor. `forward` applies `hidden` and then `logits`.
    `hidden` computes the input of the output head, by default with `encode`. A subclass without a
    `head` also implements `logits`. A model with other steps, such as `CLIP`, implements `forward`.

    Arguments of the same name have the same meaning in all models: `ids` (B, T) int64 are token
    ids, `src` (B, S) and `tgt` (B, T) those of source and target, and `images` have the shape (B,
    C, height, width). A `mask` (B, T) bool is True at real tokens; None means that all tokens are
    real, and padding may be on either side. `documents` (B, T) are the indices of packed documents;
    None means one document. `segments` (B, T) int64 are 0 in the first sentence and 1 in the
    second; None means 0. A `cache` holds the keys and values, or the recurrent state, of earlier
    tokens and is extended in place; the other arguments then hold the new tokens only. Sequences
    longer than `max_len`, and images of another size than that of the config, raise an InputError.

    Attributes:
        config: The frozen dataclass that the model is built from.
        head: Output head, a module that maps the result of `hidden` to logits. A model without
            this attribute implements `logits` itself.
        tokenizer: The tokenizer stored with the weights, or None. `fourfold.load` sets this and the
            next five attributes.
        generation_defaults: `fourfold.generation.GenerationDefaults` or None. `generate`,
            `beam_search` and the command line take special tokens and options from it that the
            caller does not give.
        artifacts: Dictionary of facts about the training data that are stored with the weights,
            such as `class_names` and the mean and standard deviation of images.
        source: `SourceCheckpoint` of `fourfold.hub` for weights from a checkpoint of transformers,
            otherwise None.
        format_name: Name of the format of another library that the weights were read from: timm,
            nanoGPT, llama2.c, or the `model_type` of transformers. "" for a checkpoint of fourfold.
        notes: Sentences about assumptions of such an import and about ignored files.
        can_generate: `generate` or `beam_search` can decode from the model.
        accepts_images: The first input of `forward` is a batch of images.
        reads_pairs: The model classifies one text or a pair of texts.
        is_recurrent: The model has a recurrent state or convolutions instead of keys and values. A
            causal LM of this kind supports padding on the right only, and prompts of equal lengths.
        has_relative_positions: Attention scores depend on the distance between cache entries, so
            the entries of a key-value cache must stay in the order of their positions.
        has_known_cost: A forward pass on `example_inputs` has the cost of a training example.
        attention_classes: Classes of the attention modules.
        cache_class: Class of the cache.
    """

    config: Any
    tokenizer: "Tokenizer | None" = None
    generation_defaults: Any = None
    artifacts: Mapping[str, Any] = MappingProxyType({})
    source: Any = None
    format_name: str = ""
    notes: Sequence[str] = ()
    can_generate: bool = False
    accepts_images: bool = False
    reads_pairs: bool = False
    is_recurrent: bool = False
    has_relative_positions: bool = False
    has_known_cost: bool = True
    attention_classes: ClassVar[tuple[type[nn.Module], ...]] = (Attention,)
    cache_class: ClassVar[type[Any]] = KVCache
    encode: Callable[..., Tensor]
    head: nn.Module

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters."""
        return next(self.parameters()).dtype

    def new_cache(self) -> Any:
        """Build an empty cache of the decoder: keys and values, a recurrent state, or None."""
        return self.cache_class()

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the logits. The arguments are those of `hidden`."""
        return self.logits(self.hidden(*inputs, **options))

    def hidden(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute the input of the output head, by default the output of `encode`."""
        return self.encode(*inputs, **options)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (..., model width D) to logits (..., vocabulary size V)."""
        return self.head(h)

    def reset_classifier(self, n_classes: int) -> None:
        """Replace the classifier by one for another number of classes, with small random weights.

        Raises:
            InputError: The model has no classifier.
        """
        heads = {path: m for path, m in self.named_modules() if isinstance(m, ClassHead)}
        if not heads or not hasattr(self.config, "n_classes"):
            message = f"must be a ViT or a classifier of texts, got {type(self).__name__}"
            raise InputError(message, option="the model")
        self.config = replace(self.config, n_classes=n_classes)
        for path, old in heads.items():
            if not path.startswith("next_sentence"):
                new = ClassHead(old.in_features, n_classes).to(old.weight)
                nn.init.trunc_normal_(new.weight, std=0.02)
                nn.init.zeros_(new.bias)
                self.set_submodule(path, new)

    def set_activation_checkpointing(self, mode: ActivationCheckpointing) -> None:
        """Choose what is computed again in the backward pass, which saves memory and costs time.

        Args:
            mode: "block" (all blocks), "attention" (attention of all blocks), a number N (every
                N-th block) or "none".

        Raises:
            InputError: The model has no transformer blocks.
        """
        stacks = [stack for stack in self.modules() if isinstance(stack, Stack)]
        if mode != "none" and not stacks:
            message = f"must be none for a {type(self).__name__}, which has no transformer blocks"
            raise InputError(f"{message}, got {mode}", option="activation_checkpointing")
        check_checkpointing(mode)
        for stack in stacks:
            for i, block in enumerate[Any](stack.blocks):
                if isinstance(mode, int):
                    block.recompute = "block" if i % mode == 0 else "none"
                else:
                    block.recompute = mode

    def stacks(self) -> list[nn.Module]:
        """Return the modules between embeddings and head, such as the encoder and the decoder."""
        return [module for module in self.children() if isinstance(module, Stack | Layers)]

    def embeddings(self) -> list[nn.Module]:
        """Return the modules before the first block, with position biases that all blocks share."""
        tables = TokenEmbedding | PatchEmbedding
        biases = [getattr(stack, "bias", None) for stack in self.stacks()]
        return [
            *(module for module in self.children() if isinstance(module, tables)),
            *(bias for bias in biases if bias is not None),
        ]

    def layer_groups(self) -> list[list[nn.Module]]:
        """Return the modules by depth: embeddings, blocks from the first to the last, and the rest.

        A parameter belongs to the first group with a module that contains it. The group of the last
        block ends with the stacks, and so has their final norms. Stacks without blocks are in the
        group of the embeddings. The last group is the model itself, for output heads.
        """
        blocks: list[Any] = [m.blocks for m in self.modules() if hasattr(m, "blocks")]
        depths = zip_longest(*blocks, fillvalue=nn.Identity())
        groups = [self.embeddings(), *map(list, depths)]
        groups[-1] += self.stacks()
        return [*groups, [self]]

    def attention_modules(self) -> dict[str, nn.Module]:
        """Return the attention modules by their paths, such as "stack.blocks.0.attn"."""
        kinds = self.attention_classes
        return {path: module for path, module in self.named_modules() if isinstance(module, kinds)}

    def example_inputs(
        self, length: int | None = None, source: int | None = None, batch: int = 1
    ) -> tuple[Tensor, ...]:
        """Build the positional arguments of `forward`, of zeros, on the device of the model.

        Args:
            length: Number of tokens, or of target tokens. None means `max_len` of the config.
            source: Number of source tokens. None means `length`, at most `max_len` of the encoder.
            batch: Number of rows.

        Raises:
            InputError: No length is given and the model has no `max_len`, or it exceeds `max_len`.
        """
        config, inputs = self.config, []
        encoder = getattr(config, "encoder", config)
        if self.accepts_images:
            shape = batch, encoder.n_channels, *height_width(encoder.image_size)
            inputs.append(torch.zeros(shape, dtype=self.dtype, device=self.device))
        if hasattr(config, "vocab_size"):
            limit = getattr(config, "max_len", None)
            length = limit if length is None else length
            if length is None:
                raise InputError("must be given, because the model has no max_len", option="length")
            check_positive("length", length)
            if limit is not None and length > limit:
                raise InputError(
                    f"must be at most max_len ({limit}), got {length}", option="length"
                )
            has_source = hasattr(self, "src_embed") and not self.accepts_images
            source = source or min(length, encoder.max_len or length) if has_source else None
            lengths = [length] if source is None else [source, length]
            options: Any = {"dtype": torch.long, "device": self.device}
            inputs += [torch.zeros(batch, n, **options) for n in lengths]
        return tuple(inputs)


def check_checkpointing(mode: ActivationCheckpointing) -> None:
    """Raise InputError if the mode of activation checkpointing is a number below 1."""
    if isinstance(mode, int):
        check_positive("activation_checkpointing", mode)


def embedding_from_config(
    config: Any, *, has_norm: bool = False, width: int | None = None
) -> TokenEmbedding:
    """Build the token embedding of a text model, with positions, segments and optionally a norm.

    Its width is by default that of the model.
    """
    return TokenEmbedding(
        config.vocab_size,
        width or config.d_model,
        max_len=config.max_len or 0,
        positions=getattr(config, "positions", "learned"),
        n_segments=getattr(config, "n_segments", 0),
        scale=getattr(config, "embed_scale", False),
        norm=norm_from_config(config, width) if has_norm else None,
        dropout=config.dropout,
    )


def patches_from_config(config: Any, d_model: int, **options: Any) -> PatchEmbedding:
    """Build the patch embedding of an image model of width `d_model`."""
    sizes = config.image_size, config.patch_size, config.n_channels
    return PatchEmbedding(*sizes, d_model, **options)


def second_stack(config: TransformerConfig, **sizes: int) -> TransformerConfig:
    """Return the config of the blocks of a second stack, which has other sizes.

    Options that depend on the width of a head are None; all other options are those of `config`.
    """
    values = {field.name: getattr(config, field.name) for field in fields(TransformerConfig)}
    values |= dict.fromkeys(("d_head", "d_value", "n_kv_heads", "attn_scale"))
    return TransformerConfig(**values | sizes)


class SkipRandomFills(TorchFunctionMode):
    """Mode in which `normal_` and `uniform_` leave their tensor unchanged."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__.endswith(("normal_", "uniform_")):  # of Tensor and of torch.nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Build the models of the block on the device "meta", without memory for their weights."""
    # Random fills would change nothing, but torch would import its compiler for them.
    with torch.device("meta"), SkipRandomFills():
        yield


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build models with computed tables in memory and parameters on the device "meta"."""
    thread = get_ident()

    def move(_module: nn.Module, _name: str, x: nn.Parameter) -> nn.Parameter:
        stays = x.is_meta or get_ident() != thread
        return x if stays else nn.Parameter(x.to("meta"), x.requires_grad)

    # In memory, a fill that draws until all values are in bounds would see no new values, and a
    # fill that is not skipped would take the time of the whole file.
    hook = register_module_parameter_registration_hook(move)  # type: ignore[arg-type]
    try:
        with torch.device("cpu"), SkipRandomFills():
            yield
    finally:
        hook.remove()
