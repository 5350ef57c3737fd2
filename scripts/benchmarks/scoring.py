"""Benchmarks of scores of minimal pairs against lm-evaluation-harness and minicons, in fp32.

All have the same weights: fourfold's model is saved as a transformers directory. A call scores
`shape.batch` pairs of each BLiMP paradigm, other ones in each round. fourfold has its default batch
size, and a peer the fastest one of `BATCH_SIZES`. Files are read and models loaded before. Seconds
are CPU time of this process, so that other programs hardly count; use `--threads 1`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import fourfold
from fourfold.generation.minimal_pairs import items_by, read_questions
from fourfold.generation.score import fitting_methods
from fourfold.reproduce.interleaved_timing import Call, interleave
from fourfold.text_files import read_lines
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from scripts.benchmarks.contenders import TASKS
from scripts.benchmarks.measurements import ratios
from scripts.benchmarks.peers.registry import available
from scripts.benchmarks.train_steps import Measurement
from scripts.benchmarks.workloads import FOURFOLD, Settings, Shape

PAIRS = "eval_lm/blimp/blimp_67x1000.zip"
TEXT = "lm/plain10m/train_1m/children_books.txt.xz"  # trains the tokenizer
MAX_LEN = 128  # more than the tokens of a sentence
TOLERANCE = 1e-4  # nats, of the sum over a sentence
# The model `hf` of lm-evaluation-harness has no pseudo-log-likelihoods of masked LMs.
PEERS = {"causal_lm": ("lm_eval", "minicons"), "masked_lm": ("minicons",)}
BATCH_SIZES = {"causal_lm": (8, 32, 128), "masked_lm": (1, 4, 16)}  # of peers, in sentences
# Options with which minicons computes the same as a method of fourfold.
MINICONS: dict[str, dict[str, Any]] = {
    "causal": {"bos_token": True},
    "masked": {"PLL_metric": "original"},
    "masked_l2r": {"PLL_metric": "within_word_l2r"},
}
Score = Callable[[list[str], int, str], list[float]]  # of texts, with a batch size and a method


def load_lm_eval(folder: str, family: str) -> Score:
    """Load the model `hf`, whose texts begin with the end-of-text token, as in training."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(folder, device="cpu", dtype="float32")
    model.custom_prefix_token_id = model.tokenizer.eos_token_id

    def score(texts: list[str], batch_size: int, method: str) -> list[float]:
        model.batch_size_per_gpu = batch_size
        requests = [Instance("loglikelihood", {}, ("", text), 0) for text in texts]
        return [total for total, _ in model.loglikelihood(requests, disable_tqdm=True)]

    return score


def load_minicons(folder: str, family: str) -> Score:
    """Load a scorer of minicons, which gets texts in order of length, since it does not sort."""
    from minicons.scorer import IncrementalLMScorer, MaskedLMScorer

    is_causal = family == "causal_lm"
    model: Any = (IncrementalLMScorer if is_causal else MaskedLMScorer)(folder, "cpu")
    tokenizer = model.tokenizer
    # Tokens around a masked LM's text, which are not scored; the directory does not name them.
    model.cls_token_id, model.sep_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokenizer.bos_token = tokenizer.eos_token  # before a causal LM's text, as in training

    def score(texts: list[str], batch_size: int, method: str) -> list[float]:
        ordered, found = sorted(texts, key=len), dict[str, float]()
        for start in range(0, len(texts), batch_size):
            batch: Any = ordered[start : start + batch_size]
            # For masked LMs, minicons itself calls a method that transformers 5 has no longer.
            given = batch if is_causal else tokenizer(batch, padding=True)
            totals = model.sequence_score(given, lambda x: x.sum().item(), **MINICONS[method])
            found.update(zip(batch, totals, strict=True))
        return [found[text] for text in texts]

    return score


LOADERS = {"lm_eval": load_lm_eval, "minicons": load_minicons}


def measure_scoring(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure all methods of a family; AssertionError if a sum differs by over `TOLERANCE`."""
    config = TokenizerConfig("byte_bpe", shape.n_out)
    tokenizer = train_tokenizer(config, read_lines(TEXT), mask=True)
    torch.manual_seed(0)
    task: Any = TASKS[family](replace(shape, n_out=tokenizer.vocab_size, length=MAX_LEN), 0.0)
    task.configure_model()
    task.model.eval().tokenizer = tokenizer

    def own(texts: list[str], method: str) -> list[float]:
        return [found.total for found in fourfold.score(task.model, texts, method=method)]

    rounds = texts_of_rounds(settings.rounds, shape.batch)
    peers, unavailable = available(PEERS[family], settings)
    with tempfile.TemporaryDirectory() as folder:
        fourfold.save(task.model, folder)
        scores = {name: LOADERS[name](folder, family) for name in peers}
    sizes = BATCH_SIZES[family]
    for method in filter(MINICONS.get, fitting_methods(task.model)):
        calls = {FOURFOLD: partial(own, method=method)}
        notes = dict.fromkeys([FOURFOLD, *peers], "")
        own(rounds[0], method)  # the first call is slower
        for name, score in scores.items():
            size = fastest(score, sizes, rounds[0][::4], method)
            calls[name] = partial(score, batch_size=size, method=method)
            notes[name] = f"batches of {size} sentences, of {sizes}"
        found: dict[str, list[float]] = {name: [] for name in calls}
        functions = {name: collect(calls[name], rounds, found[name]) for name in calls}
        seconds = interleave(functions, len(rounds), 0, clock=time.process_time)
        for name, values in seconds.items():
            largest = max(abs(a - b) for a, b in zip(found[name], found[FOURFOLD], strict=True))
            assert largest <= TOLERANCE, f"{name}: a sum differs by {largest} nats"
            per_text = [1000 * value / len(rounds[0]) for value in values]
            given = (workload, family, name, "ms per sentence", method, per_text)
            yield Measurement(*given, ratios(seconds, FOURFOLD)[name], note=notes[name])
        for name, note in unavailable.items():
            yield Measurement(workload, family, name, "ms per sentence", method, note=note)


def texts_of_rounds(n_rounds: int, n_pairs: int) -> list[list[str]]:
    """Return the sentences of each round: the next `n_pairs` pairs of each paradigm."""
    questions = read_questions("blimp", PAIRS)
    paradigms = items_by("paradigm", questions).values()
    chosen = (
        [i for items in paradigms for i in items[k * n_pairs :][:n_pairs]] for k in range(n_rounds)
    )
    return [[text for i in items for _, text in questions[i].requests] for items in chosen]


def fastest(score: Score, sizes: tuple[int, ...], texts: list[str], method: str) -> int:
    """Return the fastest batch size of a peer."""
    seconds = {}
    for size in sizes:
        start = time.process_time()
        score(texts, size, method)
        seconds[size] = time.process_time() - start
    return min(seconds, key=lambda size: seconds[size])


def collect(call: Callable[..., list[float]], rounds: list[list[str]], found: list[float]) -> Call:
    """Return a function that adds the sums of the texts of the next round to `found`."""
    remaining = iter(rounds)
    return lambda: found.extend(call(next(remaining)))
