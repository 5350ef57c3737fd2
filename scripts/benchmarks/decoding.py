"""Benchmarks of greedy decoding and beam search against transformers and litgpt.

All have the same weights: fourfold's model is saved as a transformers directory. Random weights
never produce the end-of-text token, so all rows have the maximum length.
Shapes: B rows, T prompt tokens, N new tokens.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from scripts.benchmarks import workloads
from scripts.benchmarks.contenders import DTYPES, TASKS, encoder_decoder
from scripts.benchmarks.measurements import copying, measure_rounds, ratios
from scripts.benchmarks.peers import litgpt
from scripts.benchmarks.peers.registry import available
from scripts.benchmarks.peers.transformers import load_causal_lm, load_seq2seq
from scripts.benchmarks.train_steps import Measurement
from scripts.benchmarks.workloads import FOURFOLD, Settings, Shape, make_batch

# Loads a peer's model of a data type from a directory.
Loader = Callable[[str, torch.dtype], nn.Module]
TRANSFORMERS = "transformers"
LITGPT = "litgpt"
MS_PER_TOKEN = "ms per token"
MEMORY_BANDWIDTH = "memory bandwidth"
EOS_LOGIT = -1e4  # bias that excludes the end-of-text token


@dataclass(frozen=True)
class DecodingCase:
    """Decoding of one batch by all contenders."""

    name: str
    batch_size: int
    functions: dict[str, Callable[[], Tensor]]  # return the new tokens (B, N), by contender
    model: nn.Module  # of fourfold
    n_new: int

    def equal_rows(self) -> dict[str, float]:
        """Return the fraction of rows that a peer decodes to fourfold's tokens, by peer."""
        outputs = {name: function().cpu() for name, function in self.functions.items()}
        own = outputs.pop(FOURFOLD)
        return {
            name: float((own == other).all(1).float().mean()) if own.shape == other.shape else 0.0
            for name, other in outputs.items()
        }

    @property
    def weight_bytes(self) -> int:
        """Bytes that a step with one row reads if no weight is cached."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())


def measure_decoding(
    workload: str, family: str, shape: Shape, settings: Settings
) -> Iterator[Measurement]:
    """Measure the decoding of a workload, interleaved with a copy of a large tensor."""
    device = torch.device(settings.device)
    decoding = (TRANSFORMERS, LITGPT) if family == "llama" else (TRANSFORMERS,)
    peers, unavailable = available(decoding, settings)
    print(f"{workload}: {family}, building the models", file=sys.stderr, flush=True)
    copy, copied_bytes = copying(device)
    for case in CASES[workload, family](settings, shape, device, peers):
        notes = {
            name: f"{100 * fraction:.0f} % of the rows are equal"
            for name, fraction in case.equal_rows().items()
        }
        functions: dict[str, Callable[[], Any]] = {**case.functions, MEMORY_BANDWIDTH: copy}
        title = f"{workload}: {family}, {case.name}"
        seconds = measure_rounds(title, functions, settings.rounds, 1, device)
        rates = [copied_bytes / value for value in seconds.pop(MEMORY_BANDWIDTH)]
        relative = ratios(seconds, FOURFOLD)
        for name, values in seconds.items():
            per_token = [value / case.n_new for value in values]
            utilization = [
                case.weight_bytes / value / rate
                for value, rate in zip(per_token, rates, strict=True)
            ]
            yield Measurement(
                workload,
                family,
                name,
                MS_PER_TOKEN,
                case.name,
                values=[1000 * value for value in per_token],
                ratios=relative[name],
                utilization=utilization if case.batch_size == 1 else [],
                limit=MEMORY_BANDWIDTH,
                n_parameters=sum(p.numel() for p in case.model.parameters()),
                note=notes.get(name, ""),
            )
        for name, note in unavailable.items():
            yield Measurement(workload, family, name, MS_PER_TOKEN, case.name, note=note)


def greedy_cases(
    family: str, settings: Settings, shape: Shape, device: torch.device, peers: list[str]
) -> list[DecodingCase]:
    """Create the cases of greedy decoding by a causal LM, one for each batch size."""
    sizes = workloads.GREEDY_DECODING[settings.size]
    n_new = sizes.max_new_tokens
    shape = replace(shape, length=max(shape.length, sizes.prompt_len + n_new))
    model, load = _with_same_weights(settings, TASKS[family](shape, 0.0), device)
    loaders = {TRANSFORMERS: load_causal_lm, LITGPT: litgpt.load_llama}
    loaded = {name: load(loaders[name]) for name in peers}
    cases = []
    for batch_size in sizes.batch_sizes:
        noise = torch.Generator().manual_seed(0)
        given = (workloads.FIRST_ID, shape.n_out, (batch_size, sizes.prompt_len))
        ids = torch.randint(*given, generator=noise).to(device)
        functions = {FOURFOLD: _fourfold_greedy(model, ids, n_new)}
        for library, peer in loaded.items():
            greedy = _transformers_greedy if library == TRANSFORMERS else litgpt.greedy
            functions[library] = partial(greedy, peer, ids, n_new)
        cases.append(DecodingCase(f"batch {batch_size}", batch_size, functions, model, n_new))
    return cases


def beam_cases(
    settings: Settings, shape: Shape, device: torch.device, peers: list[str]
) -> list[DecodingCase]:
    """Create the case of beam search by the encoder-decoder, on its training batch."""
    n_new = min(workloads.BEAM_MAX_NEW_TOKENS, shape.max_len)
    task = encoder_decoder(shape, 0.0, bias=True)
    model, load = _with_same_weights(settings, task, device)
    batch = make_batch("encoder_decoder", shape, device)
    functions = {FOURFOLD: _fourfold_beam_search(model, batch, n_new)}
    if peers:
        functions[TRANSFORMERS] = _transformers_beam_search(load(load_seq2seq), batch, n_new)
    batch_size = len(batch.src)
    name = f"batch {batch_size}, beam {workloads.NUM_BEAMS}"
    return [DecodingCase(name, batch_size, functions, model, n_new)]


# Functions that create the cases of a workload and a family.
CASES: dict[
    tuple[str, str], Callable[[Settings, Shape, torch.device, list[str]], list[DecodingCase]]
] = {
    **{("greedy", family): partial(greedy_cases, family) for family in ("causal_lm", "llama")},
    ("beam", "encoder_decoder"): beam_cases,
}


def _with_same_weights(
    settings: Settings, task: Any, device: torch.device
) -> tuple[nn.Module, Callable[[Loader], nn.Module]]:
    """Return fourfold's model, and a function that loads its weights into a peer's."""
    torch.manual_seed(0)
    task.configure_model()
    model = task.model.eval()
    dtype = DTYPES[settings.precision]
    bias = getattr(model.head, "bias", None)
    if bias is not None:
        with torch.no_grad():
            bias[workloads.EOS_ID] = EOS_LOGIT

    def load(loader: Loader) -> nn.Module:
        with tempfile.TemporaryDirectory() as folder:
            model.float()
            fourfold.save(model, folder)
            peer = loader(folder, dtype).to(device).eval()
        model.to(device, dtype)
        return peer

    return model.to(device, dtype), load


def _fourfold_greedy(model: nn.Module, ids: Tensor, n_new: int) -> Callable[[], Tensor]:
    return lambda: fourfold.generate(model, ids, max_new_tokens=n_new)[:, ids.shape[1] :]


def _transformers_greedy(model: Any, ids: Tensor, n_new: int) -> Tensor:
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": n_new, "pad_token_id": 0}
    return model.generate(ids, do_sample=False, **options)[:, ids.shape[1] :]


def _fourfold_beam_search(model: nn.Module, batch: Any, n_new: int) -> Callable[[], Tensor]:
    ids = {"bos_id": workloads.BOS_ID, "eos_id": workloads.EOS_ID, "pad_id": workloads.PAD_ID}
    options = {**ids, "src_mask": batch.src_mask, "max_new_tokens": n_new}
    beams = workloads.NUM_BEAMS
    return lambda: fourfold.beam_search(model, batch.src, beams, 1.0, "power", **options)[0][:, 1:]


def _transformers_beam_search(model: Any, batch: Any, n_new: int) -> Callable[[], Tensor]:
    options = {"num_beams": workloads.NUM_BEAMS, "do_sample": False, "length_penalty": 1.0}
    options |= {"attention_mask": batch.src_mask.long(), "max_new_tokens": n_new}
    return lambda: model.generate(batch.src, **options)[:, 1:]
