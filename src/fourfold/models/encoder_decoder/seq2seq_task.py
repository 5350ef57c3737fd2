"""Base class of sequence-to-sequence tasks: smoothed loss, perplexity, beam search and BLEU.

An "output" is a tuple of arguments of `linear_cross_entropy`: hidden states (B * T, D), output
matrix, bias or None, and target tokens (B * T,).

Shapes: B examples, S source tokens, T target tokens, C channels, D width of the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import MAX_BEAMS, check_choice, check_positive, check_range
from fourfold.data.loading.batches import PairBatch
from fourfold.generation import LENGTH_PENALTIES, beam_search
from fourfold.loggers.media import AttentionMaps, Media, Table
from fourfold.loggers.samples import MAX_TOKENS, layer_maps, token_names
from fourfold.losses import (
    IGNORE_INDEX,
    LABEL_SMOOTHING_TYPES,
    linear_cross_entropy,
    sum_dtype,
    token_scores,
)
from fourfold.metrics import Mean, Perplexity, TranslationScores
from fourfold.metrics.bleu_tokenizer import bleu_tokenizer
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.training.task import BatchT, Task


@dataclass(eq=False, repr=False)
class Seq2SeqTask(Task[Seq2Seq, BatchT]):
    """Base class of tasks that generate a text from a source, evaluated by sacreBLEU and chrF.

    The DataModule has a method `references(split)`, which returns, for each example of the split, a
    reference text or a list of reference texts. Without this method, as for span corruption, an
    evaluation generates no texts. A subclass whose batches are not a `PairBatch` overrides
    `as_pairs`.

    Args:
        label_smoothing: Probability mass taken from the target (Vaswani et al. 2017, section 5.4).
        label_smoothing_type: Distribution of the mass of `label_smoothing` over the vocabulary:
            uniform (over all tokens), off_target (over all tokens but the target) or off_target_pad
            (over all tokens but the target and the padding token).
        num_beams: Beam width in tests and predictions; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_type: Divisor of the log-probability of a text with n tokens: gnmt for
            ((5 + n) / 6) ** alpha, power for n ** alpha, or none for 1.
        val_num_beams: Beam width in validation; 0 disables generation and BLEU in validation.
    """

    label_smoothing: float = 0.0
    label_smoothing_type: str = "uniform"
    num_beams: int = 4
    length_penalty: float = 0.6
    length_penalty_type: str = "gnmt"
    val_num_beams: int = 1

    def __post_init__(self) -> None:
        check_choice("label_smoothing_type", self.label_smoothing_type, LABEL_SMOOTHING_TYPES)
        check_choice("length_penalty_type", self.length_penalty_type, tuple(LENGTH_PENALTIES))
        check_range("label_smoothing", self.label_smoothing, minimum=0.0, below=1.0)
        check_positive("num_beams", self.num_beams, MAX_BEAMS)
        check_range("val_num_beams", self.val_num_beams, minimum=0, maximum=MAX_BEAMS)
        super().__post_init__()
        self.ppl = Perplexity()
        self.scores = TranslationScores()
        self.without_sentinels = Mean()

    def beams_of(self, split: str) -> int:
        """Return the beam width of a split, 0 if its evaluation generates no texts."""
        if self.datamodule is not None and not hasattr(self.datamodule, "references"):
            return 0
        return self.val_num_beams if split == "val" else self.num_beams

    def setup(self, stage: str) -> None:
        """Store the artifacts of the DataModule.

        Raises:
            InputError: BLEU will be computed, and the target language is unknown.
        """
        super().setup(stage)
        if self.beams_of("test" if stage == "test" else "val"):
            bleu_tokenizer(self.artifacts.get("tgt_lang", ""))

    @property
    def start_id(self) -> int:
        """First input of the decoder: `decoder_start_token_id` of the config, or else BOS."""
        given = getattr(self.config, "decoder_start_token_id", None)
        return self.tokenizer.bos_id if given is None else given

    @property
    def longest_caption(self) -> int | None:
        """Maximum number of tokens of a generated caption; None for texts from texts."""
        return None

    def as_pairs(self, batch: Any) -> PairBatch:
        """Convert a batch to a `PairBatch`; the default returns the batch unchanged."""
        return batch

    def step(self, batch: BatchT) -> tuple[Tensor, Tensor]:
        """Return the summed label-smoothed cross-entropy, and the number of target tokens."""
        output = self._teacher_forced(self.as_pairs(batch))
        return self._loss(output), (output[-1] != IGNORE_INDEX).sum()

    def _loss(self, output: tuple[Any, ...]) -> Tensor:
        """Compute the label-smoothed cross-entropy of an output, summed over the target tokens."""
        return linear_cross_entropy(
            *output,
            label_smoothing=self.label_smoothing,
            label_smoothing_type=self.label_smoothing_type,
            normalizer=1.0,
        )

    def _token_scores(self, output: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Compute loss (B * T,) in nats and most likely token of each target, without smoothing."""
        return token_scores(*output)

    def _teacher_forced(self, batch: PairBatch) -> tuple[Any, ...]:
        """Return the output of the model, whose inputs are the true previous tokens."""
        memory, inputs, targets = self._encode(batch)
        return self._decode(batch, memory, inputs, targets)

    def _encode(self, batch: PairBatch) -> tuple[Any, Tensor, Tensor]:
        """Run the encoder, and divide the targets into inputs and targets (B, T) of the decoder."""
        memory = self.model.encode(batch.src, src_mask=batch.src_mask)
        inputs = batch.tgt
        targets = batch.tgt.masked_fill(~batch.tgt_mask, IGNORE_INDEX)
        if getattr(self.config, "decoder_start_token_id", None) is None:
            targets = targets[:, 1:]  # the first token of a target is the begin token
        else:
            inputs = F.pad(inputs, (1, 0), value=self.start_id)
        return memory, inputs[:, :-1], targets

    def _decode(
        self, batch: PairBatch, memory: Any, inputs: Tensor, targets: Tensor
    ) -> tuple[Any, ...]:
        # No target mask: padding is on the right, which the causal mask hides from real tokens.
        h = self.model.decode(inputs, memory, src_mask=batch.src_mask)
        return *self.model.head.output(h.flatten(0, 1)), targets.flatten()

    def update_metrics(self, batch: BatchT, split: str) -> None:
        """Update the perplexity (without label smoothing) and the scores of generated texts."""
        pairs = self.as_pairs(batch)
        output = self._teacher_forced(pairs)
        nll, best = self._token_scores(output)
        self.ppl.update(nll, best, targets=output[-1])
        if sentinels := getattr(self.datamodule, "sentinel_ids", []):
            left_out = torch.tensor([IGNORE_INDEX, *sentinels]).to(nll.device)
            others = ~torch.isin(output[-1], left_out)
            total = (nll * others).sum(dtype=sum_dtype(nll.device))
            self.without_sentinels.update(total, others.sum())
        if num_beams := self.beams_of(split):
            hypotheses = self.generate_texts(pairs.src, pairs.src_mask, num_beams)
            self.scores.update(pairs.rows.tolist(), hypotheses, self._references(pairs, split))

    def _references(self, pairs: PairBatch, split: str) -> list[str | list[str]]:
        """Return, for each pair of the batch, a reference text or a list of reference texts."""
        references = self.datamodule.references(split)
        return [references[row] for row in pairs.rows.tolist()]

    def compute_metrics(self, split: str) -> dict[str, Any]:
        """Return the metrics of a split by name.

        The names are loss, accuracy and ppl_token, and for generated texts bleu, chrf, exact_match
        and bleu_signature. A validation with `val_num_beams` 0 has only the first three. For span
        corruption, there is loss_without_sentinels, the loss of the other targets.
        """
        metrics: dict[str, Any] = self.ppl.compute()
        if getattr(self.datamodule, "sentinel_ids", []):
            metrics["loss_without_sentinels"] = self.without_sentinels.compute()
        if self.beams_of(split):
            groups = self.length_groups(split) if split == "test" else {}
            metrics |= self.scores.compute(self.artifacts.get("tgt_lang", ""), groups)
        return metrics

    def length_groups(self, split: str) -> dict[str, set[int]]:
        """Return the rows of groups of examples whose BLEU a test reports separately, by name."""
        return {}

    def predict_step(self, batch: BatchT, batch_idx: int) -> list[tuple[int, str]]:
        """Return the row and the best text of beam search for each source of a batch."""
        pairs = self.as_pairs(batch)
        texts = self.generate_texts(pairs.src, pairs.src_mask, self.num_beams)
        return list(zip(pairs.rows.tolist(), texts, strict=True))

    def sample_outputs(self, batch: BatchT, split: str) -> dict[str, Media]:
        """Build "samples", a table of generated texts, and "attention", the maps of one text."""
        pairs = self.as_pairs(batch)
        num_beams = self.val_num_beams if split == "val" else self.num_beams
        generated = self.generate_texts(pairs.src, pairs.src_mask, num_beams or 1)
        references: Any = self.tokenizer.decode_batch(pairs.tgt.tolist())
        if hasattr(self.datamodule, "references"):
            references = self._references(pairs, split)
        texts = [text if isinstance(text, str) else "\n".join(text) for text in references]
        if pairs.src.ndim > 2:
            name, sources = "image", pairs.rows.tolist()
        else:
            name, sources = "source", self.tokenizer.decode_batch(pairs.src.tolist())
        rows = [list(row) for row in zip(sources, texts, generated, strict=True)]
        table = Table([name, "reference", "generated"], rows)
        return {"samples": table, "attention": self._cross_attention(pairs, generated)}

    def _cross_attention(self, batch: PairBatch, generated: list[str]) -> AttentionMaps:
        """Compute the cross-attention maps between the shortest source and its generated text."""
        tokenizer = self.tokenizer
        row = int(batch.src_mask.sum(1).argmin())
        src = batch.src[row][batch.src_mask[row]][:MAX_TOKENS]
        longest = min(MAX_TOKENS, getattr(self.config, "max_len", None) or MAX_TOKENS)
        ids = [self.start_id, *tokenizer.encode(generated[row]), tokenizer.eos_id][: longest + 1]
        maps = self._attention_of(src, ids[:-1])
        rows = token_names(tokenizer, ids[1:])  # the token that is predicted at each position
        return layer_maps(maps, rows, token_names(tokenizer, src.tolist()), "decoder layer")

    def _attention_of(self, src: Tensor, ids: list[int]) -> list[Tensor]:
        """Return the cross-attention map (T, S) of each layer for a source and T target tokens."""
        from fourfold.analysis.attention_maps import mean_maps

        tgt = torch.tensor([ids], device=src.device)
        return mean_maps(
            self.model, "cross_attn", lambda: self.model.decode(tgt, self.model.encode(src[None]))
        )

    @torch.inference_mode()
    def generate_texts(self, src: Tensor, src_mask: Tensor | None, num_beams: int) -> list[str]:
        """Generate the best text for each source by beam search.

        A text has at most 50 tokens more than its source, and at most `max_len` of the config.

        Args:
            src: Token ids (B, S), or images (B, C, height, width).
            src_mask: (B, S) bool, True = real token; None for images.
            num_beams: Beam width.
        """
        tokenizer = self.tokenizer
        ids, _ = beam_search(
            self.model,
            src,
            src_mask=src_mask,
            num_beams=num_beams,
            length_penalty=self.length_penalty,
            length_penalty_type=self.length_penalty_type,
            bos_id=self.start_id,
            eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
            max_new_tokens=self.longest_caption,
            num_return_sequences=1,
        )
        return tokenizer.decode_batch(ids.tolist())
