"""A tiny task with tiny data of each kind, and one training in fp64 of one optimizer step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer

from fourfold.callbacks.resume import ExactResume
from fourfold.data import (
    CaptionData,
    CausalTextData,
    ImageData,
    MaskedTextData,
    QuestionData,
    SequenceData,
    TokenData,
    TranslationData,
)
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.models import (
    CaptionerConfig,
    CausalClassifierConfig,
    CausalLMConfig,
    CLIPConfig,
    EncoderDecoderConfig,
    JoinedConfig,
    MaskedLMConfig,
    SequenceClassifierConfig,
    SpanExtractorConfig,
    T5Config,
    TokenClassifierConfig,
    ViTConfig,
)
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import (
    Captioning,
    CausalLanguageModeling,
    CausalSequenceClassification,
    ContrastiveLearning,
    ImageClassification,
    JoinedTranslation,
    MaskedLanguageModeling,
    QuestionAnswering,
    SequenceClassification,
    Task,
    TextToText,
    TokenClassification,
    Translation,
)
from scripts.tiny_files import sentences, write_labelled

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "dropout": 0.0}
# Weights move by exactly the gradient, so that equal weights mean equal gradients.
SGD = OptimizerConfig(name="sgd", lr=1.0, momentum=0.0, weight_decay=0.0)
FLAT = ScheduleConfig(name="constant")


def write_texts(folder: Path) -> Path:
    """16 pairs, some running text and what `write_labelled` gives, each in three splits."""
    for k, split in enumerate(("train", "val", "test")):
        for j, lang in enumerate(("en", "de")):
            lines = sentences(16, 10 * k + j)
            (folder / f"{split}.{lang}").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.txt").write_text("\n".join(sentences(60, 100 + k)) + "\n")
        write_labelled(folder, split, 40, 200 + k)
    return folder


def translation(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = EncoderDecoderConfig(**SMALL, vocab_size=None, max_len=64)
    files = {name: str(texts / (name + ".{lang}")) for name in ("train", "val", "test")}
    data = TranslationData(
        source="files", **files, tokenizer=TokenizerConfig(kind="char"), max_len=64,
        max_tokens=4096, **kwargs,
    )  # fmt: skip
    return Translation(config, SGD, FLAT, beam=2), data


def text_to_text(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    """T5, on the same pairs."""
    shape = {**SMALL, "d_head": 8, "attn_dropout": 0.0, "ff_dropout": 0.0, "max_len": 64}
    _, data = translation(texts, **kwargs)
    return TextToText(T5Config(**shape, vocab_size=None), SGD, FLAT, beam=2), data


def joined(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    """Translation by two halves of different width, on the same pairs."""
    shape = {**SMALL, "d_model": 12, "d_ff": 20, "attn_dropout": 0.0}
    reader = MaskedLMConfig(**shape, vocab_size=None, max_len=64)
    config = JoinedConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=64, encoder=reader)
    _, data = translation(texts, **kwargs)
    return JoinedTranslation(config, SGD, FLAT, 0.1, beam=2), data


def captions(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    shape = {**SMALL, "d_model": 12, "d_ff": 20}
    reader = ViTConfig(**shape, image_size=8, patch_size=4, n_channels=1)
    config = CaptionerConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=20, encoder=reader)
    data = CaptionData(
        batch_size=kwargs.pop("max_rows", 64), tokenizer=TokenizerConfig(vocab_size=150),
        max_len=20, **kwargs,
    )  # fmt: skip
    return Captioning(config, SGD, FLAT, beam=2, label_smoothing=0.1), data


def image_and_text(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = CLIPConfig(
        **SMALL, vocab_size=None, max_len=16, image_d_model=16, image_n_layers=1, image_n_heads=2,
        image_d_ff=24, image_size=8, patch_size=4, n_channels=1, d_embed=8,
    )  # fmt: skip
    rows = kwargs.pop("max_rows", 64)
    data = CaptionData(batch_size=rows, tokenizer=TokenizerConfig(vocab_size=150), **kwargs)
    return ContrastiveLearning(config, SGD, FLAT), data


def causal(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = CausalLMConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=32)
    files = {name: str(texts / f"{name}.txt") for name in ("train", "val", "test")}
    data = CausalTextData(
        source="files",
        **files,
        tokenizer=TokenizerConfig(kind="char"),
        block_size=32,
        batch_size=kwargs.pop("max_rows", 32),
        **kwargs,
    )
    return CausalLanguageModeling(config, SGD, FLAT), data


def masked(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = MaskedLMConfig(**SMALL, attn_dropout=0.0, vocab_size=None, max_len=32)
    files = {name: str(texts / f"{name}.txt") for name in ("train", "val", "test")}
    data = MaskedTextData(
        source="files",
        **files,
        tokenizer=TokenizerConfig(kind="char"),
        max_len=32,
        batch_size=kwargs.pop("max_rows", 32),
        **kwargs,
    )
    return MaskedLanguageModeling(config, SGD, FLAT), data


def sentence_pairs(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    """BERT's two tasks; rows have different numbers of hidden tokens."""
    task, data = masked(
        texts, layout="segment_pairs", documents="line", sentences="punctuation", **kwargs
    )
    config = replace(task.config, n_segments=2, next_sentence=True)
    return MaskedLanguageModeling(config, SGD, FLAT), data


def images(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = ViTConfig(**SMALL, image_size=8, patch_size=2, n_channels=1, n_classes=None)
    data = ImageData(batch_size=kwargs.pop("max_rows", 64), **kwargs)
    return ImageClassification(config, SGD, FLAT), data


ENCODER: dict[str, Any] = {**SMALL, "attn_dropout": 0.0, "vocab_size": None, "max_len": 96}
CHARS = TokenizerConfig(kind="char")


def labelled(texts: Path, label: str, **kwargs: Any) -> Any:
    files: dict[str, Any] = {name: str(texts / f"{name}.tsv") for name in ("train", "val", "test")}
    return SequenceData(
        "files", **files, text=["a", "b"], label=label, regression=label == "score",
        tokenizer=CHARS, max_len=96, batch_size=kwargs.pop("max_rows", 16), **kwargs,
    )  # fmt: skip


def sequences(texts: Path, label: str = "kind", **kwargs: Any) -> tuple[Task, Any]:
    config = SequenceClassifierConfig(**ENCODER, head_dropout=0.0)
    return SequenceClassification(config, SGD, FLAT), labelled(texts, label, **kwargs)


def scores(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    return sequences(texts, "score", **kwargs)


def causal_sequences(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    config = CausalClassifierConfig(**ENCODER, head_dropout=0.0)
    return CausalSequenceClassification(config, SGD, FLAT), labelled(texts, "kind", **kwargs)


def words(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    files: dict[str, Any] = {k: str(texts / f"{k}.conll") for k in ("train", "val", "test")}
    rows = kwargs.pop("max_rows", 16)
    data = TokenData(**files, tokenizer=CHARS, max_len=24, batch_size=rows, **kwargs)
    return TokenClassification(TokenClassifierConfig(**ENCODER, head_dropout=0.0), SGD, FLAT), data


def questions(texts: Path, **kwargs: Any) -> tuple[Task, Any]:
    files: dict[str, Any] = {k: str(texts / f"{k}.json") for k in ("train", "val", "test")}
    data = QuestionData(
        **files, tokenizer=CHARS, max_len=48, stride=10, max_question=20,
        batch_size=kwargs.pop("max_rows", 16), **kwargs,
    )  # fmt: skip
    return QuestionAnswering(SpanExtractorConfig(**ENCODER), SGD, FLAT, max_answer=8), data


DOWNSTREAM = {"sequences": sequences, "scores": scores, "causal_sequences": causal_sequences,
              "words": words, "questions": questions}  # fmt: skip
JOINED = {"joined": joined, "captions": captions}
FAMILIES = {"translation": translation, "causal": causal, "masked": masked, "images": images}


TASKS = {
    "translation": translation, "masked LM": masked, "sentence pairs": sentence_pairs,
    "causal LM": causal, "images": images, "text to text": text_to_text,
    "image and text": image_and_text, "joined": joined, "captions": captions,
    "sequences": sequences, "scores": scores, "tokens": words, "questions": questions,
    "causal classes": causal_sequences,
}  # fmt: skip


class KeepWeights(Callback):
    """Writes them down, since with several processes the model only lives in the children."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        weights = trainer.strategy.lightning_module_state_dict()  # whole, also where it is split
        if trainer.is_global_zero:
            own = {k.removeprefix("model."): v for k, v in weights.items() if k[:6] == "model."}
            torch.save(own, self.file)


def train(
    task: Task, data: Any, folder: Path, callbacks: Sequence[Callback] = (), **kwargs: Any
) -> dict[str, torch.Tensor]:
    """Weights after training."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"max_epochs": 1, "precision": "64-true", "accelerator": "cpu"}
    ours = [ExactResume(), KeepWeights(folder / "weights.pt"), *callbacks]
    trainer = Trainer(
        **(options | kwargs), logger=False, enable_checkpointing=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        limit_val_batches=0, callbacks=ours,
    )  # fmt: skip
    trainer.fit(task, data)
    if not trainer.is_global_zero:
        return {}
    weights: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return weights
