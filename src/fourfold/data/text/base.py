"""Base classes of the text DataModules: tokenization, documents, and labelled examples."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from fourfold.data.loading.array_cache import Arrays, cached_arrays, default_cache_dir, digest
from fourfold.data.loading.datamodule import BatchedDataset, HasClasses, ResumableDataModule
from fourfold.data.readers.documents import Documents, DocumentUnit, fingerprint, read_documents
from fourfold.data.readers.hf_datasets import HubConfig
from fourfold.data.readers.splits import Source, SplitSource
from fourfold.data.readers.truncation import TooLong
from fourfold.data.text.token_cache import divided_texts, stream_arrays
from fourfold.errors import InputError
from fourfold.tokenization.pretrained import make_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

T = TypeVar("T")


@dataclass_transform()
def text_data(cls: type[T]) -> type[T]:
    """Make a text DataModule a dataclass, whose fields are the arguments of the constructor.

    `tokenizer` is an argument, with the options, and a property, with the trained tokenizer.
    """
    made: Any = dataclass(eq=False, repr=False)(cls)
    if isinstance(vars(made).get("tokenizer"), TokenizerConfig):
        del made.tokenizer  # the default of the argument, which would hide the property
    made.__init__.__annotations__["tokenizer"] = TokenizerConfig  # jsonargparse knows no InitVar
    return made


class HasTokenizer(ResumableDataModule):
    """Declares the property `tokenizer`, whose name is also that of an argument of subclasses.

    Attributes:
        artifact_names: Names of the attributes that inference needs besides the tokenizer.
    """

    artifact_names: ClassVar[tuple[str, ...]] = ()
    _tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the data; the first access reads the data."""
        self.setup()
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of entries of the vocabulary, special tokens included."""
        return self.tokenizer.vocab_size

    def artifacts(self) -> dict[str, Any]:
        """Return the tokenizer as a JSON string, and the attributes in `artifact_names`."""
        options = {name: getattr(self, name) for name in self.artifact_names}
        return {"tokenizer": self.tokenizer.to_str()} | options


@text_data
class TextDataModule(HasTokenizer):
    """Base class of the text DataModules, which load or train a tokenizer and encode the text.

    A subclass implements `read`, `training_texts` and `encode`, and sets `batch_class`. All ranks
    use the tokenizer of rank 0, and a resumed run uses the tokenizer of its checkpoint.

    Args:
        train: Training split: one or several files (plain, .gz, .xz, .bz2 or `archive.zip/member`),
            which may lie under $FOURFOLD_DATA, or the name of a split of a Hugging Face dataset.
            None for built-in data, which have their own splits.
        val: Validation split, with the same forms as `train`, or the fraction of the training
            examples to hold out. None means no validation split, except in built-in data.
        test: Test split, with the same forms as `val`.
        tokenizer: Tokenizer to train or to load; by default a WordPiece tokenizer is trained.

    Attributes:
        needs_mask: True if the tokenizer must have a mask token.
        special: Names of the special tokens of a trained tokenizer, in the order of their ids; None
            selects the default names.
    """

    needs_mask: ClassVar[bool] = False
    special: ClassVar[Sequence[str] | None] = None

    _: KW_ONLY
    train: str | list[str] | None = None
    val: SplitSource = None
    test: SplitSource = None
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(kind="wordpiece")
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__init__(self.seed, self.num_workers)
        self.split_sources = {"train": self.train, "val": self.val, "test": self.test}
        self._tokenizer_config = tokenizer

    @abstractmethod
    def read(self) -> dict[str, Any]:
        """Read each split that exists ("train", "val", "test"), before tokenization.

        The subclass chooses the type of the values, such as `TextTable` or `Documents`.
        """

    @abstractmethod
    def training_texts(self, raw: Any) -> Iterable[str]:
        """Return the texts on which the tokenizer is trained; `raw` is the training split."""

    @abstractmethod
    def encode(self, name: str, raw: Any, tokenizer: Tokenizer) -> BatchedDataset:
        """Encode the split with this name as `read` returned it, and return its dataset."""

    def build(self) -> dict[str, BatchedDataset]:
        """Read and encode the text.

        The tokenizer is loaded or trained, unless a checkpoint has already set it.

        Raises:
            InputError: If the tokenizer must be trained and there is no training split.
        """
        raw = self.read()
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = self._make_tokenizer(raw)
            if self.trainer is not None and self.trainer.world_size > 1:
                # Unigram training is not bitwise reproducible across processes.
                tokenizer = Tokenizer.from_str(self.trainer.strategy.broadcast(tokenizer.to_str()))
        splits = {name: self.encode(name, rows, tokenizer) for name, rows in raw.items()}
        self._tokenizer = tokenizer
        return splits

    def _make_tokenizer(self, raw: dict[str, Any]) -> Tokenizer:
        config = self._tokenizer_config
        if config.file is None and "train" not in raw:
            message = "must be given for its tokenizer, or set tokenizer.file to load one"
            raise InputError(message, option="data.train")
        texts = [] if config.file else self.training_texts(raw["train"])
        return make_tokenizer(config, texts, mask=self.needs_mask, special=self.special or ())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base class, the tokenizer as a JSON string, and its options."""
        return super().state_dict() | {
            "tokenizer": self.tokenizer.to_str(),
            "tokenizer_config": asdict(self._tokenizer_config),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the tokenizer and the position in the data from a checkpoint.

        The data are encoded again if the tokenizer differs from the one that was trained here.

        Raises:
            InputError: If the options of a trained tokenizer, or the content of a tokenizer that
                was loaded from a file, differ from those of the checkpoint; or as in the base
                class.
        """
        saved = state_dict["tokenizer_config"]
        config = asdict(self._tokenizer_config)
        text = state_dict["tokenizer"]
        if config["file"] is None:
            for key, value in config.items():
                # Paths may change when files are moved. Older checkpoints lack newer options.
                old = saved.get(key, getattr(TokenizerConfig, key))
                if key not in ("file", "merges") and old != value:
                    message = f"must be {old!r}, as in the checkpoint, got {value!r}"
                    raise InputError(message, option=f"data.tokenizer.{key}")
        elif text != self.tokenizer.to_str():
            message = "must be the tokenizer of the checkpoint, got another tokenizer in"
            raise InputError(f"{message} {config['file']}", option="data.tokenizer.file")
        if text != self.tokenizer.to_str():
            self._tokenizer = Tokenizer.from_str(text, "the tokenizer of the checkpoint")
            self.splits = self.build()
        super().load_state_dict(state_dict)


@text_data
class DocumentDataModule(TextDataModule):
    """Base class of the DataModules for language models, which read documents.

    Args:
        source: "builtin" (Python's documentation, no network), "files" (the paths in `train`, `val`
            and `test`; .jsonl, .json, .csv, .tsv and .parquet are tables) or "hub" (splits of a
            Hugging Face dataset). If `val` or `test` is a fraction, whole documents are held out,
            or the end of a single document.
        column: Column with the text in tables and Hugging Face datasets, whose rows are documents.
        documents: Part of a plain text file that is one document: "file", "line" or "paragraph".
        hub: Hugging Face dataset; required if `source` is "hub", otherwise ignored.
        train_rows: Number of training documents, sampled from all training documents; None takes
            all of them.
        batch_size: Number of sequences in a batch. If each sequence is one document, this number
            varies, and `batch_size` times the maximum length of a document is the maximum number of
            tokens in a batch, padding included.
        block_cross_document_attention: Prevent attention between documents of one sequence.
        too_long: Treatment of documents that exceed the maximum length, if each sequence is one
            document: "error", "truncate", or "drop" (training documents only; validation and test
            documents are truncated).
        cache_dir: Folder for the token ids of files and of Hugging Face datasets, which are encoded
            once and then mapped into memory; None selects $FOURFOLD_CACHE or ~/.cache/fourfold.
    """

    source: Source = "builtin"
    _: KW_ONLY
    column: str = "text"
    documents: DocumentUnit = "paragraph"
    hub: HubConfig | None = None
    train_rows: int | None = None
    batch_size: int = 32
    block_cross_document_attention: bool = False
    too_long: TooLong = "error"
    cache_dir: str | None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        self._fingerprints: dict[str, str] = {}

    def read(self) -> dict[str, Any]:
        return read_documents(self)

    def training_texts(self, raw: Documents) -> Iterable[str]:
        return divided_texts(raw, metaspace=self._tokenizer_config.kind in ("bpe", "unigram"))

    def cached(
        self, split: str, options: tuple[Any, ...], produce: Callable[[], Iterable[Arrays]]
    ) -> Arrays:
        """Return arrays that depend on the text of a split and on `options`, from the cache.

        Arrays of built-in data stay in memory. The arguments are those of `cached_arrays`.
        """
        if self.source == "builtin":
            return cached_arrays(None, "", produce)
        if split not in self._fingerprints:  # reads the files
            self._fingerprints[split] = fingerprint(self, split)
        folder = Path(self.cache_dir).expanduser() if self.cache_dir else default_cache_dir()
        return cached_arrays(folder, digest(self._fingerprints[split], options), produce)

    def encoded_stream(self, name: str, raw: Documents, tokenizer: Tokenizer) -> Arrays:
        """Return the arrays of the `TokenStream` of a split, from the cache."""
        produce = partial(stream_arrays, raw, tokenizer, self.num_workers)
        return self.cached(name, ("stream", tokenizer.to_str()), produce)

    def prepare_data(self) -> None:
        """Train the tokenizer and encode the text; Lightning calls it on one rank per machine."""
        if not self.splits and self.source != "builtin":
            raw = self.read()
            tokenizer = self._tokenizer or self._make_tokenizer(raw)
            for name, documents in raw.items():
                self.encode(name, documents, tokenizer)

    def _make_tokenizer(self, raw: dict[str, Any]) -> Tokenizer:
        config = self._tokenizer_config
        if config.file is not None or "train" not in raw:
            return super()._make_tokenizer(raw)

        def produce() -> Iterator[Arrays]:
            text = super(DocumentDataModule, self)._make_tokenizer(raw).to_str()
            yield {"json": np.frombuffer(text.encode(), np.uint8)}

        options = ("tokenizer", config, self.needs_mask, self.special)
        text = self.cached("train", options, produce)["json"].tobytes().decode()
        return Tokenizer.from_str(text, f"the {config.kind} tokenizer")


@text_data
class LabelledDataModule(HasClasses, TextDataModule):
    """Base class of the DataModules whose examples have classes.

    Args:
        max_len: Maximum number of tokens of an example, special tokens included.
        batch_size: Number of examples in a training batch.
        eval_batch_size: Number of examples in a validation or test batch; None means `batch_size`.
    """

    _: KW_ONLY
    max_len: int = 128
    batch_size: int = 32
    eval_batch_size: int | None = None
