"""What training holds in memory, estimated from a config, and how a batch is cut to fit.

Activations are the tensors that autograd keeps for the backward pass of a block with a fused
attention kernel, which keeps no (T, T) weights; so they grow in proportion to the tokens.
Shapes: T tokens, S source tokens, D model width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

from fourfold.core.config import TransformerConfig, check_word
from fourfold.core.errors import InputError
from fourfold.kernels.cross_entropy import SLICE, TILE_CUDA
from fourfold.models.clip import CLIPConfig
from fourfold.models.cost import image_tokens
from fourfold.models.encoder_decoder import EncoderDecoderConfig
from fourfold.models.joined import CaptionerConfig, JoinedConfig
from fourfold.models.recurrent import RecurrentLMConfig

# Lightning's word for it: (bytes of a weight, bytes of a number in a matrix product).
PRECISIONS = {
    "64-true": (8, 8),
    "32-true": (4, 4),
    "16-true": (2, 2),
    "bf16-true": (2, 2),
    "16-mixed": (4, 2),
    "bf16-mixed": (4, 2),
}
# Numbers that an optimizer keeps for each weight.
STATES = {"adam": 2, "adamw": 2, "sgd": 1}
# Numbers that an LSTM keeps for each unit and token, measured on a CPU; cuDNN's own were not.
LSTM_UNIT = 17.4


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the end of a forward pass, the fullest moment of a training step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def training_memory(
    config: TransformerConfig,
    n_parameters: int,
    tokens: int,
    source: int = 0,
    *,
    n_trained: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    replicated: bool = False,
) -> Memory:
    """Bytes on one device for a micro-batch.

    Args:
        config: One of the families'.
        n_parameters: Of the whole model.
        tokens: Places of the micro-batch, padding included (of the target for an encoder-decoder).
        source: Its source places, or those of its images.
        n_trained: How many of the parameters learn; None means all.
        precision: Lightning's word, a row of PRECISIONS.
        optimizer: A row of STATES.
        replicated: Whether DDP keeps a second copy of the gradients to send.

    Raises:
        InputError: A precision or optimizer that is not in the tables.
    """
    check_word("precision", precision, tuple(PRECISIONS))
    check_word("optimizer", optimizer, tuple(STATES))
    weight, compute = PRECISIONS[precision]
    copies = weight + (compute if compute != weight else 0)  # autocast keeps what it has cast
    learning = n_parameters if n_trained is None else n_trained
    return Memory(
        weights=n_parameters * copies,
        gradients=learning * weight * (2 if replicated else 1),
        optimizer=learning * weight * STATES[optimizer],
        activations=activation_bytes(config, tokens, source, precision),
        loss=_loss_bytes(config, tokens, source, compute),
    )


def activation_bytes(
    config: TransformerConfig, tokens: int, source: int = 0, precision: str = "32-true"
) -> int:
    """Bytes that the stacks keep for the backward pass of so many tokens."""
    keeper = _Keeper(config, *PRECISIONS[precision])
    if isinstance(config, RecurrentLMConfig):
        return keeper.recurrence(tokens)
    if isinstance(config, CLIPConfig):
        tower = _Keeper(config.image_tower, *PRECISIONS[precision])
        return keeper.stack(config.n_layers, tokens) + tower.stack(config.image_n_layers, source)
    if isinstance(config, JoinedConfig | CaptionerConfig):
        reader = _Keeper(config.encoder, *PRECISIONS[precision])
        written = keeper.stack(config.n_layers, tokens, source)
        return reader.stack(config.encoder.n_layers, source) + written
    if not isinstance(config, EncoderDecoderConfig):
        return keeper.stack(config.n_layers, tokens)
    depth = config.n_decoder_layers or config.n_layers
    return keeper.stack(config.n_layers, source) + keeper.stack(depth, tokens, source)


@dataclass(frozen=True)
class _Keeper:
    """What autograd keeps of each part, with `wide` bytes a number of the residual stream."""

    config: TransformerConfig
    wide: int
    narrow: int

    @property
    def mixed(self) -> bool:
        """Whether autocast copies what a matrix reads."""
        return self.narrow != self.wide

    def stack(self, depth: int, tokens: int, source: int = 0) -> int:
        """`depth` blocks, the last norm of pre-norm ones, and a memory that all blocks read."""
        block = self._attention(tokens, None) + self._feed_forward(tokens)
        if source:
            block += self._attention(tokens, source)
        last = tokens * self.wide if self.config.norm_placement == "pre" else 0
        memory = 0 if self.mixed else source * self.narrow
        return depth * block + self.config.d_model * (last + memory)

    def recurrence(self, tokens: int) -> int:
        """Layers of an LSTM, whose workspace stays in fp32 under autocast."""
        units = self.config.n_layers * self.config.d_ff
        return round(tokens * max(self.wide, 4) * (self.config.d_model + LSTM_UNIT * units))

    def _input(self, readers: int) -> int:
        """A place's input and output of a norm; autocast copies the latter for each matrix anew."""
        copies = readers if self.mixed else 1
        return self.config.d_model * (self.wide + copies * self.narrow)

    def _attention(self, tokens: int, source: int | None) -> int:
        c, keys = self.config, tokens if source is None else source
        heads = c.n_heads * (c.head_width + c.value_width) * self.narrow
        kept = (tokens + keys) * heads + tokens * _mask(c.dropout, c.d_model)
        if source is None:
            return kept + tokens * self._input(readers=3)
        cast = 2 * c.d_model * self.narrow if self.mixed else 0
        return kept + tokens * self._input(readers=1) + source * cast

    def _feed_forward(self, tokens: int) -> int:
        c = self.config
        gated = c.feed_forward == "glu"
        # The matrix's output and the activation's, which for a ReLU tells as much as its input.
        wide_layers = 4 if gated else 2
        if c.activation == "relu" and not c.ff_dropout:
            wide_layers -= 1
        kept = self._input(readers=2 if gated else 1) + wide_layers * c.d_ff * self.narrow
        masks = _mask(c.ff_dropout, c.d_ff) + _mask(c.dropout, c.d_model)
        return tokens * (kept + masks)


def _mask(p: float, width: int) -> int:
    return width if p else 0  # a byte a number


def _loss_bytes(config: TransformerConfig, tokens: int, source: int, compute: int) -> int:
    """A slice of logits, a tile in fp32 and as much in passing; gradients of states and matrix.

    A CLIP's logits are those of every image with every text of the device, one way and the other.
    """
    if isinstance(config, CLIPConfig):
        return 2 * 3 * 4 * (source // image_tokens(config)) ** 2
    rows = getattr(config, "vocab_size", None)
    if rows is None or not getattr(config, "head", True):  # an encoder that scores no words
        return 0
    slice_ = compute * min(SLICE, tokens * rows) + 2 * 4 * min(TILE_CUDA, tokens * rows)
    return slice_ + tokens * config.d_model * compute + 4 * rows * config.d_model


def split_batch(
    total: int, devices: int, fits: Callable[[int], bool], *, exact: bool
) -> tuple[int, int]:
    """The largest micro-batch and the accumulation with which `devices` see `total` in a step.

    Args:
        total: The recipe's global batch, in rows or tokens.
        devices: Number of devices.
        fits: Whether a micro-batch of so many fits into one device.
        exact: Rows cannot be cut: micro-batch x accumulation x devices must be `total`. Token
            budgets are rounded down instead.

    Raises:
        InputError: Rows that the devices do not divide; or nothing fits.
    """
    if devices < 1 or total < devices or (exact and total % devices):
        raise InputError(f"a batch of {total} cannot be shared by {devices} devices")
    share = total // devices
    for accumulation in range(1, share + 1):
        if exact and share % accumulation:
            continue
        if fits(share // accumulation):
            return share // accumulation, accumulation
    raise InputError("not even the smallest micro-batch fits into the memory given")
