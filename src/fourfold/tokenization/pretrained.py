"""Pretrained tokenizers: `tokenizer.json`, BERT's `vocab.txt`, GPT's vocabulary and merges."""

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from fourfold.errors import InputError
from fourfold.text_files import parse_json, read_lines, read_text, resolve
from fourfold.tokenization.tokenizer import ROLES, Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer, wordpiece_backend

_WORD_END = "</w>"
_END_OF_TEXT = "<|endoftext|>"


def make_tokenizer(
    config: TokenizerConfig,
    texts: Sequence[str],
    *,
    mask: bool,
    special: Sequence[str] | None = None,
) -> Tokenizer:
    """Load the tokenizer of `config` from its files, or train it on `texts`.

    Args:
        config: Tokenizer to load or train.
        texts: Training texts, unused if `config` names files.
        mask: The tokenizer needs a mask token (masked language models).
        special: Names of the special tokens, as for `train_tokenizer`.

    Raises:
        InputError: If a file is missing or invalid, or if a mask token is needed and missing.
    """
    if config.file is not None:
        tokenizer = _load(config.file, config.merges, config.lowercase)
    else:
        tokenizer = train_tokenizer(config, texts, mask=mask, special=special)
    if mask and tokenizer.mask_id is None:
        raise InputError(
            f"the tokenizer has no mask token ({' or '.join(ROLES['mask'])}), which a masked"
            " language model needs",
            file=config.file,
            option=None if config.file else "special",
        )
    return tokenizer


def _load(file: str, merges: str | None, lowercase: bool) -> Tokenizer:
    if merges is not None:
        return _load_gpt(file, merges)
    if file.endswith(".ckpt"):
        return _load_from_checkpoint(file)
    if file.endswith(".json"):
        return Tokenizer.from_str(read_text(file), file)
    return _load_bert(file, lowercase)


def _load_from_checkpoint(file: str) -> Tokenizer:
    path = resolve(file)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        text = content["fourfold"]["data"]["tokenizer"]
    except Exception as error:  # torch raises many types for a corrupted file
        raise InputError("this is not a checkpoint with a tokenizer", file=file) from error
    return Tokenizer.from_str(text, file)


def _load_bert(file: str, lowercase: bool) -> Tokenizer:
    """Load BERT's `vocab.txt`, in which the line number is the id."""
    vocab: dict[str, int] = {}
    for line, token in enumerate(read_lines(file), start=1):
        if not token:
            raise InputError("the line is empty, not a token", file=file, line=line)
        if token in vocab:
            raise InputError(f"the line repeats the token {token!r}", file=file, line=line)
        vocab[token] = line - 1
    missing = [names[1] for names in list(ROLES.values())[:4] if names[1] not in vocab]
    if missing:
        message = f"this is not a BERT vocabulary: it has no token {', '.join(missing)}"
        raise InputError(message, file=file)
    special = [names[1] for names in ROLES.values() if names[1] in vocab]
    return Tokenizer(wordpiece_backend(vocab, special, lowercase), file)


def _load_gpt(file: str, merges_file: str) -> Tokenizer:
    """Load the two files of GPT-2, or of GPT-1, which marks ends of words."""
    vocab = _read_vocabulary(file)
    marks_words = any(token.endswith(_WORD_END) for token in vocab)
    if _END_OF_TEXT not in vocab and not marks_words:
        raise InputError(f"this is not GPT-2's vocabulary: it has no {_END_OF_TEXT}", file=file)
    if _END_OF_TEXT in vocab and marks_words:  # CLIP's would be misread as either
        message = "the vocabulary marks ends of words, unlike GPT-2's: use its tokenizer.json"
        raise InputError(message, file=file)
    merges = _read_merges(merges_file, vocab, file)
    backend = _gpt1_backend(vocab, merges) if marks_words else _gpt2_backend(vocab, merges)
    return Tokenizer(backend, file)


def _gpt2_backend(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Backend:
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(_END_OF_TEXT, special=True)])
    return backend


def _gpt1_backend(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Backend:
    """GPT-1 splits words as BERT does, in lower case and without accents."""
    unk = ROLES["unk"][0]
    backend = Backend(models.BPE(vocab, merges, unk_token=unk, end_of_word_suffix=_WORD_END))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=_WORD_END)
    if unk in vocab:  # otherwise Tokenizer raises for the missing role
        backend.add_special_tokens([AddedToken(unk, special=True)])
    return backend


def _read_vocabulary(file: str) -> dict[str, int]:
    vocab = parse_json(read_text(file), file)
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise InputError("the vocabulary must map tokens to integers", file=file)
    if sorted(vocab.values()) != list(range(len(vocab))):
        message = f"the {len(vocab)} tokens must have ids from 0 to {len(vocab) - 1}, without gaps"
        raise InputError(message, file=file)
    return vocab


def _read_merges(merges_file: str, vocab: dict[str, int], file: str) -> list[tuple[str, str]]:
    merges = []
    for line, text in enumerate(read_lines(merges_file), start=1):
        if line == 1 and text.startswith("#version"):
            continue
        pair = text.split(" ")
        if len(pair) != 2:
            raise InputError(f"{text!r} is not a pair of tokens", file=merges_file, line=line)
        for token in (*pair, "".join(pair)):
            if token not in vocab:
                message = f"{token!r} is not in the vocabulary {file}"
                raise InputError(message, file=merges_file, line=line)
        merges.append((pair[0], pair[1]))
    return merges
