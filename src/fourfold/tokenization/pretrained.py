"""Tokenizers from files: `tokenizer.json`, BERT's `vocab.txt`, GPT's two files, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core

from fourfold.core.errors import InputError
from fourfold.data.json_text import parse_json
from fourfold.data.sources import read_lines, read_text, resolve
from fourfold.data.tokenizer import ROLES, Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer, wordpiece


def make_tokenizer(
    config: TokenizerConfig,
    texts: Sequence[str],
    *,
    mask: bool,
    special: Sequence[str] | None = None,
) -> Tokenizer:
    """Reads the tokenizer of `config`, or trains it on `texts`.

    Args:
        config: what to make.
        texts: training text, not touched when files are given.
        mask: whether a mask token is needed (masked language models).
        special: as `train_tokenizer`.

    Raises:
        InputError: missing or broken files, an unknown kind, or no mask token where one is needed.
    """
    if config.file is not None:
        tokenizer = _read(config.file, config.merges, config.lowercase)
    else:
        tokenizer = train_tokenizer(config, texts, mask=mask, special=special)
    if mask and tokenizer.mask_id is None:
        raise InputError(
            f"The tokenizer {config.file} has no mask token ({' or '.join(ROLES['mask'])}),"
            " which a masked language model needs."
        )
    return tokenizer


def _read(file: str, merges: str | None, lowercase: bool) -> Tokenizer:
    if merges is not None:
        return _read_bpe(file, merges)
    if file.endswith(".ckpt"):
        return _read_checkpoint(file)
    if file.endswith(".json"):
        return Tokenizer.from_str(read_text(file), file)
    return _read_bert(file, lowercase)


def _read_checkpoint(file: str) -> Tokenizer:
    """What a checkpoint of ours carries beside its weights."""
    try:
        content = torch.load(resolve(file), map_location="cpu", weights_only=True, mmap=True)
        text = content["fourfold"]["data"]["tokenizer"]
    except InputError:
        raise
    except Exception as error:  # whatever a broken file makes of it
        raise InputError(f"{file} is no checkpoint with a tokenizer.") from error
    return Tokenizer.from_str(text, file)


def _read_bert(file: str, lowercase: bool) -> Tokenizer:
    """BERT's `vocab.txt`: line number = id."""
    vocab: dict[str, int] = {}
    for line, token in enumerate(read_lines(file), start=1):
        if token in vocab or not token:
            fault = "repeats" if token else "is empty, not"
            raise InputError(f"{file}, line {line}: {fault} the entry {token!r} of a vocabulary.")
        vocab[token] = line - 1
    missing = [names[1] for names in list(ROLES.values())[:4] if names[1] not in vocab]
    if missing:
        raise InputError(
            f"{file} has no entry {', '.join(missing)}, so it is not a BERT vocabulary."
        )
    special = [names[1] for names in ROLES.values() if names[1] in vocab]
    return Tokenizer(wordpiece(vocab, special, lowercase), file)


_WORD_END = "</w>"
_TEXT_END = "<|endoftext|>"


def _read_bpe(file: str, merges_file: str) -> Tokenizer:
    """GPT-2's two files, or GPT-1's, which mark the ends of words and know no end of a text."""
    vocab = _read_vocabulary(file)
    marks_words = any(token.endswith(_WORD_END) for token in vocab)
    if _TEXT_END not in vocab and not marks_words:
        raise InputError(f"{file} has no entry {_TEXT_END}, so it is not GPT-2's vocabulary.")
    if _TEXT_END in vocab and marks_words:  # CLIP's: read as either, no word would fit
        raise InputError(f"{file} marks the ends of words, as GPT-2 does not: give tokenizer.json.")
    merges = _read_merges(merges_file, vocab, file)
    return Tokenizer(_gpt1(vocab, merges) if marks_words else _gpt2(vocab, merges), file)


def _gpt2(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Core:
    core = Core(models.BPE(vocab, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(_TEXT_END, special=True)])
    return core


def _gpt1(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Core:
    """Words as BERT cuts them, in lower case and without accents."""
    unk = ROLES["unk"][0]
    core = Core(models.BPE(vocab, merges, unk_token=unk, end_of_word_suffix=_WORD_END))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.BPEDecoder(suffix=_WORD_END)
    if unk in vocab:  # or else the roles find none
        core.add_special_tokens([AddedToken(unk, special=True)])
    return core


def _read_vocabulary(file: str) -> dict[str, int]:
    vocab = parse_json(read_text(file), file)
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise InputError(f"{file} must map tokens to numbers.")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise InputError(f"{file} must number its {len(vocab)} tokens from 0 without gaps.")
    return vocab


def _read_merges(merges_file: str, vocab: dict[str, int], file: str) -> list[tuple[str, str]]:
    merges = []
    for line, text in enumerate(read_lines(merges_file), start=1):
        if line == 1 and text.startswith("#version"):
            continue
        pair = text.split(" ")
        if len(pair) != 2:
            raise InputError(f"{merges_file}, line {line}: {text!r} is not a pair of tokens.")
        for token in (*pair, "".join(pair)):
            if token not in vocab:
                raise InputError(
                    f"{merges_file}, line {line}: {token!r} is not in the vocabulary {file}."
                )
        merges.append((pair[0], pair[1]))
    return merges
