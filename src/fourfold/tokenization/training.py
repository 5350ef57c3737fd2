"""Training of tokenizers (BPE, WordPiece, Unigram, words, characters) and TokenizerConfig."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from fourfold.core.validation import MAX_SIZE, MAX_VOCABULARY, check_positive, check_range
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import ROLES, SENTINEL, Tokenizer

log = logging.getLogger(__name__)
SPECIAL_TOKENS = [names[0] for names in ROLES.values()]

Kind = Literal["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"]


@dataclass(frozen=True)
class TokenizerConfig:
    """Options of a tokenizer, which is trained or loaded from files.

    Args:
        kind: "bpe" is BPE on characters, with spaces as "▁" (Sennrich et al. 2016). "byte_bpe" is
            BPE on bytes (Radford et al. 2019). "wordpiece" is WordPiece (Devlin et al. 2019).
            "unigram" is the unigram language model (Kudo 2018). "word" makes a token of each word
            and punctuation mark, and "char" of each character. Decoding restores a text exactly,
            unless the kind is wordpiece or word, the text is lower-cased, or it contains characters
            that did not occur in training.
        vocab_size: Size of the vocabulary with special tokens, which may become smaller if the
            texts are small or the kind is char. If a vocabulary of bpe or wordpiece is too small
            for all characters of the texts, only the most frequent characters get entries, and
            about a quarter of the size is reserved for merged tokens. A vocabulary of byte_bpe
            always contains the 256 bytes.
        min_frequency: Minimum number of occurrences for a pair of tokens to be merged (bpe,
            byte_bpe, wordpiece), or for a word to get an entry (word).
        lowercase: Lower-case all text (wordpiece and word also strip accents, as BERT does). Among
            loaded tokenizers, the option changes only those from a `vocab.txt`.
        file: Path of a tokenizer to load: a `tokenizer.json`, BERT's `vocab.txt`, GPT's
            `vocab.json` (with `merges`), a model of sentencepiece (.model, .spm), a tokenizer of
            llama2.c (.bin), or a fourfold checkpoint (.ckpt) with a tokenizer. None trains one.
        merges: Path of the file that belongs to a `vocab.json`: GPT-2's `vocab.bpe`, GPT-1's
            `merges.txt` or Marian's `source.spm`.
        extra_ids: Number of sentinel tokens <extra_id_0>, <extra_id_1> and so on in a trained
            vocabulary, for span corruption. As in T5, <extra_id_0> has the last id, <extra_id_1>
            the id before it, and so on. `vocab_size` includes them.

    Example:
        >>> for kind in ("char", "word", "byte_bpe"):
        ...     config = TokenizerConfig(kind, vocab_size=300, min_frequency=1)
        ...     tokenizer = train_tokenizer(config, ["A cat sat.", "A hat."], mask=False)
        ...     print(kind, len(tokenizer.encode("A cat.")))
        char 6
        word 3
        byte_bpe 3
    """

    kind: Kind = "bpe"
    vocab_size: int = 8000
    min_frequency: int = 2
    lowercase: bool = False
    file: str | None = None
    merges: str | None = None
    extra_ids: int = 0


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], *, mask: bool, special: Sequence[str] = ()
) -> Tokenizer:
    """Train a tokenizer on texts.

    The result is the same in every process, except for the last digits of unigram's scores.

    Args:
        config: Kind and size of the tokenizer.
        texts: Training texts, which may be iterated several times. The library needs a hundred
            bytes of memory for each byte of a single text.
        mask: Add a mask token (masked language models); not used if `special` is given.
        special: Names of the special tokens in the order of their ids; () selects `<pad>`, `<s>`,
            `</s>`, `<unk>`, and `<mask>` if `mask` is True.

    Raises:
        InputError: `vocab_size` is above the limit of a model, not above the number of special
            tokens, or does not suit unigram; `extra_ids` is negative; or `min_frequency` is
            negative or above 2^31.

    Example:
        >>> config = TokenizerConfig(vocab_size=20)
        >>> tokenizer = train_tokenizer(config, ["low lower lowest"] * 4, mask=False)
        >>> tokenizer.decode(tokenizer.encode("lower low"))
        'lower low'
    """
    special = list(special or (SPECIAL_TOKENS if mask else SPECIAL_TOKENS[:4]))
    check_range("tokenizer.extra_ids", config.extra_ids, minimum=0)
    n_special = len(special) + config.extra_ids
    if config.vocab_size <= n_special:
        message = f"must exceed the {n_special} special tokens, got {config.vocab_size}"
        raise InputError(message, option="tokenizer.vocab_size")
    # The library allocates the vocabulary at once, and aborts the process if it cannot.
    check_positive("tokenizer.vocab_size", config.vocab_size, MAX_VOCABULARY)
    check_range("tokenizer.min_frequency", config.min_frequency, minimum=0, maximum=MAX_SIZE)
    ordinary = replace(config, vocab_size=config.vocab_size - config.extra_ids)
    backend = _TRAINERS[config.kind](ordinary, texts, special)
    backend.add_special_tokens([SENTINEL.format(i) for i in reversed(range(config.extra_ids))])
    size = backend.get_vocab_size()
    if size < config.vocab_size:
        message = "the text gives a vocabulary of %d tokens, fewer than vocab_size %d"
        log.warning(message, size, config.vocab_size)
    # JSON rounds unigram's scores. Parsing it here makes a checkpoint restore this same tokenizer.
    return Tokenizer.from_str(backend.to_str(), f"the {config.kind} tokenizer")


def _use_metaspace(backend: Backend) -> None:
    """Make a tokenizer encode spaces as "▁", put a "▁" before each text, and decode exactly."""
    # The library's Metaspace decoder would drop a space at the start of a text.
    prepend, replace = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([prepend, replace])
    newlines = pre_tokenizers.Split("\n", "isolated")
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.pre_tokenizer = pre_tokenizers.Sequence([newlines, metaspace])
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)


def _add_lowercase(backend: Backend, lowercase: bool) -> None:
    if lowercase:
        steps = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


def _characters(texts: Iterable[str]) -> list[str]:
    """Return the distinct characters of the texts, the most frequent character first."""
    counts = Counter(chain.from_iterable(texts))
    return sorted(counts, key=lambda char: (-counts[char], char))


def _alphabet(characters: list[str], max_size: int) -> list[str]:
    """Return the characters, most frequent first, that get an entry of BPE or WordPiece.

    If there are more than `max_size`, a quarter of the entries is left for merged tokens.
    """
    return characters if len(characters) <= max_size else characters[: max_size * 3 // 4]


def _trainer_options(
    config: TokenizerConfig, special: list[str], alphabet: list[str] | None = None
) -> dict[str, Any]:
    sizes = {"vocab_size": config.vocab_size, "min_frequency": config.min_frequency}
    options = {**sizes, "special_tokens": special, "show_progress": False}
    if alphabet is not None:
        options |= {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
    return options


def _train_bpe(config: TokenizerConfig, texts: Iterable[str], special: list[str]) -> Backend:
    """Train BPE on bytes if the kind is byte_bpe, otherwise on characters."""
    if config.kind == "byte_bpe":
        backend = byte_level_backend(models.BPE())
        _add_lowercase(backend, config.lowercase)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        backend = Backend(models.BPE(unk_token=SPECIAL_TOKENS[3]))
        _use_metaspace(backend)
        _add_lowercase(backend, config.lowercase)
        characters = _characters(map(backend.normalizer.normalize_str, texts))
        alphabet = _alphabet(characters, config.vocab_size - len(special))
    # By default the trainer keeps all characters, even if the vocabulary is too small for them.
    # With `limit_alphabet` alone, its choice among equally rare characters differs between
    # processes. Therefore the alphabet is given.
    trainer = trainers.BpeTrainer(**_trainer_options(config, special, alphabet))
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_unigram(config: TokenizerConfig, texts: Iterable[str], special: list[str]) -> Backend:
    backend = Backend(models.Unigram())
    _use_metaspace(backend)
    _add_lowercase(backend, config.lowercase)
    # Splitting at "<" prevents text that looks like a special token from being encoded as one.
    split = pre_tokenizers.Split("<", "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, backend.pre_tokenizer])
    options = _trainer_options(config, special)
    del options["min_frequency"]  # which unigram does not have
    trainer = trainers.UnigramTrainer(unk_token=SPECIAL_TOKENS[3], **options)
    try:
        backend.train_from_iterator(texts, trainer)
    except InputError:  # the texts cannot be read
        raise
    except Exception as error:  # the library raises plain Exception
        message = f"must suit a unigram tokenizer of this text, got {config.vocab_size}: {error}"
        raise InputError(message, option="tokenizer.vocab_size") from error
    return backend


def byte_level_backend(model: models.BPE) -> Backend:
    """Return a tokenizer that applies `model` to the bytes of words, as GPT-2's tokenizer does.

    Example:
        >>> model = models.BPE({"h": 0, "i": 1, "Ġ": 2, "hi": 3}, [("h", "i")])
        >>> encoding = byte_level_backend(model).encode("hi hi")
        >>> encoding.tokens  # "Ġ" stands for a space
        ['hi', 'Ġ', 'hi']
    """
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def bert_backend(model: models.Model, decoder: decoders.Decoder, lowercase: bool) -> Backend:
    """Return a tokenizer that splits text into words as BERT's tokenizer does.

    `lowercase` also strips accents.

    Example:
        >>> model = models.WordLevel({"cafe": 0, "!": 1, "?": 2}, unk_token="?")
        >>> backend = bert_backend(model, decoders.WordPiece(), lowercase=True)
        >>> backend.encode("Café!").tokens
        ['cafe', '!']
    """
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoder
    return backend


def wordpiece_backend(
    vocab: dict[str, int], unk_token: str, special: Sequence[str], lowercase: bool
) -> Backend:
    """Return a WordPiece tokenizer like BERT's, with a given vocabulary.

    Example:
        >>> vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "##ed": 3}
        >>> backend = wordpiece_backend(vocab, "[UNK]", ["[UNK]"], lowercase=True)
        >>> backend.encode("Playing played sang").tokens
        ['play', '##ing', 'play', '##ed', '[UNK]']
    """
    model = models.WordPiece(vocab, unk_token=unk_token, max_input_chars_per_word=100)
    backend = bert_backend(model, decoders.WordPiece(), lowercase)
    backend.add_special_tokens(list(special))
    return backend


def _train_wordpiece(config: TokenizerConfig, texts: Iterable[str], special: list[str]) -> Backend:
    unk_token = SPECIAL_TOKENS[3]
    backend = wordpiece_backend({}, unk_token, [], config.lowercase)
    split = backend.pre_tokenizer.pre_tokenize_str
    characters = _characters(map(backend.normalizer.normalize_str, texts))
    characters = [character for character in characters if split(character)]  # no white space
    # A character may need two entries, with and without "##".
    alphabet = sorted(_alphabet(characters, (config.vocab_size - len(special)) // 2))
    # The trainer numbers tokens such as "##x" in the order of a hash map. This order resolves ties
    # between merges differently in each process. As special tokens they have fixed numbers.
    suffixes = ["##" + c for c in alphabet if len(split("a" + c + "a")) == 1]
    trainer = trainers.WordPieceTrainer(**_trainer_options(config, special + suffixes, alphabet))
    backend.train_from_iterator(texts, trainer)
    return wordpiece_backend(backend.get_vocab(), unk_token, special, config.lowercase)


def _train_word(config: TokenizerConfig, texts: Iterable[str], special: list[str]) -> Backend:
    model = models.WordLevel({}, unk_token=SPECIAL_TOKENS[3])
    backend = bert_backend(model, decoders.WordPiece(), config.lowercase)
    trainer = trainers.WordLevelTrainer(**_trainer_options(config, special))
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_char(config: TokenizerConfig, texts: Iterable[str], special: list[str]) -> Backend:
    lowered = (text.lower() if config.lowercase else text for text in texts)
    characters = _characters(lowered)[: config.vocab_size - len(special)]
    vocab = {token: i for i, token in enumerate([*special, *characters])}
    backend = Backend(models.WordLevel(vocab, unk_token=SPECIAL_TOKENS[3]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(special)
    _add_lowercase(backend, config.lowercase)
    return backend


_TRAINERS: dict[str, Callable[[TokenizerConfig, Iterable[str], list[str]], Backend]] = {
    "bpe": _train_bpe,
    "byte_bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
    "unigram": _train_unigram,
    "word": _train_word,
    "char": _train_char,
}
