"""`init_from`: a model that begins with the weights of another one."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.data.tokenizer import Tokenizer
from fourfold.hub import directory, files, processing
from fourfold.hub.foreign import leftovers
from fourfold.models.lora import merge_lora
from fourfold.models.transfer import ROLES, Report, transfer
from fourfold.tasks.checkpoint import checkpoint_of, read_checkpoint, read_file, rebuild

# One path, or one for the encoder and one for the decoder.
InitFrom = str | dict[str, str] | None


@dataclass(frozen=True)
class Source:
    """A model to begin with.

    Args:
        path: Where it is.
        model: The model, on the CPU.
        tokenizer: Its tokenizer as JSON, None if it came without one.
        foreign: What it is in a foreign format, None if it is ours.
    """

    path: Path
    model: nn.Module
    tokenizer: str | None
    foreign: files.Found | None = None


@lru_cache(maxsize=1)  # asked for its shape, its tokenizer and its weights
def read_source(path: str | Path) -> Source:
    """The model of a checkpoint or run directory of ours, or one in a foreign format.

    Raises:
        InputError: There is none, it is broken, or of an unknown architecture.
    """
    place = directory.located(path)
    if directory.is_directory(place):
        return read_foreign(place, headless=True)
    if place.is_dir():
        place = checkpoint_of(place)
    if files.is_foreign(read_weights(place)):
        return read_foreign(place, headless=True)
    task = rebuild(read_checkpoint(place), place)
    return Source(place, merge_lora(task.model), task.artifacts.get("tokenizer"))


def read_foreign(path: str | Path, *, headless: bool = False) -> Source:
    """The model of a directory or hub name of transformers, or of a file of another format.

    Raises:
        InputError: There is none, it is broken, or of an unknown architecture; or, unless
            `headless`, a model of images cannot classify.
    """
    place = directory.located(path)
    if not place.is_file() and not directory.is_directory(place):
        raise InputError(f"{place}: no directory with a {directory.CONFIG}")
    content = read_weights(place) if place.is_file() else None
    found = files.read(place, content, headless=headless)
    beside = place if content is None else place.parent
    speaks = hasattr(found.model.config, "vocab_size")
    return Source(place, found.model, processing.read_tokenizer(beside) if speaks else None, found)


def read_weights(path: Path) -> dict[str, Any]:
    """What one file of weights holds, in whichever of the two formats it is.

    Raises:
        InputError: There is no such file, it is broken, or it holds something else.
    """
    is_plain = path.suffix == ".safetensors" and path.is_file()
    return dict(directory.read_safetensors(path)) if is_plain else read_file(path)


def start_from(model: nn.Module, init_from: InitFrom, tokenizer: str | None, resize: str) -> str:
    """Take over what fits of one or two models.

    Args:
        model: Whose weights are overwritten.
        init_from: A path, or paths by the role (encoder, decoder) that each is to play.
        tokenizer: Of the data, as JSON; where it differs from the source's, words keep their
            vectors and not their numbers.
        resize: A row of RESIZES.

    Returns:
        The report for the user: what was loaded, resized, new and left out.

    Raises:
        InputError: A source cannot be read, or is not made of the same layers.
    """
    if isinstance(init_from, str):
        whole = not hasattr(model, "tgt_embed")
        init_from = {"model" if whole else "": init_from}
    lines, reports = list[str](), list[Report]()
    for role, path in (init_from or {}).items():
        source = read_source(path)
        part = role or ("model" if hasattr(source.model, "tgt_embed") else "encoder")
        if part not in ROLES:
            raise InputError(f"init_from: {part!r} is no part of a model: not {', '.join(ROLES)}")
        n = sum(p.numel() for p in source.model.parameters())
        lines.append(f"init_from {path}: {type(source.model).__name__}, {n:,} parameters")
        lines += [f"  {note}" for note in source.foreign.notes] if source.foreign else []
        words, more = same_words(source.tokenizer, tokenizer), leftovers(source.model, model)
        if tokenizer and not source.tokenizer and hasattr(source.model.config, "vocab_size"):
            lines.append("  it came without a tokenizer: its row n is taken for the data's word n")
        try:
            report = transfer(model, source.model, part, more=more, tokens=words, resize=resize)
        except InputError as error:
            raise InputError(f"init_from {path}: {error}") from error
        reports.append(report)
        lines += (replace(report, new=[]) if len(init_from or {}) > 1 else report).lines()
    read_source.cache_clear()
    if len(reports) > 1:  # what one left new may have come from the other
        new = [line for line in reports[0].new if all(line in report.new for report in reports)]
        lines += ["init_from: what comes from none of them", *Report(new=new).lines()]
    return "\n".join(lines)


def same_words(old: str | None, new: str | None) -> tuple[Tensor, Tensor] | None:
    """Numbers of the words that two tokenizers share, in each; None if they number all alike.

    Padding, begin, end, unknown and mask are the same words under whatever name.
    """
    if old is None or new is None:
        return None
    theirs, ours = Tokenizer.from_str(old), Tokenizer.from_str(new)
    before, after = theirs.vocabulary, ours.vocabulary
    if before == after:
        return None
    pairs = {after[word]: number for word, number in before.items() if word in after}
    # Where one word has several roles, what ends a text has learned most, the unknown nothing.
    for role in ("unk_id", "pad_id", "bos_id", "eos_id", "mask_id"):
        number, here = getattr(theirs, role), getattr(ours, role)
        if number is not None and here is not None:
            pairs[here] = number
    # Weights are read on the CPU, also where Lightning builds a model on a GPU by default.
    return torch.tensor(list(pairs.values()), device="cpu"), torch.tensor(list(pairs), device="cpu")
