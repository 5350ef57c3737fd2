"""Checks of a tokenizer.json from an unknown source, before the tokenizer encodes a text.

A regular expression may need a time that grows exponentially with the length of a text, a chain of
replacements may multiply its length, and a vocabulary may contain an id that needs a huge table.
"""

import re
from collections.abc import Iterator
from typing import Any

from fourfold.core.validation import quote
from fourfold.errors import InputError

MAX_LOOPS = 3  # unbounded quantifiers that follow each other in one alternative of a pattern
MAX_CHOICES = 8  # optional parts, bounded quantifiers and alternations in one alternative
MAX_REPEATED_CHOICES = 4  # repetitions of a group that matches texts of several lengths
MAX_GROWTH = 64  # factor by which all replacements together may lengthen a text
# Smallest bound of the token ids. The bound of larger vocabularies is twice their number of tokens.
MIN_ID_LIMIT = 1 << 16

_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d*)(,?)(\d*)\})[?+]?")
_ATOM = re.compile(r"\\(?:[pPxuUo]\{[^}]*\}|.)|[^\\\[(|)]", re.DOTALL)
_GROUP = re.compile(r"\(\?(?:<?[=!]|[>:]|<\w+>|[imaWDSPy-]*[:)])|\((?!\?)")
# Constructs that no known tokenizer has, and whose end or time this module cannot determine.
_UNSUPPORTED = {
    "a back-reference or a call": re.compile(r"\\(?:[1-9]|[kg][<'{])"),
    "a control character": re.compile(r"\\(?:c|[CM]-)"),
    "a group of an unusual kind": re.compile(r"\(\?(?!<?[=!]|[>:]|<\w+>|[imaWDSPy-]*[:)])"),
    "a character class that begins with a bracket": re.compile(r"\[\^?\]"),
}


def check_description(description: dict[str, Any], file: str) -> None:
    """Check the patterns, the replacements and the token ids of a tokenizer.json.

    Args:
        description: Content of the file.
        file: Name of the tokenizer, for error messages.

    Raises:
        InputError: A pattern may need exponential time, all replacements together may lengthen a
            text more than `MAX_GROWTH` times, or a token id is far above the number of tokens.
    """
    parts = [description.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
    growth = 1.0
    for part in _mappings(parts):
        pattern = part.get("pattern")
        pattern = pattern if isinstance(pattern, dict) else {}
        expression = str(pattern.get("Regex", ""))
        if problem := pattern_problem(expression):
            raise InputError(f"the pattern {expression[:60]!r} {problem}", file=file)
        if isinstance(content := part.get("content"), str):
            n_replaced = max(len(str(pattern.get("String", ""))), 1)
            growth *= max(1.0, len(content) / n_replaced)
    if growth > MAX_GROWTH:
        message = f"its replacements may lengthen a text {growth:.0f} times, at most {MAX_GROWTH}"
        raise InputError(f"{message} is allowed", file=file)
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in _mappings(description.get("added_tokens"))]
    ids = [i for i in ids if isinstance(i, int)]
    n_tokens = max(len(vocabulary) if isinstance(vocabulary, list) else 0, len(ids))
    limit = max(MIN_ID_LIMIT, 2 * n_tokens)
    if max(ids, default=0) >= limit:
        message = f"the id of a token must be below {limit} for {n_tokens} tokens"
        raise InputError(f"{message}, got {quote(max(ids))}", file=file)


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all dictionaries in nested dictionaries and lists."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


class _Group:
    """Counts of one group of a pattern, or of the whole pattern.

    Attributes:
        largest: Largest numbers (unbounded quantifiers, choices) of an alternative that has ended.
        current: The same numbers of the alternative that is being read.
        last: The same numbers of the last atom or group, to which a quantifier may apply.
        n_alternatives: Number of alternatives.
    """

    def __init__(self) -> None:
        self.largest = self.current = self.last = (0, 0)
        self.n_alternatives = 1

    def end_alternative(self) -> None:
        loops, choices = self.current
        self.largest = max(self.largest[0], loops), max(self.largest[1], choices)
        self.current = self.last = (0, 0)

    def add(self, loops: int, choices: int) -> None:
        self.current = self.current[0] + loops, self.current[1] + choices

    def repeat(self, low: int, high: int | None) -> bool:
        """Apply a quantifier to the last atom; return False if the result is not bounded well."""
        loops, choices = self.last
        if loops or choices:
            if high is None or high > MAX_REPEATED_CHOICES:
                return False
            for _ in range(1, high):
                self.add(loops, choices)
        if low != high:
            is_loop = high is None or high > 16
            self.add(int(is_loop), int(not is_loop))
            self.last = loops + is_loop, choices + (not is_loop)
        return True


def pattern_problem(pattern: str) -> str | None:
    """Return the reason why the time of a regular expression is not bounded well; None if it is.

    The time of a backtracking matcher is bounded by n ** (loops + 1) * 2 ** choices for n
    characters, if no group that matches texts of several lengths is repeated. The patterns of
    GPT-2, GPT-4, CLIP, Llama 3, Qwen and DeepSeek pass.

    Args:
        pattern: Regular expression in the syntax of Oniguruma.
    """
    unescaped = re.sub(r"\\[\\\[\](]", "_", pattern)
    for name, construct in _UNSUPPORTED.items():
        if construct.search(unescaped):
            return f"has {name}"
    groups, at = [_Group()], 0
    while at < len(pattern):
        if start := _GROUP.match(pattern, at):
            if start[0].endswith(")"):  # flags such as (?i)
                groups[-1].last = (0, 0)
            else:
                groups.append(_Group())
            at = start.end()
        elif quantifier := _QUANTIFIER.match(pattern, at):
            if not groups[-1].repeat(*_range_of(quantifier)):
                return "repeats a group that matches texts of several lengths"
            at = quantifier.end()
        else:
            at = _read_atom(pattern, at, groups)
    groups[0].end_alternative()
    loops, choices = groups[0].largest
    if loops > MAX_LOOPS or choices > MAX_CHOICES:
        parts = f"{loops} unbounded quantifiers and {choices} choices"
        return f"has {parts} in one alternative, more than {MAX_LOOPS} and {MAX_CHOICES}"
    return None


def _read_atom(pattern: str, at: int, groups: list[_Group]) -> int:
    """Read a character, a class, `|` or the end of a group; return the index after it.

    Args:
        pattern: Regular expression.
        at: Index at which reading begins.
        groups: Open groups, the outermost first, which are changed in place.
    """
    if pattern[at] == ")" and len(groups) > 1:
        group = groups.pop()
        group.end_alternative()
        loops, choices = group.largest
        groups[-1].last = loops, choices + (group.n_alternatives > 1)
        groups[-1].add(*groups[-1].last)
        return at + 1
    if pattern[at] == "|":
        groups[-1].end_alternative()
        groups[-1].n_alternatives += 1
        return at + 1
    groups[-1].last = (0, 0)
    if pattern[at] == "[":
        return _end_of_class(pattern, at)
    match = _ATOM.match(pattern, at)
    return match.end() if match else at + 1


def _range_of(quantifier: re.Match[str]) -> tuple[int, int | None]:
    """Return the smallest and the largest number of repetitions; None means no limit."""
    if quantifier[0][0] != "{":
        return int(quantifier[0][0] == "+"), 1 if quantifier[0][0] == "?" else None
    low, comma, high = (quantifier[i][:6] for i in (1, 2, 3))
    n = int(low or 0)
    return n, n if not comma else int(high) if high else None


def _end_of_class(pattern: str, at: int) -> int:
    """Return the index after the character class that begins at `at`; classes may be nested."""
    depth, start = 0, at
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
        elif pattern[at] == "]":
            depth -= 1
        at += 1
        if depth == 0:
            return at
    return max(at, start + 1)
