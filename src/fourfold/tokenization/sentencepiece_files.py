"""Tokenizers of sentencepiece and llama2.c, converted to the `tokenizers` library.

The token ids of a text stay the same. A model for which this is impossible is an error.
"""

import re
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from fourfold.errors import InputError, reading
from fourfold.json_files import read_json
from fourfold.text_files import parse_json, read_bytes, read_text
from fourfold.tokenization.tokenizer import SENTINEL, Tokenizer

# Score and type of each piece, by its text, in the order of the ids.
Pieces = dict[str, tuple[float, int]]
_UNIGRAM, _BPE = 1, 2  # numbers in sentencepiece_model.proto
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"
# Unassigned control characters. The library normalizes a cluster of characters together, unless
# such a character divides it; and no text contains a token that begins with one.
_BREAK, _INNER_BREAK, _HIDDEN, _START = "\ufff0", "\ufff1", "\ufff2", "\ufff3"


def load_sentencepiece(
    vocabulary_file: str | None, file: str, settings: Mapping[str, Any] = MappingProxyType({})
) -> Tokenizer:
    """Load a unigram or BPE model of sentencepiece (.model, .spm).

    Args:
        vocabulary_file: Path of Marian's vocab.json, whose ids replace those of the model. Tokens
            that the model lacks are only decoded, except language codes such as >>fra<<.
        file: Path of the model.
        settings: Content of tokenizer_config.json: `extra_ids`, the number of sentinels of T5,
            `add_bos_token`, `added_tokens_decoder` and `additional_special_tokens`.

    Raises:
        InputError: The package sentencepiece is not installed; the file is corrupted; the
            `tokenizers` library cannot represent the model; `add_eos_token` is true; or an added
            token is not special, or its id does not follow those of the pieces.
    """
    try:
        from sentencepiece import SentencePieceNormalizer, SentencePieceProcessor
        from sentencepiece.sentencepiece_model_pb2 import ModelProto
    except ImportError as error:
        raise InputError("needs pip install 'fourfold[sentencepiece]'", file=file) from error
    data = read_bytes(file)
    try:
        SentencePieceProcessor(model_proto=data)  # checks the model
        proto = ModelProto.FromString(data)
    except Exception as error:  # the libraries have classes of their own
        raise InputError("this is not a model of sentencepiece, or corrupted", file=file) from error
    train, spec = proto.trainer_spec, proto.normalizer_spec
    pieces = {p.piece: (p.score, p.type) for p in proto.pieces}
    special, symbols = _texts(pieces, _UNKNOWN, _CONTROL), _texts(pieces, _USER)
    unsupported = {
        "model_type": train.model_type not in (_UNIGRAM, _BPE),
        "treat_whitespace_as_suffix": train.treat_whitespace_as_suffix,
        "escape_whitespaces": not spec.escape_whitespaces,
        "add_eos_token": bool(settings.get("add_eos_token")),
        "denormalizer_spec": bool(proto.denormalizer_spec.precompiled_charsmap),
        "pieces": bool(_texts(pieces, _UNUSED)) or any(len(x) == 1 for x in special),
    }
    for name in filter(unsupported.__getitem__, unsupported):
        raise InputError("has a value that is not supported", option=name, file=file)
    with reading(file):
        names, codes = [*pieces], list[str]()
        if vocabulary_file is not None:
            pieces["<pad>"] = (0.0, _CONTROL)
            names, codes = _marian_names(vocabulary_file, pieces)
            special = [x for x in (*special, "<pad>") if x in names]
        make = _unigram_backend if train.model_type == _UNIGRAM else _bpe_backend
        backend = make(pieces, names)
        backend.add_tokens([AddedToken(x, normalized=False) for x in codes])
        start = _START if spec.add_dummy_prefix else ""
        steps: list[Any] = [normalizers.Prepend(start)] if start else []
        if spec.precompiled_charsmap:
            rules = dict(SentencePieceNormalizer(model_proto=data).Decompile())
            steps += _rule_steps(rules, symbols, spec.precompiled_charsmap)
        if spec.remove_extra_whitespaces:
            pattern = rf"(?<=\A{start}) +|[ {_SPACE}{start}]+\z| +(?= )"
            steps.append(normalizers.Replace(Regex(pattern), ""))
        special += [SENTINEL.format(i) for i in reversed(range(settings.get("extra_ids", 0)))]
        special += _added_tokens(file, settings, [*dict.fromkeys([*names, *special])])
        strip = 1 << 30 if spec.remove_extra_whitespaces else int(spec.add_dummy_prefix)
        return _finish(backend, file, steps, special, strip, settings.get("add_bos_token"))


def load_llama2c(file: str) -> Tokenizer:
    """Load the tokenizer of a model of llama2.c, such as tokenizer.bin.

    Raises:
        InputError: The file is not a tokenizer of llama2.c, or corrupted.
    """
    special: Pieces = {"<unk>": (0.0, _UNKNOWN), "<s>": (0.0, _CONTROL), "</s>": (0.0, _CONTROL)}
    items, data, at = list[tuple[str, float]](), read_bytes(file), 4
    with reading(file):
        while at < len(data):
            score, length = struct.unpack("<fi", data[at : at + 8].ljust(8, b"\xff"))
            at += 8 + length
            if length < 1 or at > len(data):
                raise InputError(f"ends in token {len(items)}", option="the file")
            items.append((data[at - length : at].decode().replace(" ", _SPACE), score))
        if [text for text, _ in items[3:259]] != [f"<0x{i:02X}>" for i in range(256)]:
            raise InputError("is not a tokenizer of llama2.c", option="the file")
        pieces = special | {text: (0.0, _BYTE) for text, _ in items[3:259]}
        pieces |= {text: (score, _NORMAL) for text, score in items[259:]}
        if len(pieces) < len(items):
            raise InputError("must be different", option="the tokens")
        steps = [normalizers.Prepend(_START)]
        return _finish(_bpe_backend(pieces, [*pieces]), file, steps, [*special], 1, True)


def _texts(pieces: Pieces, *kinds: int) -> list[str]:
    return [text for text, (_, kind) in pieces.items() if kind in kinds]


def _added_tokens(file: str, settings: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the special tokens that the files of transformers add to the tokens `names`."""
    entries = settings.get("added_tokens_decoder") or {}
    listed = settings.get("additional_special_tokens") or []
    special = [x["content"] if isinstance(x, dict) else x for x in listed]
    special += [x["content"] for x in entries.values() if x.get("special")]
    added = {
        i: x for x, i in read_json(Path(file).parent / "added_tokens.json", optional=True).items()
    }
    added |= {int(i): x["content"] for i, x in entries.items()}
    tokens = [*names, *(x for i, x in sorted(added.items()) if i >= len(names) and x in special)]
    wrong = [x for i, x in added.items() if tokens[i : i + 1] != [x]]
    if wrong := [*wrong, *(x for x in special if x not in tokens)]:
        message = f"must be special and have ids that follow the pieces, got {wrong[:3]}"
        raise InputError(message, option="the added tokens", file=file)
    return tokens[len(names) :]


def _marian_names(file: str, pieces: Pieces) -> tuple[list[str], list[str]]:
    """Return the tokens of vocab.json by id, and those that are language codes.

    Tokens that are neither pieces nor language codes are hidden from texts.
    """
    vocabulary = parse_json(read_text(file), file)
    codes = [x for x in vocabulary if re.fullmatch(">>.+<<", x) and x not in pieces]
    pieces |= dict.fromkeys(codes, (0.0, _CONTROL))  # not to be found by the model
    missing = {*_texts(pieces, _NORMAL, _USER, _UNKNOWN)} - vocabulary.keys()
    if missing or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        message = f"must map all pieces to ids from 0, without gaps; missing: {[*missing][:1]}"
        raise InputError(message, option="the vocabulary", file=file)
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    return [x if x in pieces else _HIDDEN + x for x in ordered], codes


def _finish(
    backend: Backend, file: str, steps: list[Any], special: list[str], strip: int, prepends: Any
) -> Tokenizer:
    """Add the treatment of spaces and the special tokens to a tokenizer with a model.

    `strip` is the largest number of spaces that are removed from the start of a decoded text.
    """
    spaces = [normalizers.Replace(_START, _SPACE), normalizers.Replace(" ", _SPACE)]
    backend.normalizer = normalizers.Sequence([*steps, *spaces])
    replace = [decoders.Replace(_HIDDEN, ""), decoders.Replace(_SPACE, " ")]
    rest = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", strip, 0)]
    backend.decoder = decoders.Sequence([*replace, *rest])
    backend.add_special_tokens(special)
    tokenizer = Tokenizer(backend, file)
    if prepends:
        token = str(backend.id_to_token(tokenizer.bos_id))
        template = (f"{token} $A", f"{token} $A $B", [(token, tokenizer.bos_id)])
        backend.post_processor = TemplateProcessing(*template)
    return Tokenizer(backend, file)


def _backend(model: models.Model, pieces: Pieces, steps: Sequence[Any]) -> Backend:
    """Return a tokenizer that splits texts at spaces, unless a piece goes beyond a word."""
    backend, texts = Backend(model), _texts(pieces, _NORMAL, _USER)
    if _SPACE in texts and not any(_SPACE in text[1:] for text in texts):
        steps = [*steps, pre_tokenizers.Metaspace(prepend_scheme="never")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    return backend


def _bpe_backend(pieces: Pieces, names: Sequence[str]) -> Backend:
    """Return a tokenizer that merges, as sentencepiece, any pair whose text is a piece."""
    scores = {text: pieces[text][0] for text in _texts(pieces, _NORMAL)}
    joined = sorted((text for text in scores if len(text) > 1), key=scores.__getitem__)[::-1]
    differ = len({scores[text] for text in joined}) == len(joined)
    # The number of pairs, and the time for each, grows with the length of a piece.
    if not differ or not {*"".join(joined)} <= {*scores} or max(map(len, scores)) > 1000:
        message = "must have different scores and at most 1,000 characters, which must be pieces"
        raise InputError(message, option="the pieces")
    pairs = ((text[:i], text[i:]) for text in joined for i in range(1, len(text)))
    options: dict[str, Any] = {
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": [pair for pair in pairs if scores.keys() >= {*pair}],
        "unk_token": _texts(pieces, _UNKNOWN)[0],
        "fuse_unk": True,
        "byte_fallback": bool(_texts(pieces, _BYTE)),
    }
    model = models.BPE(**options)
    symbols = _texts(pieces, _USER)
    if not symbols:
        return _backend(model, pieces, [])
    # A symbol is a word of its own, which is looked up in the vocabulary before any merge.
    if unreached := [text for text in joined if len(model.tokenize(text)) > 1]:
        message = f"result from no merges, and there are user-defined symbols: {unreached[0]}"
        raise InputError(message, option="the pieces")
    split = pre_tokenizers.Split(Regex(_any_of(symbols)), "isolated")
    model = models.BPE(**options, ignore_merges=True)
    return _backend(model, pieces, [split, _special_split(pieces)])


def _unigram_backend(pieces: Pieces, names: Sequence[str]) -> Backend:
    symbols = _texts(pieces, _USER)
    cuts = [(x[:i], x[i:]) for x in symbols for i in range(1, len(x))]
    if overlaps := {x for x, _ in cuts} & {x for _, x in cuts}:  # equal scores, rounded otherwise
        message = f"must not begin as another or the same one ends: {sorted(overlaps)[0]!r}"
        raise InputError(message, option="user-defined symbols")
    scores = {text: score for text, (score, _) in pieces.items()}
    # sentencepiece computes it from the largest score or 0, whichever is larger.
    scores |= dict.fromkeys(symbols, -0.1)
    entries = [(name, scores.get(name, 0.0)) for name in names]
    unk_id = names.index(_texts(pieces, _UNKNOWN)[0])
    model = models.Unigram(entries, unk_id, bool(_texts(pieces, _BYTE)))
    return _backend(model, pieces, [_special_split(pieces)])


def _special_split(pieces: Pieces) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that divides the names of special tokens in texts.

    A text is divided where no piece goes across and where no run of unknown characters is.
    """
    texts = {*_texts(pieces, _NORMAL, _USER)}
    inside = {text[i : i + 2] for text in texts for i in range(len(text) - 1)}
    has_bytes = bool(_texts(pieces, _BYTE))
    rests: dict[str, list[str]] = defaultdict(list)
    for name in _texts(pieces, _UNKNOWN, _CONTROL, _BYTE):
        pairs = [name[i : i + 2] for i in range(len(name) - 1)]
        is_free = (x not in inside and (has_bytes or bool(texts & {*x})) for x in pairs)
        at = next((i for i, free in enumerate(is_free, 1) if free), None)
        if at is None:
            message = f"{name} cannot be told from pieces of its text"
            raise InputError(message, option="the special token")
        rests[name[:at]].append(name[at:])
    pattern = "|".join(f"{re.escape(x)}(?={_any_of(rest)})" for x, rest in rests.items())
    return pre_tokenizers.Split(Regex(pattern), "merged_with_previous")


def _rule_steps(rules: Mapping[str, str], symbols: Sequence[str], charsmap: bytes) -> list[Any]:
    """Return normalizers that apply rules to a text from the left, the longest rule first.

    A `_BREAK` is put after each part of a text that a rule replaces, and after other characters.
    Within such a part, its characters are replaced and then composed.
    """
    long = [text for text in rules if len(text) > 1]
    singles = map(chr, range(0x300, 0x30000))  # beyond them, no character is composed
    checked = [*long, *(c for c in singles if long and unicodedata.normalize("NFC", c) != c)]
    replaced = _BREAK.join("".join(rules.get(c, c) for c in text) for text in checked)
    results = normalizers.NFC().normalize_str(replaced).split(_BREAK)
    wrong = [text for text in symbols if any(c in rules for c in text)]
    for text, result in zip(checked, results, strict=False):
        expected = rules.get(text, text)
        # The library does not know the letters of some rare scripts, and Python not all of them.
        is_known = all(unicodedata.category(c) != "Cn" for c in text)
        if result != expected and is_known and unicodedata.normalize("NFC", text) != expected:
            wrong.append(text)
    seconds = {text[1] for text in long}
    if wrong or any(c.isascii() for c in seconds) or {_START, _BREAK, _INNER_BREAK} & rules.keys():
        message = f"are not those of Unicode, or change a user-defined symbol {wrong[:1]!a}"
        raise InputError(message, option="the rules of normalization")
    symbol = f"(?:{_any_of(symbols)})" if symbols else "(?!)"
    unit = rf"(?=[\s\S]{_any_character(seconds)})(?:{_any_of(long)})" if long else "(?!)"
    unit = rf"(?:{symbol}|{unit}|(?:(?!{symbol})[ -~])+(?![^ -~])|[\s\S])\K"
    return [
        normalizers.Replace(Regex(unit), _BREAK),
        normalizers.Replace(Regex(f"(?<=[^{_BREAK}])(?=[^ -~{_BREAK}])"), _INNER_BREAK),
        normalizers.Precompiled(charsmap),
        normalizers.Replace(_INNER_BREAK, ""),
        *([normalizers.NFC()] if long else []),
        normalizers.Replace(_BREAK, ""),
    ]


def _any_of(texts: Sequence[str]) -> str:
    """Return a regular expression of any of the texts, the longest first.

    Texts that differ only in their first characters are one alternative, since there may be many.
    """
    firsts: dict[str, set[str]] = defaultdict(set)
    rests: dict[tuple[int, str], list[str]] = defaultdict(list)
    for text in texts:
        firsts[text[1:]].add(text[0])
    for rest, characters in firsts.items():
        rests[-len(rest), _any_character(characters)].append(re.escape(rest))
    groups = sorted(rests.items())
    return "|".join(f"{first}(?:{'|'.join(rest)})" for (_, first), rest in groups)


def _any_character(characters: Iterable[str]) -> str:
    # In a run of consecutive characters, code minus index is the same.
    runs = groupby(enumerate(sorted(map(ord, characters))), lambda pair: pair[1] - pair[0])
    ends = [[code for _, code in run] for _, run in runs]
    return "[" + "".join(rf"\x{{{x[0]:x}}}-\x{{{x[-1]:x}}}" for x in ends) + "]"
