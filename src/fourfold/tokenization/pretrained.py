"""Tokenizers from files: tokenizer.json, vocabularies of BERT and GPT, checkpoints, directories."""

import os
import zipfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders, models

from fourfold.errors import InputError
from fourfold.json_files import read_json
from fourfold.text_files import parse_json, read_lines, read_text, resolve
from fourfold.tokenization import training
from fourfold.tokenization.tokenizer import ROLES, Tokenizer
from fourfold.tokenization.training import TokenizerConfig

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SOURCE_FILE = "source.spm"  # of Marian
_SENTENCEPIECE_FILES = ("spiece.model", "tokenizer.model")
# Classes of transformers that take texts and ids of sentencepiece as they are, unlike Pegasus'.
# The values are their defaults.
_BOS: dict[str, Any] = {"add_bos_token": True}
_SENTENCEPIECE_CLASSES = {"llamatokenizer": _BOS, "gemmatokenizer": _BOS}
_SENTENCEPIECE_CLASSES["t5tokenizer"] = {"extra_ids": 100}
_WORD_END = "</w>"
_END_OF_TEXT = "<|endoftext|>"


def make_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], *, mask: bool, special: Sequence[str] = ()
) -> Tokenizer:
    """Load the tokenizer `config.file`, or train a tokenizer on texts as `train_tokenizer` does.

    Raises:
        InputError: If a file is missing or invalid, or if a mask token is needed and missing.

    Example:
        >>> tokenizer = make_tokenizer(TokenizerConfig("char"), ["abc"], mask=True)
        >>> tokenizer.decode(tokenizer.encode("cab"))
        'cab'
    """
    if config.file is not None:
        tokenizer = _load(config, config.file)
    else:
        tokenizer = training.train_tokenizer(config, texts, mask=mask, special=special)
    if mask and tokenizer.mask_id is None:
        names = " or ".join(ROLES["mask"])
        message = f"must contain a mask token ({names}), which a masked language model needs"
        raise InputError(message, option="tokenizer", file=config.file)
    return tokenizer


def tokenizer_files(path: Path, vocab_size: int | None = None) -> TokenizerConfig | None:
    """Return the options that load the tokenizer in a directory of transformers or llama2.c.

    The files are tokenizer.json, otherwise vocab.txt (BERT), otherwise vocab.json with merges.txt
    (GPT) or source.spm (Marian), otherwise a model of sentencepiece, if that package is installed.
    With a `vocab_size`, the last of them is llama2.c's tokN.bin or tokenizer.bin. The result is
    None if the directory has none of these files.

    Raises:
        InputError: tokenizer_config.json is not valid.

    Example:
        >>> tokenizer_files(Path("an/empty/directory")) is None
        True
    """
    if os.path.lexists(path / TOKENIZER_FILE):
        return TokenizerConfig(file=str(path / TOKENIZER_FILE))
    if os.path.lexists(path / "vocab.txt"):
        config = read_json(path / TOKENIZER_CONFIG_FILE, optional=True)
        lowercase = bool(config.get("do_lower_case", True))
        expected = {"strip_accents": lowercase, "tokenize_chinese_chars": True}
        for key, value in expected.items():  # the backend has no other values
            if config.get(key) not in (None, value):
                message = f"must be {value} for a vocab.txt, got {config[key]}"
                raise InputError(message, option=key, file=path / TOKENIZER_CONFIG_FILE)
        return TokenizerConfig(file=str(path / "vocab.txt"), lowercase=lowercase)
    for merges in ("merges.txt", *([SOURCE_FILE] if find_spec("sentencepiece") else [])):
        if os.path.lexists(path / "vocab.json") and os.path.lexists(path / merges):
            return TokenizerConfig(file=str(path / "vocab.json"), merges=str(path / merges))
    files = (f"tok{vocab_size}.bin", "tokenizer.bin") if vocab_size else ()
    if find_spec("sentencepiece") is not None and _sentencepiece_settings(path)[0]:
        files = (*_SENTENCEPIECE_FILES, *files)
    found = (path / name for name in files if os.path.lexists(path / name))
    return next((TokenizerConfig(file=str(file)) for file in found), None)


def read_tokenizer(path: Path, vocab_size: int | None = None) -> str | None:
    """Read the tokenizer in a directory of transformers or llama2.c, as a JSON string.

    The result is None if the directory has no tokenizer files (see `tokenizer_files`).

    Raises:
        InputError: The files are not valid, a required special token is missing, or the vocabulary
            has not `vocab_size` tokens.

    Example:
        >>> read_tokenizer(Path("an/empty/directory")) is None
        True
    """
    config = tokenizer_files(path, vocab_size)
    if config is None:
        return None
    tokenizer = make_tokenizer(config, [], mask=False)
    if tokenizer.name.endswith(".bin") and tokenizer.vocab_size != vocab_size:
        message = f"has {tokenizer.vocab_size} tokens, but the model needs {vocab_size}"
        raise InputError(message, option="the tokenizer", file=config.file)
    return tokenizer.to_str()


def _load(config: TokenizerConfig, file: str) -> Tokenizer:
    from fourfold.tokenization import sentencepiece_files  # needed by few models

    if config.merges is not None:
        if config.merges.endswith(".spm"):
            return sentencepiece_files.load_sentencepiece(file, config.merges)
        return _load_gpt(file, config.merges)
    if file.endswith((".model", ".spm")):
        _, settings = _sentencepiece_settings(Path(file).parent)
        return sentencepiece_files.load_sentencepiece(None, file, settings)
    if file.endswith(".bin"):
        return sentencepiece_files.load_llama2c(file)
    if file.endswith(".json"):
        return Tokenizer.from_str(read_text(file), file)
    if not file.endswith(".ckpt"):
        return _load_bert(file, config.lowercase)
    path = resolve(file)
    path = path / "index.pt" if path.is_dir() else path  # of a sharded checkpoint
    try:
        _check_values(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        content = content["content"] if path.name == "index.pt" else content
        text = content["fourfold"]["data"]["tokenizer"]
    except Exception as error:  # torch raises many types for a corrupted file
        message = "this is not a checkpoint with a tokenizer, or it is corrupted"
        raise InputError(message, file=file) from error
    return Tokenizer.from_str(text, file)


def _sentencepiece_settings(path: Path) -> tuple[bool, dict[str, Any]]:
    """Return if a directory names a class of `_SENTENCEPIECE_CLASSES`, and its settings."""
    settings = read_json(path / TOKENIZER_CONFIG_FILE, optional=True)
    kind = read_json(path / "config.json", optional=True).get("model_type", "") + "tokenizer"
    kind = (settings.get("tokenizer_class") or kind).lower().removesuffix("fast")
    return kind in _SENTENCEPIECE_CLASSES, _SENTENCEPIECE_CLASSES.get(kind, {}) | settings


def _check_values(path: Path) -> None:
    """Check the entry data.pkl of a checkpoint, which holds all values other than tensors.

    `torch.load` does not verify its checksum.
    """
    with zipfile.ZipFile(path) as archive:
        values = next(x for x in archive.infolist() if x.filename.endswith("/data.pkl"))
        if values.compress_type != zipfile.ZIP_STORED:
            raise ValueError("data.pkl is compressed")
        archive.read(values)  # verifies the checksum


def _load_bert(file: str, lowercase: bool) -> Tokenizer:
    """Load a tokenizer from BERT's `vocab.txt`, in which the number of a line is the token's id."""
    vocab: dict[str, int] = {}
    for line, token in enumerate(read_lines(file), start=1):
        if not token or token in vocab:
            message = f"the line must hold a token that no earlier line has, got {token!r}"
            raise InputError(message, file=file, line=line)
        vocab[token] = line - 1
    names = [names[1] for names in ROLES.values()]
    missing = [name for name in names[:4] if name not in vocab]
    if missing:
        message = f"this is not a BERT vocabulary: it has no token {', '.join(missing)}"
        raise InputError(message, file=file)
    special = [name for name in names if name in vocab]
    return Tokenizer(training.wordpiece_backend(vocab, names[3], special, lowercase), file)


def _load_gpt(file: str, merges_file: str) -> Tokenizer:
    """Load a tokenizer from the vocabulary and the merges of GPT-2 or GPT-1.

    GPT-1 is recognized by its vocabulary, in which `</w>` marks the ends of words.
    """
    vocab = parse_json(read_text(file), file)
    is_mapping = isinstance(vocab, dict) and all(type(i) is int for i in vocab.values())
    if not is_mapping or sorted(vocab.values()) != list(range(len(vocab))):
        message = f"the vocabulary must map its {len(vocab)} tokens to ids from 0, without gaps"
        raise InputError(message, file=file)
    marks_words = any(token.endswith(_WORD_END) for token in vocab)
    if marks_words == (_END_OF_TEXT in vocab):  # CLIP's vocabulary has both
        message = f"this is neither GPT-2's vocabulary, which has {_END_OF_TEXT}, nor GPT-1's,"
        message += f" which has {_WORD_END}: use the tokenizer.json"
        raise InputError(message, file=file)
    unk = ROLES["unk"][0]
    lines = read_lines(merges_file)
    merges: Any = [tuple(line.split(" ")) for line in lines if not line.startswith("#version")]
    options = {"unk_token": unk, "end_of_word_suffix": _WORD_END} if marks_words else {}
    try:
        model = models.BPE(vocab, merges, **options)
    except Exception as error:  # the library raises plain Exception
        message = f"the merges do not suit the vocabulary {file}: {error}"
        raise InputError(message, file=merges_file) from error
    if marks_words:  # GPT-1 splits words as BERT does, in lower case and without accents
        decoder = decoders.BPEDecoder(suffix=_WORD_END)
        backend = training.bert_backend(model, decoder, lowercase=True)
    else:
        backend = training.byte_level_backend(model)
    special = unk if marks_words else _END_OF_TEXT
    if special in vocab:  # otherwise Tokenizer raises for the missing role
        backend.add_special_tokens([special])
    return Tokenizer(backend, file)
