"""`score`: log-probabilities of given texts by causal LMs, masked LMs and encoder-decoders.

A request is a pair (context, continuation), of which the continuation is scored. A row is one input
of the model. A text has several rows if it is longer than the model, and one row for each scored
token in a masked LM.

Shapes: R rows of a batch, T tokens, D model width, V vocabulary, N scored tokens of a batch, K
values of a scored token: its log-probability, 1.0 if it is the most likely token, and the
logarithms of two sums that the correction for leading spaces needs, if it is computed.
"""

import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from math import fsum, nan
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.generation.step import check_logits, eval_copy
from fourfold.generation.text_model import Item, TextModel, run_batches
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import first_known
from fourfold.layers.heads import VocabularyHead
from fourfold.losses import sum_dtype, upcast_fp32

Request = tuple[str, str]
Target = tuple[int, tuple[int, int]]  # id and span of a token
SENTINEL = "<extra_id_0>"  # the first one of T5
MAX_LOGITS = 2**24  # in memory at a time
CPU_LOGITS = 2**22  # on a CPU, where fewer at a time are faster


class TokenScore(NamedTuple):
    """Scored token.

    Args:
        text: Text of the token, or the name of a special token.
        span: Index of its first character in `TextScore.text`, and of the character after it.
        log_prob: Log-probability in nats.
        is_best: True if no token is more likely.
        borders: log B before and after the token, or () if it is not computed; B is the probability
            that a word begins, or the text ends, at this place.
    """

    text: str
    span: tuple[int, int]
    log_prob: float
    is_best: bool
    borders: tuple[float, ...]


@dataclass(frozen=True)
class TextScore:
    """Log-probability in nats of a text, or of a continuation after its context.

    The end-of-text token, if it is scored, counts as a token, but not as a word or byte. Words are
    separated by white space, and bytes are those of UTF-8. A pseudo-log-likelihood of a masked LM
    is no log-probability of the text, since it does not sum to 1 over all texts.

    Args:
        total: Sum over all scored tokens.
        per_token: Mean over the tokens.
        per_word: Total divided by the number of words; NaN without a word.
        per_byte: Total divided by the number of bytes.
        is_greedy: True if each token is the most likely one.
        text: Context and continuation, or source and target, as one text.
        tokens: The scored tokens.
    """

    total: float
    per_token: float
    per_word: float
    per_byte: float
    is_greedy: bool
    text: str
    tokens: list[TokenScore]

    def surprisals(self, by: str = "token") -> list[tuple[str, float]]:
        """Return each token or word with its surprisal, -log p.

        White space belongs to the word after it. With `borders`, log B before the word is added and
        log B after it subtracted: a token with a leading space says that a word begins and
        continues, but not that it ends (Pimentel and Meister 2024; Oh and Schuler 2024).
        """
        if by == "token":
            return [(token.text, -token.log_prob) for token in self.tokens]
        ends = [match.end() for match in re.finditer(r"\S+", self.text)]

        def word(token: TokenScore) -> tuple[int, bool]:
            begin, end = token.span
            return bisect_right(ends, begin), begin == end > 0  # the end token is by itself

        found = []
        for _, group in groupby(self.tokens, word):
            tokens = list(group)
            correction = sum(tokens[0].borders[:1]) - sum(tokens[-1].borders[1:])
            text = self.text[tokens[0].span[0] : tokens[-1].span[1]].strip() or tokens[0].text
            found.append((text, correction - fsum(token.log_prob for token in tokens)))
        return found


@dataclass
class Row:
    """Input of the model, which predicts tokens at the positions from `begin` on."""

    ids: list[int]  # of the decoder of an encoder-decoder
    targets: list[Target]
    begin: int
    source: tuple[int, ...] = ()
    masked: tuple[int, int] = (0, 0)  # first position that is masked, and the one after the last
    values: list[list[float]] = field(default_factory=list)  # K values of each target


class Scorer(TextModel):
    """Scorer of causal LMs: sum of log p(token | tokens before), and base class of all scorers.

    The first token follows the token that begins documents in training.

    Args:
        eos: Score the end-of-text token after each text; None means the default of the class.
        borders: Compute `TokenScore.borders`.
    """

    default_eos: ClassVar[bool | None] = False  # None: no end token is scored, and no borders exist

    def __init__(self, model: Model, eos: bool | None = None, borders: bool = False) -> None:
        super().__init__(eval_copy(model) if model.training else model)
        if eos and self.default_eos is None:
            raise InputError("must not be given for this method", option="eos")
        tokenizer = self.tokenizer
        self.eos = self.default_eos if eos is None else eos
        self.n_divided = 0  # number of texts that are longer than the model
        self.prefix = [] if tokenizer.prepended_id is None else [tokenizer.prepended_id]
        self.start = first_known(*self.prefix, tokenizer.eos_id)
        self.begins, self.sets = tokenizer.begins_word, []
        borders = borders and self.default_eos is not None
        for tokens in (self.begins.copy(), ~self.begins) if borders else ():
            tokens[tokenizer.special_ids] = False
            tokens[tokenizer.eos_id] = True  # the text ends
            self.sets.append(torch.from_numpy(tokens.nonzero()[0]).to(self.device))

    def score(
        self, requests: Sequence[Request], batch_size: int, together: int = 1
    ) -> list[TextScore]:
        """Score requests, equal ones once; `together` successive ones share a batch.

        Raises:
            InputError: A text has no token or does not fit, or a score is not finite.
        """
        known: dict[Request, TextScore] = {}

        def prepare(group: Sequence[Request]) -> Item:
            rows = {request: self.rows(*request) for request in group}
            return Item(rows, max(len(own[0].ids) + len(own[0].source) for own in rows.values()))

        def run(items: list[Item]) -> list[None]:
            pairs = dict(chain(*(item.content.items() for item in items)))
            new = {request: own for request, own in pairs.items() if request not in known}
            rows = sorted(chain(*new.values()), key=lambda row: len(row.ids))
            for start in range(0, len(rows), batch_size):
                self.fill(rows[start : start + batch_size])
            known.update((request, self._result(request, own)) for request, own in new.items())
            return [None] * len(items)

        groups = [requests[i : i + together] for i in range(0, len(requests), together)]
        run_batches(groups, prepare, run, -(-batch_size // together))
        return [known[request] for request in requests]

    def encode(self, context: str, continuation: str) -> tuple[list[Target], list[int], int]:
        """Encode two texts as one; return tokens, their words, and the index of the first scored.

        Spaces at the end of the context belong to the continuation, as does a token of both. EOS
        follows if it is scored, and for `borders`, since log B after the last token is known there.
        """
        text = context + continuation
        ids, spans, words = self.tokenizer.encode_with_words(text)
        cut = len(context.rstrip())
        first = next((i for i, (_, end) in enumerate(spans) if end > cut or not cut), len(ids))
        if first == len(ids):
            raise InputError("must have at least one token", option="the scored text")
        if self.eos or self.sets:
            ids, spans = [*ids, self.tokenizer.eos_id], [*spans, (len(text), len(text))]
        return list(zip(ids, spans, strict=True)), words, first

    def windows(self, first: int, n: int, limit: int | None) -> Iterator[tuple[int, int, int]]:
        """Divide n positions, of which those from `first` on are scored, into windows.

        A window (begin, first, end) has at most `limit` positions, of which those before `first`
        are context only. The last window has as much context as fits. With `first` 0, the windows
        are those of lm-eval's `get_rolling_token_windows`.
        """
        limit = limit or n
        self.n_divided += n > limit
        while first < n:
            end = n if n <= limit else min(first + limit, n)
            yield max(0, end - limit), first, end
            first = end

    def rows(self, context: str, continuation: str) -> list[Row]:
        """Return the rows of a request, in the order of the text."""
        tokens, _, first = self.encode(context, continuation)
        ids = [self.start, *(i for i, _ in tokens)]
        windows = self.windows(first, len(tokens), self.max_len)
        return [Row(ids[a:end], tokens[start:end], start - a) for a, start, end in windows]

    def hidden(self, rows: list[Row]) -> Tensor:
        """Compute the hidden states (R, T, D) of rows, which are sorted by length."""
        # Without a mask, since the padding is on the right.
        return self.model.hidden(self.pad([row.ids for row in rows])[0])

    def fill(self, rows: list[Row]) -> None:
        """Compute the values of the targets of rows, in fp64."""
        index = [(i, row.begin + k) for i, row in enumerate(rows) for k in range(len(row.targets))]
        i, positions = torch.tensor(index, device=self.device).T
        targets = torch.tensor([t for row in rows for t, _ in row.targets], device=self.device)
        limit = CPU_LOGITS if self.device.type == "cpu" else MAX_LOGITS
        h, n = self.hidden(rows)[i, positions], max(1, limit // self.model.config.vocab_size)
        values = map(self._values, h.split(n), targets.split(n))
        found = iter(torch.cat(list(values)).tolist())
        for row in rows:
            row.values = list(islice(found, len(row.targets)))

    def _values(self, h: Tensor, targets: Tensor) -> Tensor:
        """Compute the values (N, K) of targets (N,) from hidden states (N, D)."""
        # Not `token_scores`: some recurrent decoders return log-probabilities as hidden states.
        log_p = upcast_fp32(self.model.logits(h)).log_softmax(-1)
        own = log_p.gather(1, targets[:, None]).squeeze(1)
        columns = [own, own >= log_p.amax(-1)]  # faster than argmax
        columns += [log_p[:, tokens].logsumexp(-1) for tokens in self.sets]
        check_logits(-columns[0])
        return torch.stack([column.to(sum_dtype(h.device)) for column in columns], 1)

    def _result(self, request: Request, rows: list[Row]) -> TextScore:
        """Return the score of a request from the values of its rows."""
        text = "".join(request)
        targets = [target for row in rows for target in row.targets]
        values = [value for row in rows for value in row.values]
        tokens = []
        following = [value[2:3] for value in values[1:]] + [[0.0]]
        for (i, (a, b)), value, after in zip(targets, values, following, strict=True):
            # A word without white space before it begins with another kind of token.
            borders = (value[3 - self.begins[i]], *after) if self.sets else ()
            name = text[a:b] or str(self.tokenizer.backend.id_to_token(i))
            tokens.append(TokenScore(name, (a, b), value[0], bool(value[1]), borders))
        return summarise(request, tokens[: len(tokens) - (bool(self.sets) and not self.eos)])


def summarise(request: Request, tokens: list[TokenScore]) -> TextScore:
    """Return the score of a request whose scored tokens are given."""
    total = fsum(token.log_prob for token in tokens)
    counts = len(tokens), len(request[1].split()), len(request[1].encode())
    per_token, per_word, per_byte = (total / n if n else nan for n in counts)
    is_greedy = all(token.is_best for token in tokens)
    return TextScore(total, per_token, per_word, per_byte, is_greedy, "".join(request), tokens)


class MaskedScorer(Scorer):
    """Pseudo-log-likelihood: sum of log p(token | text with this token masked).

    Source: Salazar et al. 2020.
    """

    default_eos = None
    l2r: ClassVar[bool] = False  # mask all later tokens of the same word, too
    shift: ClassVar[int] = 0  # 1 if the state at position t - 1 predicts the token at position t

    def rows(self, context: str, continuation: str) -> list[Row]:
        tokens, words, first = self.encode(context, continuation)
        if self.tokenizer.mask_id is None:
            raise InputError("has a tokenizer without a mask token", option="model")
        found, limit = [], self.max_len and self.max_len - 2
        for begin, start, end in self.windows(first, len(tokens), limit):
            ids = [i for i, _ in tokens[begin:end]]
            ids = [self.start if self.shift else self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
            for i in range(start, end):
                last = bisect_right(words, words[i], i, end) if self.l2r else i + 1
                at, masked = i - begin + 1, (i - begin + 1, last - begin + 1)
                found.append(Row(ids, [tokens[i]], at - self.shift, masked=masked))
        return found

    def hidden(self, rows: list[Row]) -> Tensor:
        ids, real = self.pad([row.ids for row in rows])
        bounds = torch.tensor([row.masked for row in rows], device=self.device).T[:, :, None]
        places = torch.arange(ids.shape[1], device=self.device)
        ids[(places >= bounds[0]) & (places < bounds[1])] = self.tokenizer.mask_id or 0
        is_even = len(rows[0].ids) == len(rows[-1].ids)
        return self.states(ids, None if is_even else real)

    def states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the hidden states (R, T, D) of ids (R, T), all of which see each other."""
        return self.model.encode(ids, mask=mask)


class WordMaskedScorer(MaskedScorer):
    """Within-word left-to-right pseudo-log-likelihood (Kauf and Ivanova 2023)."""

    l2r = True


class NextMaskedScorer(MaskedScorer):
    """Pseudo-log-likelihood of a causal LM with masked next-token prediction (GPT-BERT).

    Source: Charpentier and Samuel 2024. The text stands between the tokens that separate documents
    in training.
    """

    shift = 1

    def states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self.model.hidden(ids, mask=mask, prefix=torch.ones_like(ids, dtype=torch.bool))


class FusedScorer(NextMaskedScorer):
    """Sum of the causal score and that of masked next-token prediction (GPT-BERT)."""

    def score(
        self, requests: Sequence[Request], batch_size: int, together: int = 1
    ) -> list[TextScore]:
        causal = Scorer(self.model).score(requests, batch_size, together)
        masked = super().score(requests, batch_size, together)
        return [
            summarise(request, [_sum(*pair) for pair in zip(one.tokens, other.tokens, strict=True)])
            for request, one, other in zip(requests, causal, masked, strict=True)
        ]


def _sum(a: TokenScore, b: TokenScore) -> TokenScore:
    return a._replace(log_prob=a.log_prob + b.log_prob, is_best=a.is_best and b.is_best)


class ConditionalScorer(Scorer):
    """Sum of log p(target token | source, target tokens before), for an encoder-decoder.

    Inputs and targets are those of the training (`Seq2SeqTask`).
    """

    default_eos: ClassVar[bool | None] = True

    def parts(self, context: str, continuation: str) -> tuple[list[int], list[int], list[Target]]:
        """Return the tokens of the source, those before the targets, and the targets."""
        if not context:
            message = "must be a source and a target, in a line separated by a tab"
            raise InputError(message, option="the text")
        n, encoded = len(context), self.encode("", continuation)[0]
        tokens = [(i, (begin + n, end + n)) for i, (begin, end) in encoded]
        # If the config has a start token, the target begins with BOS after it (BART).
        if getattr(self.model.config, "decoder_start_token_id", None) is not None:
            tokens.insert(0, (self.tokenizer.bos_id, (0, 0)))
        return self.tokenizer.encode(context), [], tokens

    def rows(self, context: str, continuation: str) -> list[Row]:
        return [self.row(*self.parts(context, continuation))]

    def row(self, source: list[int], start: list[int], tokens: list[Target]) -> Row:
        """Return the row with a source, in which the targets follow `start`."""
        stored = getattr(self.model.generation_defaults, "bos_id", None)
        given = getattr(self.model.config, "decoder_start_token_id", None)
        start = [first_known(stored, given, self.tokenizer.bos_id), *start]
        source = [*self.prefix, *source, self.tokenizer.eos_id]
        ids = [*start, *(i for i, _ in tokens[:-1])]
        if self.max_len is not None and max(len(source), len(ids)) > self.max_len:
            message = f"has more than {self.max_len} tokens in source or target"
            raise InputError(message, option="the text")
        return Row(ids, tokens, len(start) - 1, tuple(source))

    def hidden(self, rows: list[Row]) -> Tensor:
        numbers = {source: i for i, source in enumerate(dict.fromkeys(r.source for r in rows))}
        src, real = self.pad([list(source) for source in numbers])
        index = torch.tensor([numbers[row.source] for row in rows], device=self.device)
        memory = self.model.encode(src, src_mask=real).index_select(0, index)
        ids, _ = self.pad([row.ids for row in rows])
        return self.model.decode(ids, memory, src_mask=real[index])


class PrefixScorer(ConditionalScorer):
    """Score of a text as the content of a sentinel (T5) or of a mask (BART) after its context.

    The encoder reads the context and the sentinel. The decoder of a model of span corruption begins
    with the sentinel, that of a model of text infilling with the context.
    """

    default_eos: ClassVar[bool | None] = False

    def parts(self, context: str, continuation: str) -> tuple[list[int], list[int], list[Target]]:
        tokens, _, first = self.encode(context, continuation)
        before = [i for i, _ in tokens[:first]]
        if self.tokenizer.backend.token_to_id(SENTINEL) is None and self.tokenizer.mask_id:
            given = getattr(self.model.config, "decoder_start_token_id", None)
            begin = [] if given is None else [self.tokenizer.bos_id]
            return [*before, self.tokenizer.mask_id], [*begin, *before], tokens[first:]
        return [*before, self.sentinel], [self.sentinel], tokens[first:]

    @property
    def sentinel(self) -> int:
        """Id of the first sentinel; InputError if there is none."""
        if (sentinel := self.tokenizer.backend.token_to_id(SENTINEL)) is None:
            raise InputError(f"has a vocabulary without the sentinel {SENTINEL}", option="model")
        return sentinel


class SentinelScorer(PrefixScorer):
    """Sum of log p(token | text in which a sentinel replaces this token), for T5."""

    default_eos = None

    def rows(self, context: str, continuation: str) -> list[Row]:
        tokens, _, first = self.encode(context, continuation)
        ids, start = [i for i, _ in tokens], [self.sentinel]
        return [
            self.row([*ids[:i], *start, *ids[i + 1 :]], start, [tokens[i]])
            for i in range(first, len(ids))
        ]


# Scorers by kind of model and method; the first method of a kind is its default.
METHODS: dict[str, dict[str, type[Scorer]]] = {
    "causal": {"causal": Scorer, "mntp": NextMaskedScorer, "fused": FusedScorer},
    "masked": {"masked_l2r": WordMaskedScorer, "masked": MaskedScorer},
    "encoder-decoder": {
        "conditional": ConditionalScorer,
        "prefix": PrefixScorer,
        "masked": SentinelScorer,
    },
}


def fitting_methods(model: Model) -> Mapping[str, type[Scorer]]:
    """Return the scorers that fit a model, by method.

    Raises:
        InputError: The model is no language model with a vocabulary head.
    """
    if model.accepts_images or not isinstance(getattr(model, "head", None), VocabularyHead):
        problem = f"must be a language model with a vocabulary head, got {type(model).__name__}"
        raise InputError(problem, option="model")
    kind = "encoder-decoder" if hasattr(model, "decode") else "causal"
    return METHODS[kind if model.can_generate else "masked"]


def score(
    model: Model,
    texts: Sequence[str | Request],
    *,
    method: str | None = None,
    eos: bool | None = None,
    borders: bool = False,
    batch_size: int = 64,
    together: int = 1,
) -> list[TextScore]:
    """Compute the log-probability of each text, in nats, as `fourfold score` does.

    Args:
        model: Causal LM, masked LM or encoder-decoder that `fourfold.load` returned.
        texts: Texts, or pairs (context, continuation) or (source, target), whose second part is
            scored. A continuation is joined to its context as it is, so it usually begins with a
            space.
        method: causal, mntp (masked next-token prediction) or fused (the sum of both) for causal
            LMs; masked_l2r or masked (pseudo-log-likelihood with and without masking the rest of
            the word) for masked LMs; conditional (source and target), prefix (a sentinel before the
            text) or masked (a sentinel for each token) for encoder-decoders. None means the first
            one that fits the model.
        eos: Score the end-of-text token, too; None means only for conditional.
        borders: Compute `TokenScore.borders`, which `TextScore.surprisals("word")` uses.
        batch_size: Number of inputs of the model in a batch. A masked LM has one input per token.
        together: Number of successive texts that share a batch.

    Returns:
        One score for each text. A text that is longer than the model is scored in windows, with a
        warning.

    Raises:
        InputError: The model has no vocabulary head, does not fit the method or lacks a token, a
            text has no token or does not fit, or a score is not finite.

    Example:
        >>> import fourfold
        >>> from fourfold.models import CausalLM, CausalLMConfig
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> model = CausalLM(CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=50))
        >>> model.tokenizer = train_tokenizer(TokenizerConfig("char"), ["a cat"], mask=False)
        >>> _ = torch.nn.init.zeros_(model.embed.tokens.weight)  # and the tied output matrix
        >>> (found,) = fourfold.score(model.eval(), [("a", " cat")])
        >>> round(found.per_token, 4), round(found.per_byte, 4)  # -log(50) for each character
        (-3.912, -3.912)
    """
    fit = fitting_methods(model)
    method = method or next(iter(fit))
    check_choice("method", method, tuple(fit))
    scorer = fit[method](model, eos, borders)
    requests = [("", text) if isinstance(text, str) else text for text in texts]
    found = scorer.score(requests, batch_size, together)
    if scorer.n_divided:
        problem = f"{scorer.n_divided} of {len(texts)} texts are longer than the model"
        problem += f" and are scored in windows of {scorer.max_len} tokens"
        warnings.warn(problem, stacklevel=2)
    return found


def score_lines(
    model: Model, lines: Sequence[str], by: str | None, **options: Any
) -> list[list[str]]:
    """Return the cells of each line: total, per token, per word, per byte; or text and surprisal.

    A line is a text, or a context and a continuation that a tab separates. `by` is token, word or
    None, and `options` are those of `score`.
    """
    pairs = (line.partition("\t") for line in lines)
    texts = [(context, text) if tab else context for context, tab, text in pairs]
    found = score(model, texts, borders=by == "word", **options)
    if by is None:
        numbers = ((x.total, x.per_token, x.per_word, x.per_byte) for x in found)
        return [[f"{number:.6f}" for number in row] for row in numbers]
    units = (x.surprisals(by) for x in found)
    return [[cell for text, x in row for cell in (text, f"{x:.6f}")] for row in units]
