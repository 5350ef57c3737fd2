"""Alignment error rate of the attention of a translation model, by layer and decoding step.

    python scripts/alignment_error_rate.py CHECKPOINT SOURCE TARGET LINKS [--reverse]
        [--first_index 1]

The model decodes each reference translation (forced decoding). Each target word is linked to the
source word with the largest attention weight, where weights of the tokens of a word are summed and
weights of special tokens are left out. The weights are means over the heads of a layer. "output" is
the step at which a token is predicted, "input" the step at which it is the decoder's input (Chen et
al. 2020). SOURCE and TARGET hold one sentence per line, whose words are separated by spaces. LINKS
holds links such as 3-4 (sure) or 3p4 (possible) of source and target words, one line per pair.
Pairs without a link are left out.

The links of data/translation/wmt_aligned_sample are from German to English and were made by a
program, so a rate against them is a silver alignment error rate. For a model from English to German
they must be read with --reverse.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

import fourfold
from fourfold.analysis.attention_maps import attention_maps
from fourfold.data.readers.text_table import read_aligned_lines
from fourfold.errors import InputError
from fourfold.metrics.alignment import (
    AlignmentErrorRate,
    ReferenceLinks,
    count_links,
    count_uniform_links,
    diagonal_links,
    links_from_weights,
    read_links,
)
from fourfold.models import Model
from fourfold.tokenization.tokenizer import Tokenizer

Pair = tuple[str, str, ReferenceLinks]


def read(source: str, target: str, links: str, reverse: bool, first_index: int) -> list[Pair]:
    """Read the sentence pairs that have links.

    Raises:
        InputError: A file cannot be read; the files have different numbers of lines; or a link
            names a word that its sentence does not have.
    """
    texts = read_aligned_lines([source, target]).columns
    references = read_links(links, reverse=reverse, first_index=first_index)
    if len(references) != len(texts[0]):
        message = f"the file has {len(references)} lines, but {source} has {len(texts[0])}"
        raise InputError(message, file=links)
    pairs = list(zip(*texts, references, strict=True))
    for number, (*sentences, reference) in enumerate(pairs, 1):
        sizes = [len(sentence.split()) for sentence in sentences]
        for link in reference.possible:
            if any(index >= size for index, size in zip(link, sizes, strict=True)):
                raise InputError(
                    f"the link of source word {link[0]} and target word {link[1]}, from 0, exceeds"
                    f" the sentences of {sizes[0]} and {sizes[1]} words; --reverse swaps them",
                    file=links,
                    line=number,
                )
    return [pair for pair in pairs if pair[2].possible]


def encode(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Return the token ids of a sentence, and the index of the word that each token is part of."""
    words = " ".join(text.split())
    ids, offsets = tokenizer.encode_with_offsets([words])[0]
    return ids, [words.count(" ", 0, end) for _, end in offsets]  # a token may begin with a space


@torch.inference_mode()
def error_rates(model: Model, pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Compute the scores of each layer and step, and of the baselines, by name.

    Raises:
        InputError: The checkpoint has no tokenizer, or is no encoder-decoder for texts.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not hasattr(model, "decode") or model.accepts_images:
        raise InputError("must be a translation model with a tokenizer", option="CHECKPOINT")
    start = getattr(model.config, "decoder_start_token_id", None)
    start = tokenizer.bos_id if start is None else start
    before = [] if tokenizer.prepended_id is None else [tokenizer.prepended_id]
    metrics: dict[str, AlignmentErrorRate] = {}
    for row, (source, target, reference) in enumerate(pairs):
        n_source, n_target = len(source.split()), len(target.split())
        (src, src_words), (tgt, tgt_words) = (encode(tokenizer, x) for x in (source, target))
        src, src_words = [*before, *src, tokenizer.eos_id], [-1 for _ in before] + src_words + [-1]
        inputs = torch.tensor([src]), torch.tensor([[start, *tgt]])
        maps = attention_maps(model, "cross_attn", lambda x=inputs: model(*x))
        counts = {
            "uniform": count_uniform_links(n_source, n_target, reference),
            "diagonal": count_links(diagonal_links(n_source, n_target), reference),
        }
        for layer, weights in enumerate(maps, 1):
            steps = {"output": weights[:-1], "input": weights[1:]}
            for step, part in steps.items():
                links = links_from_weights(part, src_words, tgt_words)
                counts[f"layer {layer}, {step}"] = count_links(links, reference)
        for name, numbers in counts.items():
            metrics.setdefault(name, AlignmentErrorRate()).update(row, numbers)
    return {name: metric.compute() for name, metric in metrics.items()}


def table(rates: dict[str, dict[str, float]]) -> str:
    """Format scores as a Markdown table."""
    lines = ["| links | AER | precision | recall |", "| --- | ---: | ---: | ---: |"]
    for name, scores in rates.items():
        cells = [f"{100 * scores[key]:.1f}" for key in ("aer", "precision", "recall")]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint", help="checkpoint or run directory of a translation model")
    parser.add_argument("source", help="source sentences, one per line")
    parser.add_argument("target", help="target sentences, one per line")
    parser.add_argument("links", help="reference links, one line per pair of sentences")
    parser.add_argument("--reverse", action="store_true", help="LINKS are from target to source")
    parser.add_argument("--first_index", type=int, default=0, help="index of the first word")
    given = parser.parse_args(arguments)
    try:
        pairs = read(given.source, given.target, given.links, given.reverse, given.first_index)
        rates = error_rates(fourfold.load(given.checkpoint), pairs)
    except InputError as error:
        print(f"alignment_error_rate: {error}", file=sys.stderr)
        return 2
    print(table(rates))
    print(f"\n{len(pairs)} sentence pairs with links")
    return 0


if __name__ == "__main__":
    sys.exit(main())
