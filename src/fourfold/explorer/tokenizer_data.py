"""Data of a tokenizer for tokenize.js, which encodes and decodes texts in the page."""

import json
from typing import Any

from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer

_BPE = ("dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix")
# Components that tokenize.js has, with the values that it assumes for fields that it does not read.
# None stands for each value that is false.
KNOWN: dict[str, dict[str, Any]] = {
    "BPE": dict.fromkeys((*_BPE, "end_of_word_suffix")),
    "Unigram": {"byte_fallback": None},
    "Split": {"behavior": "Isolated", "invert": None},
    "Metaspace": {"replacement": "▁", "prepend_scheme": "never", "split": True},
    "ByteLevel": {"use_regex": True},
    "Strip": {"content": " ", "start": 1, "stop": None},
    **{name: {} for name in ("WordPiece", "WordLevel", "Prepend", "Replace", "Lowercase", "Fuse")},
    **{name: {} for name in ("BertNormalizer", "BertPreTokenizer")},
}
ANY_CHARACTER = r"[\s\S]"  # the only regular expression of a pattern that tokenize.js has


def tokenizer_data(tokenizer: Tokenizer, *, has_masks: bool = False) -> dict[str, Any]:
    """Return the JSON values with which tokenize.js encodes and decodes as a tokenizer does.

    With `has_masks`, [MASK] and <mask> in a text are the mask token, as in `TextModel.masked`.

    Raises:
        InputError: The tokenizer has a component that tokenize.js lacks.

    Example:
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> tokenizer = train_tokenizer(TokenizerConfig("char"), ["abc"], mask=False)
        >>> tokenizer_data(tokenizer)["model"]["tokens"]
        ['<pad>', '<s>', '</s>', '<unk>', 'a', 'b', 'c']
    """
    content = json.loads(tokenizer.to_str())
    if not all(token["special"] for token in content["added_tokens"]):
        raise InputError("has added tokens that are not special", option="the tokenizer")
    parts = {f"{x}s": _components(content[x]) for x in ("normalizer", "pre_tokenizer", "decoder")}
    (model,) = _components(content["model"])
    vocab, merges, ids = model.pop("vocab"), model.pop("merges", []), tokenizer.vocabulary
    model["scores"] = [score for _, score in vocab] if isinstance(vocab, list) else []  # unigram
    model["tokens"] = [tokenizer.backend.id_to_token(i) for i in range(tokenizer.vocab_size)]
    model["merges"] = [[ids[left], ids[right]] for left, right in merges]
    model["unk"] = model.get("unk_id", ids.get(model.get("unk_token", "")))
    added = [token["id"] for token in content["added_tokens"]]
    mask = tokenizer.mask_id if has_masks else None
    return {"model": model, **parts, "added": added, "special": tokenizer.special_ids, "mask": mask}


def _components(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a component, or those of a sequence, after a check that tokenize.js has them."""
    if step is None or step["type"] == "Sequence":
        parts = next((parts for parts in (step or {}).values() if isinstance(parts, list)), [])
        return [found for part in parts for found in _components(part)]
    expected = KNOWN.get(step["type"], {"type": None})
    wrong = [name for name, value in expected.items() if (step.get(name) or None) != value]
    if wrong or step.get("pattern", {}).get("Regex", ANY_CHARACTER) != ANY_CHARACTER:
        problem = f"has a {step['type']} that the page lacks: see its {[*wrong, 'pattern'][0]}"
        raise InputError(problem, option="the tokenizer")
    return [step]
