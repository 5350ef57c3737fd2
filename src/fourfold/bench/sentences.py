"""Real sentences, of lengths as they are: what padding costs, and what not having it saves.

Ours come as `fourfold fit` deals them, in batches of like lengths and bounded tokens; a peer gets
the same sentences in batches of 64 drawn at random, padded to their longest, which is what its own
users do. Padding is no token.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fourfold.bench.shapes import OURS, Settings, Shape
from fourfold.data import MaskedTextData, TranslationData
from fourfold.data.batch import PairBatch
from fourfold.data.datamodule import BatchDataset, EpochData
from fourfold.data.sampler import Plan
from fourfold.data.tokenizer_training import TokenizerConfig

ROWS = 64  # sentences of a batch; of ours as many tokens as so many have on average
BATCHES = {"tiny": 2}  # of a turn


def pairs(shape: Shape) -> TranslationData:
    """Multi30k (Elliott et al. 2016), German to English."""
    return TranslationData(
        "files", "de", "en", "translation/multi30k/train.{lang}.gz", too_long="drop",
        max_len=shape.max_len, tokenizer=TokenizerConfig(vocab_size=shape.n_out),
        max_tokens=ROWS * shape.max_len,
    )  # fmt: skip


def phrases(shape: Shape) -> MaskedTextData:
    """The sentences of SST-2 (Socher et al. 2013), of which BERT asks for 15 % of the tokens."""
    return MaskedTextData(
        "files", "glue/SST-2/train.tsv.gz", column="sentence", documents="line", layout="documents",
        tokenizer=TokenizerConfig("wordpiece", shape.n_out, lowercase=True), max_len=shape.length,
        too_long="truncate", batch_size=ROWS,
    )  # fmt: skip


DATA: dict[str, Callable[[Shape], EpochData]] = {"encoder_decoder": pairs, "masked_lm": phrases}


def deal(way: str, family: str, shape: Shape, settings: Settings) -> list[Any]:
    """The batches of one turn; all ways get the same sentences.

    Raises:
        InputError: The data are not here.
    """
    split = DATA[family](shape).split("train")
    order = Plan(_lengths(split), max_tokens=int(ROWS * _lengths(split).mean()))
    found = order.batches(0)[: BATCHES.get(settings.size, 16)]
    if way != OURS:
        rows = np.random.default_rng(0).permutation(np.concatenate(found))
        found = np.array_split(rows, -(-len(rows) // ROWS))
    device = torch.device(settings.device)
    return [_moved(split.batch(rows, 0, 0), device) for rows in found]


def _lengths(split: BatchDataset) -> np.ndarray:
    assert isinstance(split.plan, Plan)
    return split.plan.lengths


def _moved(batch: Any, device: torch.device) -> Any:
    parts = {k: v.to(device) for k, v in batch._asdict().items() if isinstance(v, torch.Tensor)}
    return batch._replace(**parts)


def real_tokens(batches: list[Any]) -> int:
    """Tokens that are no padding; of pairs, on both sides."""
    return sum(int(mask.sum()) for batch in batches for mask in _masks(batch))


def _masks(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, PairBatch):
        return [batch.src_mask, batch.tgt_mask[:, 1:]]
    return [torch.ones_like(batch.ids) if batch.mask is None else batch.mask]
