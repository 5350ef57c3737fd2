"""TextDataModule: base class of DataModules with a tokenizer, which is stored in checkpoints."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from fourfold.data.loading.datamodule import BatchedDataset, ResumableDataModule
from fourfold.errors import InputError
from fourfold.tokenization.pretrained import make_tokenizer
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

PATH_FIELDS = ("file", "merges")  # fields of TokenizerConfig that may change when files are moved


class TextDataModule(ResumableDataModule):
    """Base class of the text DataModules: a subclass implements `read` and `encode`.

    All ranks use the tokenizer of rank 0, and a resumed run uses the tokenizer of its checkpoint.

    Args:
        tokenizer: Tokenizer to train or to load.
        seed: Seed of shuffling, masking and cropping, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Attributes:
        needs_mask: The tokenizer must have a mask token.
        special: Special tokens of a tokenizer that is trained, in the order of their ids; None
            selects the default order.
    """

    needs_mask: ClassVar[bool] = False
    special: ClassVar[Sequence[str] | None] = None

    def __init__(self, tokenizer: TokenizerConfig, seed: int = 0, num_workers: int = 0) -> None:
        super().__init__(seed, num_workers)
        self._tokenizer_config = tokenizer
        self._tokenizer: Tokenizer | None = None

    @abstractmethod
    def read(self) -> dict[str, Any]:
        """Return the raw text of each split."""

    @abstractmethod
    def training_texts(self, raw: Any) -> Sequence[str]:
        """Return the texts of the raw training split on which the tokenizer is trained."""

    @abstractmethod
    def encode(self, name: str, raw: Any, tokenizer: Tokenizer) -> BatchedDataset:
        """Return the dataset of the split `name` from its raw text."""

    def build(self) -> dict[str, BatchedDataset]:
        """Read the text, load or train the tokenizer unless a checkpoint set it, and encode.

        Raises:
            InputError: If the tokenizer must be trained and there is no training split.
        """
        raw = self.read()
        tokenizer = self._tokenizer or self._make_tokenizer(raw)
        splits = {name: self.encode(name, rows, tokenizer) for name, rows in raw.items()}
        self._tokenizer = tokenizer
        return splits

    def _make_tokenizer(self, raw: dict[str, Any]) -> Tokenizer:
        config = self._tokenizer_config
        if config.file is None and "train" not in raw:
            message = "must be given to train a tokenizer, or set tokenizer.file to load one"
            raise InputError(message, option="data.train")
        texts = [] if config.file else self.training_texts(raw["train"])
        tokenizer = make_tokenizer(config, texts, mask=self.needs_mask, special=self.special)
        if self.trainer is not None and self.trainer.world_size > 1:
            # Unigram training is not bitwise reproducible across processes.
            tokenizer = Tokenizer.from_str(self.trainer.strategy.broadcast(tokenizer.to_str()))
        return tokenizer

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
        """Return the tokenizer as a JSON string, which inference needs besides the model."""
        return {"tokenizer": self.tokenizer.to_str()}

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the tokenizer and its config."""
        return super().state_dict() | {
            "tokenizer": self.tokenizer.to_str(),
            "tokenizer_config": asdict(self._tokenizer_config),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore tokenizer and position of a checkpoint.

        Raises:
            InputError: If the tokenizer of `data` differs from that of the checkpoint; or as
                `ResumableDataModule.load_state_dict`.
        """
        saved = state_dict["tokenizer_config"]
        config = asdict(self._tokenizer_config)
        text = state_dict["tokenizer"]
        if config["file"] is None:
            for key, value in config.items():
                if key not in PATH_FIELDS and saved.get(key) != value:
                    message = f"must be {saved.get(key)!r}, as in the checkpoint, got {value!r}"
                    raise InputError(message, option=f"data.tokenizer.{key}")
        elif text != self.tokenizer.to_str():
            message = "must be the tokenizer of the checkpoint, got another tokenizer in"
            raise InputError(f"{message} {config['file']}", option="data.tokenizer.file")
        if text != self.tokenizer.to_str():
            self._tokenizer = Tokenizer.from_str(text, "the tokenizer of the checkpoint")
            self.splits = self.build()
        super().load_state_dict(state_dict)
