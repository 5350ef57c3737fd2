"""Line processors of `fourfold classify`: image files, sentences, pairs, documents and words.

`classify` gives a classifier of texts or images the same inputs in Python.

Shapes: B lines of a batch, T tokens, K classes, C channels, H height, W width.
"""

from argparse import Namespace
from collections.abc import Sequence
from itertools import accumulate
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.commands.infer.base import LineProcessor, LoadedModel, TextProcessor, escape
from fourfold.commands.infer.line_io import Item
from fourfold.core.validation import MAX_SIZE
from fourfold.data.loading.batches import DocumentBatch, SequenceBatch
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.document_classification import encode_documents
from fourfold.data.text.segments import join_segments, n_special_tokens
from fourfold.data.vision.transforms import eval_transform
from fourfold.errors import InputError
from fourfold.generation.step import check_logits
from fourfold.hub.preprocessing import default_class_names
from fourfold.layers.base_model import Model
from fourfold.models.baselines.resnet import ResNet
from fourfold.models.vit.model import ViT


class ImageClassifier(LineProcessor):
    """Line processor that classifies image files. Each line of input is the path of a file."""

    batches_ahead = 1  # images have one size and need memory

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.load = eval_transform(task.artifacts)
        n_classes: int = task.config.n_classes
        self.names: list[str] = task.artifacts["class_names"] or default_class_names(n_classes)

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (path, preprocessed image (C, H, W)) as content.

        Args:
            line: Path of the image file.

        Raises:
            InputError: The image cannot be decoded.
        """
        return Item((line, self.load(line)), 0)

    def logits(self, items: list[Item]) -> Tensor:
        """Return class logits (B, K) of B images."""
        images = torch.stack([item.content[1] for item in items])  # (B, C, H, W)
        images = images.to(self.device, next(self.model.parameters()).dtype)
        logits: Tensor = self.model(images)
        return logits

    def write(self, items: list[Item], logits: Tensor) -> list[str]:
        """Return a line for each image, with tabs between its parts.

        The parts are the path, and the `--top-k` most probable classes with their probabilities.
        """
        classes = _format_classes(logits, self.names, self.options.top_k)
        return [f"{escape(i.content[0])}\t{c}" for i, c in zip(items, classes, strict=True)]


class TextClassifier(TextProcessor):
    """Line processor that classifies sentences or pairs of sentences.

    Each line of input is a sentence, or two sentences separated by a tab. A model with one output
    is a regression model, for which a line of output is the predicted value instead of classes.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.names: list[str] = task.artifacts.get("class_names") or []
        self.n_separators: int = task.artifacts.get("n_separators", 1)

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (token ids, number of tokens of segment A) as content.

        Segment A (segment id 0) is the first sentence with the special tokens before and after it.
        Segment id 1 is for the tokens after segment A.

        Raises:
            InputError: The line is too long and `--truncate` is not given, or the number of
                sentences in the line (one or two) differs from that of the training examples.
        """
        return self.prepare_texts(line.split("\t"))

    def prepare_texts(self, texts: Sequence[str]) -> Item:
        """Return an item with the pair (token ids, number of tokens of segment A) as content.

        Args:
            texts: One sentence, or the two sentences of a pair.

        Raises:
            InputError: See `prepare`.
        """
        wanted = self.task.artifacts.get("n_texts")  # unknown for an imported checkpoint
        if len(texts) > 2 or len(texts) != (wanted or len(texts)):
            raise InputError(
                f"must have {wanted or '1 or 2'} texts separated by tabs, got {len(texts)}",
                option="the line",
            )
        encoded = [self.tokenizer.encode(text) for text in texts]
        n_special = n_special_tokens(len(encoded), self.n_separators)
        n_tokens = self.truncated_length(sum(map(len, encoded)) + n_special)
        columns = [RaggedArray(np.array(ids, np.int64), np.array([0, len(ids)])) for ids in encoded]
        rows, first = join_segments(columns, self.tokenizer, n_tokens, self.n_separators)
        return Item((rows[0].tolist(), int(first[0])), len(rows[0]))

    def logits(self, items: list[Item]) -> Tensor:
        """Return class logits (B, K) of B items that `prepare_texts` returned."""
        ids, mask = self.pad([item.content[0] for item in items])  # (B, T)
        first = torch.tensor([[item.content[1]] for item in items], device=self.device)
        segments = ((torch.arange(ids.shape[1], device=self.device) >= first) & mask).long()
        unused = torch.zeros(len(items), dtype=torch.long, device=self.device)
        logits: Tensor = self.task.logits(SequenceBatch(ids, unused, segments, mask, unused))
        return logits

    def write(self, items: list[Item], logits: Tensor) -> list[str]:
        """Convert logits (B, K) to B lines of output.

        A line has the most probable classes with their probabilities. If K is 1, as in a regression
        model, a line has the predicted value.
        """
        if logits.shape[-1] == 1:
            return [f"{number:.4f}" for number in logits.float().squeeze(-1).tolist()]
        return _format_classes(logits, self.names, self.options.top_k)


class DocumentClassifier(TextClassifier):
    """Line processor that classifies documents. Each line of input is a document."""

    def prepare_texts(self, texts: Sequence[str]) -> Item:
        """Return an item whose content is the list of the word ids of each sentence.

        Args:
            texts: The document, or parts of it that were separated by tabs.

        Raises:
            InputError: The document has no sentence, or it has too many sentences and `--truncate`
                is not given.
        """
        found = encode_documents(["\t".join(texts)], self.tokenizer, self.max_len or MAX_SIZE)
        n_sentences, limit = len(found), self.model.config.max_sentences
        limit = min(limit, self.task.artifacts.get("max_sentences", limit))
        if n_sentences == 0:
            raise InputError("must have at least one sentence, got none", option="the line")
        if n_sentences > limit and not self.options.truncate:
            raise InputError(
                f"has {n_sentences} sentences, but the model reads {limit}; --truncate shortens it",
                option="the text",
            )
        rows = [found.ids[i].tolist() for i in range(min(n_sentences, limit))]
        return Item(rows, len(rows))

    def logits(self, items: list[Item]) -> Tensor:
        """Return class logits (B, K) of B items that `prepare_texts` returned."""
        ids, mask = self.pad([row for item in items for row in item.content])  # (N, T)
        n_sentences = tuple(len(item.content) for item in items)
        unused = torch.zeros(len(items), dtype=torch.long)
        batch = DocumentBatch(ids, unused, tuple(mask.sum(1).tolist()), n_sentences, unused)
        logits: Tensor = self.task.logits(batch)
        return logits


class WordTagger(TextProcessor):
    """Line processor that predicts a tag for each word of a line.

    Words are separated by spaces. The tag of a word is the model's prediction for its first token.
    """

    def prepare(self, line: str) -> Item:
        """Return an item with the pair (token ids, index of each word's first token) as content.

        The token ids begin with CLS, so the index of the first word is 1. Words that truncation
        removes have no index and get no tag.

        Raises:
            InputError: The line is too long for the model, and `--truncate` is not given.
        """
        (words,) = self.tokenizer.encode_words([line.split()])
        ids = self.truncate([token for word in words for token in word], n_special=2)
        starts = accumulate(map(len, words[:-1]), initial=1)  # after the token CLS
        positions = [start for start in starts if start <= len(ids)]
        ids = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
        return Item((ids, positions), len(ids))

    def logits(self, items: list[Item]) -> Tensor:
        """Return tag logits (B, T, K) of all tokens of B lines."""
        ids, mask = self.pad([item.content[0] for item in items])
        logits: Tensor = self.model(ids, None, mask)
        return logits

    def write(self, items: list[Item], logits: Tensor) -> list[str]:
        """Return the tags of the words of each line, separated by spaces."""
        best = logits.argmax(-1).tolist()  # (B, T)
        tags = [escape(name) for name in self.task.artifacts["class_names"]]
        return [
            " ".join(tags[row[position]] for position in item.content[1])
            for row, item in zip(best, items, strict=True)
        ]


@torch.inference_mode()
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
        Probabilities (N, K) of the classes in `model.artifacts["class_names"]`, in fp32 on the CPU;
        or the predicted values (N, 1) of a regression model.

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
    from fourfold.tasks import (  # imports Lightning
        CausalSequenceClassification,
        DocumentClassification,
        SequenceClassification,
    )

    batches = [inputs[i : i + batch_size] for i in range(0, len(inputs), batch_size)]
    if isinstance(model, ViT | ResNet):
        load, like = eval_transform(dict(model.artifacts)), next(model.parameters())
        images = (torch.stack([load(image) for image in batch]).to(like) for batch in batches)
        return torch.cat([check_logits(model(batch)).float().softmax(-1).cpu() for batch in images])
    kinds = (SequenceClassification, CausalSequenceClassification, DocumentClassification)
    task_class = next((kind for kind in kinds if isinstance(model, kind.model_class)), None)
    if task_class is None:
        raise InputError(
            f"must be a classifier of texts or images, got {type(model).__name__}", option="model"
        )
    task: Any = LoadedModel(model)
    task.config, task.logits = model.config, MethodType(task_class.logits, task)
    processor_class = DocumentClassifier if task_class is kinds[-1] else TextClassifier
    processor = processor_class(task, Namespace(truncate=truncate))
    items = (
        [processor.prepare_texts([x] if isinstance(x, str) else x) for x in batch]
        for batch in batches
    )
    logits = torch.cat([check_logits(processor.logits(batch)).float().cpu() for batch in items])
    return logits if logits.shape[-1] == 1 else logits.softmax(-1)


def _format_classes(logits: Tensor, names: list[str], top_k: int) -> list[str]:
    """Return the most probable classes of each input and their probabilities as lines of text.

    Args:
        logits: Logits (B, K).
        names: Names of the K classes.
        top_k: Number of classes in each line; values above K mean K.

    Returns:
        B lines, in which classes and probabilities alternate, separated by tabs.
    """
    best, classes = logits.float().softmax(-1).topk(min(top_k, logits.shape[-1]))
    return [
        "\t".join(f"{escape(names[n])}\t{p:.4f}" for p, n in zip(row, numbers, strict=True))
        for row, numbers in zip(best.tolist(), classes.tolist(), strict=True)
    ]
