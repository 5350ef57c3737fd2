"""`classify` for images, sentences, pairs and documents, and `tag` for words.

Shapes: B inputs of a batch, T tokens, K classes, C channels, H height, W width.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import check_positive
from fourfold.data.vision.eval_transforms import eval_transform
from fourfold.errors import InputError
from fourfold.generation.step import check_logits
from fourfold.generation.text_model import Item, TextModel, check_model, run_batches
from fourfold.hub.preprocessing import default_class_names
from fourfold.layers.base_model import Model
from fourfold.losses import probabilities
from fourfold.models.masked_lm.classifiers import TokenClassifier
from fourfold.models.recurrent.hierarchical import HierarchicalClassifier


def classify(
    model: Model, inputs: Sequence[Any], *, batch_size: int = 64, truncate: bool = False
) -> Tensor:
    """Classify texts or images as `fourfold classify` does, with the inputs of the training.

    Texts get special tokens, and images are resized, cropped and normalized.

    Args:
        model: Classifier of sentences, pairs of sentences, documents or images that
            `fourfold.load` returned.
        inputs: N sentences, pairs of sentences (tuples) or documents; or N paths of image files or
            opened images (PIL.Image).
        batch_size: Number of inputs in a batch.
        truncate: Truncate texts that are too long for the model, instead of raising an error.

    Returns:
        Probabilities (N, K) of the classes in `model.artifacts["class_names"]`, in fp32 on the CPU,
        each for itself if an example has several labels; or the predicted values (N, 1) of a
        regression model.

    Raises:
        InputError: The model is not a classifier of texts or images, its checkpoint has no
            tokenizer or image size, a text does not fit the model, an image cannot be decoded, or
            the model computes NaN or infinite logits.

    Example:
        >>> import fourfold
        >>> from fourfold.models import SequenceClassifier, SequenceClassifierConfig
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> tokenizer = train_tokenizer(TokenizerConfig("char"), ["zwei houses"], mask=False)
        >>> config = SequenceClassifierConfig(n_layers=1, vocab_size=100, n_classes=2)
        >>> model = SequenceClassifier(config).eval()  # or fourfold.load("runs/languages")
        >>> model.tokenizer, model.artifacts = tokenizer, {"class_names": ["de", "en"]}
        >>> fourfold.classify(model, ["zweiundzwanzig", "a house"]).shape
        torch.Size([2, 2])
    """
    has_classes = hasattr(model.config, "n_classes") and not isinstance(model, TokenClassifier)
    check_model(model, has_classes, "a classifier of texts or images")
    text_class = _Documents if isinstance(model, HierarchicalClassifier) else _Sentences
    images = model.accepts_images
    reader: Any = _Images(model) if images else text_class(model, truncate=truncate)

    def run(items: list[Item]) -> Tensor:
        logits = check_logits(reader.logits([item.content for item in items])).float().cpu()
        return probabilities(logits, model.artifacts.get("multi_label", False))

    rows = run_batches(inputs, reader.prepare, run, batch_size, 1 if images else 64)
    return torch.stack(rows) if rows else torch.empty(0, model.config.n_classes or 0)


class _Images:
    def __init__(self, model: Any) -> None:
        if not getattr(model, "heads", True):
            raise InputError("has no classification head", option="model")
        self.model, self.load = model, eval_transform(dict(model.artifacts))

    def prepare(self, image: Any) -> Item:
        return Item(self.load(image), 0)  # (C, H, W)

    def logits(self, images: list[Tensor]) -> Any:
        return self.model(torch.stack(images).to(next(self.model.parameters())))


class _Sentences(TextModel):
    """Sentences, or pairs of sentences: the ids of a text, and the length of its first segment."""

    def prepare(self, texts: str | Sequence[str]) -> Item:
        texts = [texts] if isinstance(texts, str) else texts
        wanted = self.model.artifacts.get("n_texts")  # unknown for an imported checkpoint
        if len(texts) > 2 or len(texts) != (wanted or len(texts)):
            message = f"must have {wanted or '1 or 2'} texts separated by tabs, got {len(texts)}"
            raise InputError(message, option="the line")
        ids, first = self.joined(texts)
        return Item((ids, first), len(ids))

    def logits(self, texts: list[tuple[list[int], int]]) -> Any:
        ids, mask = self.pad([ids for ids, _ in texts])  # (B, T)
        if hasattr(self.model, "classify"):  # with a causal LM
            return self.model.classify(self.model.hidden(ids, mask=mask), mask)
        segments = None
        if self.model.config.n_segments > 1:
            first = torch.tensor([[n] for _, n in texts], device=self.device)
            segments = ((torch.arange(ids.shape[1], device=self.device) >= first) & mask).long()
        return self.model(ids, segments=segments, mask=mask)


class _Documents(TextModel):
    """Documents: the word ids of each sentence."""

    def prepare(self, texts: str | Sequence[str]) -> Item:
        rows = self.sentences(texts if isinstance(texts, str) else "\t".join(texts))
        return Item(rows, len(rows))

    def logits(self, documents: list[list[list[int]]]) -> Any:
        ids, mask = self.pad([row for document in documents for row in document])  # (N, T)
        return self.model(ids, tuple(mask.sum(1).tolist()), tuple(map(len, documents)))


def tag(
    model: Model, lines: Sequence[str], *, batch_size: int = 64, truncate: bool = False
) -> list[list[str]]:
    """Return the tag of each word of each line, as `fourfold classify` does with a tagger.

    Words are separated by spaces. The tag of a word is the prediction for its first token. Words
    that truncation removes get no tag.

    Args:
        model: `TokenClassifier` that `fourfold.load` returned.
        lines: The texts.
        batch_size: Number of texts in a batch.
        truncate: Truncate texts that are too long for the model, instead of raising an error.

    Raises:
        InputError: The model is not a tagger, or a text is too long for it.
    """
    check_model(model, isinstance(model, TokenClassifier), "a tagger")
    text = TextModel(model, truncate=truncate)
    tokenizer, names = text.tokenizer, class_names(model)

    def prepare(line: str) -> Item:
        (words,) = tokenizer.encode_words([line.split()])
        ids = text.truncate([token for word in words for token in word], n_special=2)
        starts = accumulate(map(len, words[:-1]), initial=1)  # after the token CLS
        positions = [start for start in starts if start <= len(ids)]
        return Item(([tokenizer.bos_id, *ids, tokenizer.eos_id], positions), len(ids))

    def run(items: list[Item]) -> list[list[str]]:
        ids, mask = text.pad([item.content[0] for item in items])
        best = check_logits(text.model(ids, mask=mask)).argmax(-1).tolist()  # (B, T)
        pairs = zip(best, items, strict=True)
        return [[names[row[position]] for position in item.content[1]] for row, item in pairs]

    return run_batches(lines, prepare, run, batch_size)


def class_names(model: Model) -> Sequence[str]:
    """Return the names of the classes that are stored with a model, or LABEL_0, LABEL_1, ..."""
    return model.artifacts.get("class_names") or default_class_names(model.config.n_classes)


def classify_lines(
    model: Model, lines: Sequence[str], *, top_k: int | None = None, **options: Any
) -> list[list[str]]:
    """Return the cells of each line of `fourfold classify`.

    These are the `top_k` most probable classes and their probabilities (None: one, or all labels if
    an example has several), or the predicted value of a regression, or the tags; for images, the
    path precedes them.
    """
    check_positive("top_k", top_k)
    if isinstance(model, TokenClassifier):
        return [[" ".join(tags)] for tags in tag(model, lines, **options)]
    if model.accepts_images:
        rows = zip(lines, _cells(model, lines, top_k, **options), strict=True)
        return [[path, *cells] for path, cells in rows]
    return _cells(model, [line.split("\t") for line in lines], top_k, **options)


def _cells(model: Model, inputs: Any, top_k: int | None, **options: Any) -> list[list[str]]:
    found, several = classify(model, inputs, **options), model.artifacts.get("multi_label")
    if found.shape[-1] == 1 and not several:
        return [[f"{number:.4f}"] for number in found.squeeze(-1).tolist()]
    names = class_names(model)
    n_shown = top_k or (found.shape[-1] if several else 1)
    best, classes = found.topk(min(n_shown, found.shape[-1]))
    return [
        [x for p, n in zip(row, ids, strict=True) for x in (names[n], f"{p:.4f}")]
        for row, ids in zip(best.tolist(), classes.tolist(), strict=True)
    ]
