"""Greedy decoding and beam search with the same weights, ours and transformers'.

Ours are saved as a directory of transformers and read from there, and what both write is compared.
Random weights never end a text, so that every row is as long as it was asked to be.
Shapes: B rows, T prompt tokens, t new tokens.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from fourfold.bench import ours
from fourfold.bench.batches import FIRST, draw
from fourfold.bench.peers.transformers_models import read_causal, read_pairs
from fourfold.bench.shapes import BEAM, NEW_IN_BEAM, OURS, WRITING, Settings, Shape
from fourfold.bench.ways import TYPES

# Makes a model of theirs with the weights of ours, given what reads a directory of theirs.
Reading = Callable[[Callable[[str, torch.dtype], nn.Module]], nn.Module]
THEIRS = "transformers"
NEVER = -1e4  # added to the logit of the token that would end a text


@dataclass(frozen=True)
class Decoding:
    """One job, done by ours and by theirs.

    Args:
        what: Its name.
        rows: B.
        ways: By name what writes new tokens (B, t).
        model: Ours.
        new: t.
    """

    what: str
    rows: int
    ways: dict[str, Callable[[], Tensor]]
    model: nn.Module
    new: int

    def same_rows(self) -> float:
        """The share of rows that both write alike."""
        first, *others = [way().cpu() for way in self.ways.values()]
        alike = [(first == x).all(1).float().mean() if first.shape == x.shape else 0.0
                 for x in others]  # fmt: skip
        return float(min(alike, default=1.0))

    @property
    def weight_bytes(self) -> int:
        """What one step over a batch of one has to read, if nothing stays in a cache."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())


def greedy(settings: Settings, shape: Shape, device: torch.device, theirs: bool) -> list[Decoding]:
    """The causal LM writes, one row and many."""
    writing = WRITING[settings.size]
    length = max(shape.length, writing.prompt + writing.new)
    model, read = _pair(settings, ours.causal_lm(replace(shape, length=length), 0.0), device)
    other = read(read_causal) if theirs else None
    found = []
    for rows in writing.batches:
        generator = torch.Generator().manual_seed(0)
        size = (rows, writing.prompt)
        ids = torch.randint(FIRST, shape.n_out, size, generator=generator).to(device)
        ways: dict[str, Callable[[], Tensor]] = {OURS: _our_greedy(model, ids, writing.new)}
        if other is not None:
            ways[THEIRS] = _their_greedy(other, ids, writing.new)
        found.append(Decoding(f"batch {rows}", rows, ways, model, writing.new))
    return found


def beam(settings: Settings, shape: Shape, device: torch.device, theirs: bool) -> list[Decoding]:
    """The encoder-decoder writes with a beam of five, for the batch that it is trained on."""
    new = min(NEW_IN_BEAM, shape.max_len)
    task = ours.encoder_decoder(shape, 0.0, bias=True)
    model, read = _pair(settings, task, device)
    batch = draw("encoder_decoder", shape, device)
    ways: dict[str, Callable[[], Tensor]] = {OURS: _our_beams(model, batch, new)}
    if theirs:
        ways[THEIRS] = _their_beams(read(read_pairs), batch, new)
    rows = len(batch.src)
    return [Decoding(f"batch {rows}, beam {BEAM}", rows, ways, model, new)]


DECODERS = {"greedy": greedy, "beam": beam}


def _pair(settings: Settings, task: Any, device: torch.device) -> tuple[nn.Module, Reading]:
    """Our model, and what reads the same weights with a reader of theirs."""
    torch.manual_seed(0)
    task.configure_model()
    model, dtype = task.model.eval(), TYPES[settings.precision]
    bias = getattr(model.head, "bias", None)
    if bias is not None:
        with torch.no_grad():
            bias[2] = NEVER

    def read(reader: Callable[[str, torch.dtype], nn.Module]) -> nn.Module:
        with tempfile.TemporaryDirectory() as folder:
            model.float()
            fourfold.save(model, folder)
            found = reader(folder, dtype).to(device).eval()
        model.to(device, dtype)
        return found

    return model.to(device, dtype), read


def _our_greedy(model: nn.Module, ids: Tensor, new: int) -> Callable[[], Tensor]:
    return lambda: fourfold.generate(model, ids, max_new=new)[:, ids.shape[1] :]


def _their_greedy(model: Any, ids: Tensor, new: int) -> Callable[[], Tensor]:
    mask = torch.ones_like(ids)

    def write() -> Tensor:
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0
        )
        return found[:, ids.shape[1] :]

    return write


def _our_beams(model: nn.Module, batch: Any, new: int) -> Callable[[], Tensor]:
    return lambda: fourfold.beam_search(
        model, batch.src, BEAM, 1.0, "power", src_mask=batch.src_mask, max_len=new
    )[0][:, 1:]


def _their_beams(model: Any, batch: Any, new: int) -> Callable[[], Tensor]:
    mask = batch.src_mask.long()

    def write() -> Tensor:
        found = model.generate(
            batch.src, attention_mask=mask, max_new_tokens=new, num_beams=BEAM, do_sample=False,
            length_penalty=1.0,
        )  # fmt: skip
        return found[:, 1:]

    return write
