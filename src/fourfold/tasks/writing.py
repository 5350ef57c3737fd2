"""What all tasks share that write a text for a source: loss, perplexity, beam search, BLEU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.callbacks.media import Maps, Media, Table
from fourfold.core.config import TransformerConfig, check_positive, check_word
from fourfold.data.batch import PairBatch
from fourfold.generation import PENALTIES, beam_search
from fourfold.losses import IGNORED, SMOOTHINGS, linear_cross_entropy, token_scores
from fourfold.metrics import CorpusScores, Perplexity
from fourfold.optim import OptimizerConfig, check_range
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.base import Task
from fourfold.tasks.showing import MOST_TOKENS, cross_attention, token_names


class Writing(Task):
    """Learns a text for each source; is tested by beam search with sacreBLEU and chrF.

    A subclass names its model and says what the sources of a batch are, if it is no `PairBatch`.

    Args:
        config: The model.
        optimizer: How weights are moved.
        schedule: How the learning rate moves.
        label_smoothing: Epsilon of Vaswani et al. 2017, section 5.4.
        smoothing: Its convention: uniform, off_target or off_target_pad.
        beam: Beam width; 1 is greedy.
        length_penalty: alpha of the beam search.
        penalty: What alpha means: gnmt ((5+n)/6)^alpha, power n^alpha, or none.
        val_beam: Beam width in validation; 0 measures no BLEU there.
        start: `init_from` and `tuning` of `Task`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        label_smoothing: float = 0.0,
        smoothing: str = "uniform",
        beam: int = 4,
        length_penalty: float = 0.6,
        penalty: str = "gnmt",
        val_beam: int = 1,
        **start: Any,
    ) -> None:
        check_word("smoothing", smoothing, SMOOTHINGS)
        check_word("penalty", penalty, tuple(PENALTIES))
        check_range("label_smoothing", label_smoothing, least=0.0, below=1.0)
        check_positive("beam", beam)
        check_range("val_beam", val_beam, least=0)
        super().__init__(
            config, optimizer, schedule,
            label_smoothing=label_smoothing, smoothing=smoothing, beam=beam,
            length_penalty=length_penalty, penalty=penalty, val_beam=val_beam, **start,
        )  # fmt: skip
        self.label_smoothing, self.smoothing = label_smoothing, smoothing
        self.beam, self.val_beam = beam, val_beam
        self.length_penalty, self.penalty = length_penalty, penalty
        self.ppl, self.scores = Perplexity(), CorpusScores()

    @property
    def start_id(self) -> int:
        """What a decoder begins with."""
        given = getattr(self.config, "start_id", None)
        return self.tokenizer.bos_id if given is None else given

    def pairs(self, batch: Any) -> PairBatch:
        """Sources and targets of a batch."""
        pairs: PairBatch = batch
        return pairs

    def step(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Label-smoothed cross-entropy of each target token given those before it."""
        h, weight, bias, targets = self._teacher_forced(self.pairs(batch))
        loss = linear_cross_entropy(
            h, weight, bias, targets,
            label_smoothing=self.label_smoothing, smoothing=self.smoothing, normalizer=1.0,
        )  # fmt: skip
        return loss, (targets != IGNORED).sum()

    def _teacher_forced(self, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        memory = self.model.encode(batch.src, batch.src_mask)
        tgt = batch.tgt
        targets = tgt.masked_fill(~batch.tgt_mask, IGNORED)
        if getattr(self.config, "start_id", None) is None:
            targets = targets[:, 1:]  # a begin is given
        else:
            tgt = F.pad(tgt, (1, 0), value=self.start_id)
        # No target mask: padding stands to the right, where a causal decoder never looks.
        h = self.model.decode(tgt[:, :-1], memory, batch.src_mask)
        h, weight, bias = self.model.head.output(h.flatten(0, 1))
        return h, weight, bias, targets.flatten()

    def evaluate(self, batch: Any, split: str) -> None:
        """Perplexity a token (without smoothing), and texts against references."""
        batch = self.pairs(batch)
        h, weight, bias, targets = self._teacher_forced(batch)
        nll, prediction = token_scores(h, weight, bias, targets)
        valid = targets != IGNORED
        correct = ((prediction == targets) & valid).sum()
        self.ppl.update(nll.double().sum(), valid.sum(), 0, 0, correct)
        beam = self.val_beam if split == "val" else self.beam
        if beam:
            rows = batch.index.tolist()
            references = self.trainer.datamodule.references(split)  # type: ignore[attr-defined]
            hypotheses = self.write_texts(batch.src, batch.src_mask, beam)
            self.scores.update(rows, hypotheses, [references[row] for row in rows])

    def results(self, split: str) -> dict[str, Any]:
        """loss, ppl_token, accuracy; bleu, chrf, exact_match and BLEU's signature."""
        results: dict[str, Any] = self.ppl.compute()
        self.ppl.reset()
        if self.val_beam or split == "test":
            results |= self.scores.compute(self.artifacts.get("tgt_lang", ""))
            self.scores.reset()
        return results

    def predict_step(self, batch: Any, batch_idx: int) -> list[tuple[int, str]]:
        """Row and text of each source in the batch."""
        batch = self.pairs(batch)
        texts = self.write_texts(batch.src, batch.src_mask, self.beam)
        return list(zip(batch.index.tolist(), texts, strict=True))

    def show(self, batch: Any, split: str) -> dict[str, Media]:
        """What is written for the first sources, and where the decoder looks for the shortest."""
        batch = self.pairs(batch)
        beam = self.val_beam if split == "val" else self.beam
        written = self.write_texts(batch.src, batch.src_mask, beam or 1)
        references = self.trainer.datamodule.references(split)  # type: ignore[attr-defined]
        true = [references[row] for row in batch.index.tolist()]
        texts = [text if isinstance(text, str) else "\n".join(text) for text in true]
        columns, sources = self._sources(batch)
        rows = [list(row) for row in zip(sources, texts, written, strict=True)]
        table = Table([columns, "reference", "written"], rows)
        return {"samples": table, "attention": self._where_it_looks(batch, written)}

    def _sources(self, batch: PairBatch) -> tuple[str, list[Any]]:
        """Texts, or of images their rows in the split."""
        if batch.src.ndim > 2:
            return "image", batch.index.tolist()
        return "source", self.tokenizer.decode_batch(batch.src.tolist())

    def _where_it_looks(self, batch: PairBatch, written: list[str]) -> Maps:
        is_text = batch.src.ndim == 2
        row = int(batch.src_mask.sum(1).argmin()) if is_text else 0
        src = batch.src[row][batch.src_mask[row]][:MOST_TOKENS] if is_text else batch.src[row]
        words = self.tokenizer
        longest = min(MOST_TOKENS, getattr(self.config, "max_len", None) or MOST_TOKENS)
        ids = [self.start_id, *words.encode(written[row]), words.eos_id][: longest + 1]
        # At each place it looks for the token that comes next.
        tgt, rows = torch.tensor(ids[:-1], device=src.device), token_names(words, ids[1:])
        columns = token_names(words, src.tolist()) if is_text else []
        return cross_attention(
            self.model, rows, columns,
            lambda: self.model.decode(tgt[None], self.model.encode(src[None], None), None),
        )  # fmt: skip

    @torch.inference_mode()
    def write_texts(self, src: Tensor, src_mask: Tensor | None, beam: int) -> list[str]:
        """The best text for each row of `src` (B, S), or for each image (B, C, side, side).

        Of a text at most 50 tokens more than it has; of an image, as many as the data's captions.
        """
        tokenizer, most = self.tokenizer, None
        if src.ndim > 2:
            limits = self.artifacts["max_len"] - 1, getattr(self.config, "max_len", None)
            most = min(limit for limit in limits if limit is not None)
        ids, _ = beam_search(
            self.model, src, src_mask=src_mask, beam=beam, length_penalty=self.length_penalty,
            penalty=self.penalty, bos_id=self.start_id, eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id, max_len=most,
        )  # fmt: skip
        return tokenizer.decode_batch(ids.tolist())
