"""Translation with an encoder-decoder (Vaswani et al. 2017)."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fourfold.core.config import check_word
from fourfold.data.batch import PairBatch
from fourfold.generation import beam_search
from fourfold.losses import IGNORED, SMOOTHINGS, linear_cross_entropy, token_scores
from fourfold.metrics import CorpusScores, Perplexity
from fourfold.models import EncoderDecoder, EncoderDecoderConfig
from fourfold.optim import OptimizerConfig, ScheduleConfig
from fourfold.tasks.base import Task


class Translation(Task):
    """Learns pairs of sentences; is tested by beam search with sacreBLEU and chrF.

    Args:
        config: The model.
        optimizer: Default: the paper's Adam (section 5.3).
        schedule: Default: the paper's (eq. 3).
        label_smoothing: Epsilon of section 5.4.
        smoothing: Its convention: uniform, off_target or off_target_pad.
        beam: Beam width; 1 is greedy.
        length_penalty: alpha of the beam search.
        penalty: What alpha means: gnmt ((5+n)/6)^alpha, power n^alpha, or none.
        val_beam: Beam width in validation; 0 measures no BLEU there.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class: ClassVar[type[EncoderDecoder]] = EncoderDecoder
    batch_class = PairBatch
    config_class = EncoderDecoderConfig

    def __init__(
        self,
        config: EncoderDecoderConfig = EncoderDecoderConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            name="adam", lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=4000),  # noqa: B008
        label_smoothing: float = 0.1,
        smoothing: str = "uniform",
        beam: int = 4,
        length_penalty: float = 0.6,
        penalty: str = "gnmt",
        val_beam: int = 1,
        **start: Any,
    ) -> None:
        check_word("smoothing", smoothing, SMOOTHINGS)
        check_word("penalty", penalty, ("gnmt", "power", "none"))
        super().__init__(
            config, optimizer, schedule,
            label_smoothing=label_smoothing, smoothing=smoothing, beam=beam,
            length_penalty=length_penalty, penalty=penalty, val_beam=val_beam, **start,
        )  # fmt: skip
        self.label_smoothing, self.smoothing = label_smoothing, smoothing
        self.beam, self.val_beam = beam, val_beam
        self.length_penalty, self.penalty = length_penalty, penalty
        self.ppl, self.scores = Perplexity(), CorpusScores()

    def size(self, batch: PairBatch) -> int:
        """Source and target places, padding included."""
        return batch.src.numel() + batch.tgt.numel()

    def step(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """Label-smoothed cross-entropy of each target token given those before it."""
        h, weight, bias, targets = self._teacher_forced(batch)
        loss = linear_cross_entropy(
            h, weight, bias, targets,
            label_smoothing=self.label_smoothing, smoothing=self.smoothing, normalizer=1.0,
        )  # fmt: skip
        return loss, (targets != IGNORED).sum()

    def _teacher_forced(self, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        memory = self.model.encode(batch.src, batch.src_mask)
        # No target mask: padding stands to the right, where a causal decoder never looks.
        h = self.model.decode(batch.tgt[:, :-1], memory, batch.src_mask)
        h, weight, bias = self.model.head.output(h.flatten(0, 1))
        targets = batch.tgt[:, 1:].masked_fill(~batch.tgt_mask[:, 1:], IGNORED)
        return h, weight, bias, targets.flatten()

    def evaluate(self, batch: PairBatch, split: str) -> None:
        """Perplexity a token (without smoothing), and translations against references."""
        h, weight, bias, targets = self._teacher_forced(batch)
        nll, prediction = token_scores(h, weight, bias, targets)
        valid = targets != IGNORED
        correct = (prediction == targets)[valid].sum()
        self.ppl.update(nll.double().sum(), valid.sum(), 0, 0, correct)
        beam = self.val_beam if split == "val" else self.beam
        if beam:
            rows = batch.index.tolist()
            references = self.trainer.datamodule.references(split)  # type: ignore[attr-defined]
            hypotheses = self.translate_ids(batch.src, batch.src_mask, beam)
            self.scores.update(rows, hypotheses, [references[row] for row in rows])

    def results(self, split: str) -> dict[str, Any]:
        """loss, ppl_token, accuracy; bleu, chrf, exact_match and BLEU's signature."""
        results: dict[str, Any] = self.ppl.compute()
        self.ppl.reset()
        if self.val_beam or split == "test":
            results |= self.scores.compute()
            self.scores.reset()
        return results

    def predict_step(self, batch: PairBatch, batch_idx: int) -> list[tuple[int, str]]:
        """Row and translation of each source in the batch."""
        texts = self.translate_ids(batch.src, batch.src_mask, self.beam)
        return list(zip(batch.index.tolist(), texts, strict=True))

    @torch.inference_mode()
    def translate_ids(self, src: Tensor, src_mask: Tensor | None, beam: int) -> list[str]:
        """Best translation of each row of `src` (B, S) as text."""
        tokenizer = self.tokenizer
        ids, _ = beam_search(
            self.model, src, src_mask=src_mask, beam=beam, length_penalty=self.length_penalty,
            penalty=self.penalty, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
        )  # fmt: skip
        return tokenizer.decode_batch(ids.tolist())
