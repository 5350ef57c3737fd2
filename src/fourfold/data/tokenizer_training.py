"""Tokenizers trained on the training split: the five algorithms, one small function each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Core

from fourfold.core.errors import InputError
from fourfold.data.tokenizer import ROLES, Tokenizer, cut

log = logging.getLogger(__name__)
SPECIAL = [names[0] for names in ROLES.values()]

Kind = Literal["bpe", "byte_bpe", "wordpiece", "unigram", "char"]


@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer to be trained, or files to be read.

    Args:
        kind: bpe (Sennrich et al. 2016, blanks kept as "▁"), byte_bpe (Radford et al. 2019),
            wordpiece
            (Devlin et al. 2019), unigram (Kudo 2018) or char. Only wordpiece, lowercase and
            characters never seen in training lose text on the way back.
        vocab_size: entries, special tokens included; an upper bound for small texts and for char.
            Where bpe and wordpiece have no room for all characters, the most frequent ones take
            three quarters of it; the 256 bytes of byte_bpe are always there.
        min_frequency: how often a pair of pieces must occur to be merged.
        lowercase: lower-case all text (wordpiece also strips accents, as BERT does). Of files it
            holds for `vocab.txt` alone: the others say it themselves.
        file: instead of training: a `tokenizer.json`, BERT's `vocab.txt`, or GPT's `vocab.json`
            (then with `merges`), or a checkpoint of ours, whose tokenizer is taken.
        merges: GPT-2's `vocab.bpe` or GPT-1's `merges.txt`.
    """

    kind: Kind = "bpe"
    vocab_size: int = 8000
    min_frequency: int = 2
    lowercase: bool = False
    file: str | None = None
    merges: str | None = None


def _metaspace() -> tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer, decoders.Decoder]:
    """Blanks become "▁", with one more in front: the form that gives back every blank."""
    # The Metaspace decoder would also drop a blank that the text itself begins with.
    return (
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split("\n", "isolated"),
                pre_tokenizers.Metaspace(prepend_scheme="never"),
            ]
        ),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    )


def train_tokenizer(
    config: TokenizerConfig,
    texts: Sequence[str],
    *,
    mask: bool,
    special: Sequence[str] | None = None,
) -> Tokenizer:
    """The tokenizer that `config` asks for, trained on `texts`.

    The same in every process, except that unigram's scores differ in the last digits.

    Args:
        config: kind and size.
        texts: the training texts.
        mask: whether to have a mask token (masked language models).
        special: names of the special tokens in another order than the usual one.

    Raises:
        InputError: an unknown kind, a vocabulary without room, or for unigram one with less than
            the text's characters need.
    """
    special = list(special or (SPECIAL if mask else SPECIAL[:4]))
    if config.vocab_size <= len(special):
        raise InputError(
            f"vocab_size={config.vocab_size} leaves no room beside {', '.join(special)}."
        )
    if config.kind not in _TRAIN:
        raise InputError(
            f"{config.kind!r} is not a kind of tokenizer: choose among {', '.join(_TRAIN)}."
        )
    # The library takes a hundred bytes for each of a text that it is given at once.
    if config.kind in ("bpe", "byte_bpe", "wordpiece"):
        texts = [piece for text in texts for piece in cut(text, metaspace=config.kind == "bpe")]
    core = _TRAIN[config.kind](config, texts, special)
    if (found := core.get_vocab_size()) < config.vocab_size:
        log.warning(
            "tokenizer: the text gives %d entries, fewer than the vocab_size of %d.",
            found, config.vocab_size,
        )  # fmt: skip
    # By way of JSON, which rounds unigram's scores: a checkpoint then gives back exactly this one.
    return Tokenizer.from_str(core.to_str(), f"the {config.kind} tokenizer")


def _normalized(core: Core, lowercase: bool) -> Core:
    if lowercase:
        steps = [core.normalizer] if core.normalizer else []
        core.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return core


def _letters(texts: Iterable[str]) -> list[str]:
    """All characters, beginning with the most frequent one."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return sorted(counts, key=lambda char: (-counts[char], char))


def _fitting(letters: list[str], room: int) -> list[str]:
    """Those that are entries: all if there is room, else so many that merges have some, too."""
    return letters if len(letters) <= room else letters[: room * 3 // 4]


def _train_bpe(config: TokenizerConfig, texts: Sequence[str], special: list[str]) -> Core:
    core = Core(models.BPE(unk_token=SPECIAL[3]))
    core.normalizer, core.pre_tokenizer, core.decoder = _metaspace()
    core = _normalized(core, config.lowercase)
    # The trainer has all characters otherwise, however few entries are wanted. Its own choice among
    # equally rare ones is another in every process.
    found = _letters(map(core.normalizer.normalize_str, texts))
    letters = _fitting(found, config.vocab_size - len(special))
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=special,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return core


def _train_byte_bpe(config: TokenizerConfig, texts: Sequence[str], special: list[str]) -> Core:
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    _normalized(core, config.lowercase).train_from_iterator(texts, trainer)
    return core


def _train_unigram(config: TokenizerConfig, texts: Sequence[str], special: list[str]) -> Core:
    core = Core(models.Unigram())
    core.normalizer, pieces, core.decoder = _metaspace()
    # The model would find its special tokens in text that looks like them, were they not cut there.
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("<", "isolated"), pieces])
    trainer = trainers.UnigramTrainer(
        vocab_size=config.vocab_size,
        special_tokens=special,
        unk_token=SPECIAL[3],
        show_progress=False,
    )
    try:
        _normalized(core, config.lowercase).train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises plain Exception
        raise InputError(
            f"vocab_size={config.vocab_size} gives no unigram tokenizer: {error}."
        ) from error
    return core


def wordpiece(vocab: dict[str, int], special: list[str], lowercase: bool) -> Core:
    """BERT's tokenizer with the given vocabulary."""
    unk = next(token for token in ROLES["unk"] if token in special)
    core = Core(models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=100))
    core.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    if vocab:
        core.add_special_tokens(special)
    return core


def _train_wordpiece(config: TokenizerConfig, texts: Sequence[str], special: list[str]) -> Core:
    core = wordpiece({}, special, config.lowercase)
    split = core.pre_tokenizer.pre_tokenize_str
    found = _letters(map(core.normalizer.normalize_str, texts))
    room = (config.vocab_size - len(special)) // 2  # each may be there with and without "##"
    letters = sorted(_fitting([letter for letter in found if split(letter)], room))  # no blank
    # The trainer numbers "##x" pieces in the order of a hash map, so that ties between merges would
    # fall differently in every process, unless it finds them in place: it takes them as "special".
    pieces = ["##" + letter for letter in letters if len(split("a" + letter + "a")) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=special + pieces,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return wordpiece(core.get_vocab(), special, config.lowercase)


def _train_char(config: TokenizerConfig, texts: Sequence[str], special: list[str]) -> Core:
    written = (text.lower() if config.lowercase else text for text in texts)
    kept = _letters(written)[: config.vocab_size - len(special)]
    vocab = {token: i for i, token in enumerate([*special, *kept])}
    core = Core(models.WordLevel(vocab, unk_token=SPECIAL[3]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(special)
    return _normalized(core, config.lowercase)


_TRAIN: dict[str, Callable[[TokenizerConfig, Sequence[str], list[str]], Core]] = {
    "bpe": _train_bpe,
    "byte_bpe": _train_byte_bpe,
    "wordpiece": _train_wordpiece,
    "unigram": _train_unigram,
    "char": _train_char,
}
