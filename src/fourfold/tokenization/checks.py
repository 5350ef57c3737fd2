"""Checks of a tokenizer.json from an unknown source, before the tokenizer encodes a text.

Three kinds of content are rejected. A regular expression may need a time that grows exponentially
with the length of a text. A chain of replacements may lengthen a text very much. A vocabulary may
contain an id that is so large that a table of all ids does not fit into the memory.
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
# Constructs that no known tokenizer has. This module cannot determine their ends or their time.
_UNSUPPORTED = {
    "a back-reference or a call": re.compile(r"\\(?:[1-9]|[kg][<'{])"),
    "a control character": re.compile(r"\\(?:c|[CM]-)"),
    "a group of an unusual kind": re.compile(r"\(\?(?!<?[=!]|[>:]|<\w+>|[imaWDSPy-]*[:)])"),
    "a character class that begins with a bracket": re.compile(r"\[\^?\]"),
}


def check_description(description: dict[str, Any], file: str) -> None:
    """Check the patterns, the replacements and the token ids of a tokenizer.json.

    Args:
        description: Content of the file, parsed from JSON.
        file: Name of the tokenizer, for error messages.

    Raises:
        InputError: A pattern may need exponential time, all replacements together may lengthen a
            text more than `MAX_GROWTH` (64) times, or a token id is too large. Ids must be below
            2^16, or below twice the number of tokens if this is more.

    Example:
        >>> description = {"model": {"vocab": {"a": 0, "b": 99_999}}}
        >>> try:
        ...     check_description(description, "tokenizer.json")
        ... except InputError as error:
        ...     print(error.message)
        the id of a token must be below 65536 for 2 tokens, got 99999
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
    """Yield all dictionaries in a value of nested dictionaries and lists, the value included."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


class _Group:
    """Counts of loops and choices in one group of a regular expression, or in the whole expression.

    A loop is a quantifier without an upper bound, such as `*`, or with an upper bound above 16. A
    choice is an optional part, another quantifier with an upper bound, or a group of several
    alternatives. Each count is a pair (number of loops, number of choices).

    Attributes:
        largest: Elementwise maximum of the counts of the alternatives that have ended.
        current: Counts of the alternative that is being read.
        last: Counts of the last atom or group, to which a quantifier may apply.
        n_alternatives: Number of alternatives of the group so far.
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
        """Add the counts of a quantifier that follows the last atom or group.

        Args:
            low: Smallest number of repetitions.
            high: Largest number of repetitions; None if there is no upper bound.

        Returns:
            False if the quantifier repeats an atom or group with loops or choices more than
            `MAX_REPEATED_CHOICES` times, which may need exponential time. Otherwise True.
        """
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
    r"""Return the reason why a regular expression may need too much time.

    The loops and choices of each alternative are counted. Loops are quantifiers without an upper
    bound or with one above 16. Choices are optional parts, other quantifiers, and groups with
    alternatives. Both counts are limited. A group that contains a loop or a choice may match texts
    of several lengths. A quantifier of such a group is rejected if its upper bound is above 4 or
    missing, as in (a+)* and (a|bc){5}. Without such quantifiers, a backtracking matcher needs at
    most n ** (loops + 1) * 2 ** choices steps for n characters. The patterns of GPT-2, GPT-4, CLIP,
    Llama 3, Qwen and DeepSeek are accepted.

    Args:
        pattern: Regular expression in the syntax of Oniguruma.

    Returns:
        A text that follows the words "the pattern", such as "has a control character"; None if the
        expression is accepted.

    Example:
        >>> pattern_problem(r"\w+|\s+") is None
        True
        >>> pattern_problem(r"(a+)*b")
        'repeats a group that matches texts of several lengths'
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
    """Read a character, a character class, `|` or the end of a group in a regular expression.

    Args:
        pattern: Regular expression.
        at: Index at which reading begins.
        groups: Open groups, the outermost first. Their counts are changed in place, and a group
            that ends is removed.

    Returns:
        The index in `pattern` at which the next part begins.
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
    """Return the smallest and the largest number of repetitions that a quantifier allows.

    The largest number is None if there is no limit. The result of `{2,5}` is (2, 5).

    Args:
        quantifier: Match of a quantifier, such as `*` or `{2,5}`.
    """
    if quantifier[0][0] != "{":
        return int(quantifier[0][0] == "+"), 1 if quantifier[0][0] == "?" else None
    low, comma, high = (quantifier[i][:6] for i in (1, 2, 3))
    n = int(low or 0)
    return n, n if not comma else int(high) if high else None


def _end_of_class(pattern: str, at: int) -> int:
    """Return the index after the character class that begins at `at`, such as `[^a-z[0-9]]`."""
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
