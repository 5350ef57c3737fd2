"""TuningConfig: freezing, gradual unfreezing, LoRA, interpolation of position embeddings."""

from dataclasses import dataclass
from typing import Literal

from fourfold.core.validation import check_positive, check_range, check_types
from fourfold.errors import InputError
from fourfold.layers.image_positions import Interpolation

MAX_LORA_RANK = 2**20  # the largest width of a model


@dataclass(frozen=True)
class TuningConfig:
    """Options of fine-tuning.

    Args:
        pos_embed_interpolation: Interpolation of the position embeddings of images to another image
            size: bicubic_antialias (timm), bicubic (DeiT), bilinear, or zoom (scipy.ndimage.zoom,
            as in Google's code).
        freeze: Number of lowest layers whose weights are frozen, together with the embeddings. 0
            freezes nothing, "all" trains the head only (linear probe), and "tokens" freezes the
            token embeddings only, which is common for word vectors.
        gradual_unfreezing_epochs: Number of epochs between two steps of gradual unfreezing (Howard
            and Ruder 2018, section 3.3). Training starts with the head only, and each step
            unfreezes the next lower layer. None trains all layers from the start.
        lora_rank: Rank of the low-rank updates that are trained instead of the weights of linear
            layers (Hu et al. 2021), together with the heads of classifiers. 0 disables LoRA.
        lora_alpha: Scale of the updates, which are multiplied by alpha / rank.
        lora_dropout: Dropout probability of the input of the updates.
        lora_targets: Names of the linear layers with an update: q, k, v, out (attention), up, down
            (feed-forward layer).

    Raises:
        InputError: An option has a value outside its range, or `freeze` is combined with LoRA.
    """

    pos_embed_interpolation: Interpolation = "bicubic_antialias"
    freeze: int | Literal["all", "tokens"] = 0
    gradual_unfreezing_epochs: int | None = None
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ("q", "v")

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.freeze, int):
            check_range("freeze", self.freeze, minimum=0)
        check_positive("gradual_unfreezing_epochs", self.gradual_unfreezing_epochs)
        check_range("lora_rank", self.lora_rank, minimum=0, maximum=MAX_LORA_RANK)
        check_range("lora_alpha", self.lora_alpha, above=0.0)
        check_range("lora_dropout", self.lora_dropout, minimum=0.0, below=1.0)
        if self.freeze and self.lora_rank:
            raise InputError("freezes all layers already: leave out freeze", option="lora_rank")
