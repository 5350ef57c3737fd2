"""Hidden states of blocks, and the logit lens."""

import pytest
import torch

from fourfold.analysis.hidden_states import (
    hidden_states,
    logit_lens,
)
from tests.fixtures.tiny_models import build, tokens


@pytest.mark.parametrize("family", ["causal", "masked", "encoder_decoder", "t5"])
def test_logit_lens_of_a_block_is_that_of_a_model_without_later_blocks(family: str) -> None:
    model = build(family)
    inputs = (tokens(2, 5), tokens(2, 5)) if hasattr(model, "decoder") else (tokens(2, 5),)
    wanted = tokens(2, 5)
    found = logit_lens(model, lambda: model(*inputs), wanted)
    stack = getattr(model, "decoder", None) or model.stack
    blocks = stack.blocks
    assert found.shape == (len(blocks), 2, 5)
    for depth in range(1, len(blocks) + 1):
        stack.blocks = blocks[:depth]
        order = model(*inputs).argsort(-1, descending=True)  # token ids from the most probable
        ranks = (order == wanted[..., None]).int().argmax(-1)
        assert torch.equal(found[depth - 1], ranks)


def test_hidden_states_are_the_outputs_of_the_blocks() -> None:
    model, ids = build("causal"), tokens(1, 4)
    outputs = []
    states = hidden_states(model.stack, lambda: outputs.append(model(ids)))
    torch.testing.assert_close(model.logits(model.stack.norm(states[-1])), outputs[0])
    assert not any(block._forward_hooks for block in model.stack.blocks)
