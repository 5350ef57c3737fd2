"""Causal encoders, choice and mixing of layers, and the BiLSTM of encoders with a head."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.finetuning.weight_transfer import transfer
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    TokenClassifier,
    TokenClassifierConfig,
)

TEXT: dict[str, Any] = {
    "d_model": 12,
    "n_layers": 3,
    "n_heads": 3,
    "d_ff": 20,
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": 29,
    "max_len": 16,
}


def tagger(**options: Any) -> TokenClassifier:
    torch.manual_seed(0)
    config = TokenClassifierConfig(**{**TEXT, **options}, n_classes=3)
    return TokenClassifier(config).double().eval()


def ids_and_mask() -> tuple[Tensor, Tensor]:
    ids = torch.randint(29, (3, 9), generator=torch.Generator().manual_seed(1))
    return ids, torch.arange(9) < torch.tensor([[9], [5], [1]])


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_feature_layers_equal_a_shallower_encoder(placement: str) -> None:
    ids, mask = ids_and_mask()
    deep = tagger(norm_placement=placement)
    torch.testing.assert_close(
        tagger(norm_placement=placement, feature_layers=[3]).hidden(ids, mask=mask),
        deep.encode(ids, mask=mask),
    )
    embedded = deep.embed(ids, slice(0, 9))
    torch.testing.assert_close(
        tagger(norm_placement=placement, feature_layers=[0]).hidden(ids), embedded
    )
    shallow = tagger(norm_placement=placement, n_layers=2)
    transfer(shallow, deep)
    if placement == "post":  # a pre-norm stack has a final norm after its last layer only
        found = tagger(feature_layers=[2]).hidden(ids, mask=mask)
        torch.testing.assert_close(found, shallow.encode(ids, mask=mask))


def test_several_layers_are_mixed_or_concatenated() -> None:
    ids, _ = ids_and_mask()
    one, three = (tagger(feature_layers=[n]).hidden(ids) for n in (1, 3))
    concatenated = tagger(feature_layers=[1, 3], feature_mix="concat")
    torch.testing.assert_close(concatenated.hidden(ids), torch.cat([one, three], -1))
    assert concatenated(ids).shape == (3, 9, 3)
    mixed = tagger(feature_layers=[1, 3])
    torch.testing.assert_close(
        mixed.hidden(ids), (one + three) / 2
    )  # the initial weights are equal
    with torch.no_grad():
        mixed.layer_sum.weights[0] = 1.0  # type: ignore[union-attr, index]
        mixed.layer_sum.scale.fill_(3.0)  # type: ignore[union-attr, operator]
    share = torch.tensor([1.0, 0.0], dtype=torch.double).softmax(0)
    torch.testing.assert_close(mixed.hidden(ids), 3 * (share[0] * one + share[1] * three))


def test_bilstm_reads_both_directions_and_skips_padding() -> None:
    ids, mask = ids_and_mask()
    model = tagger(lstm_width=5, lstm_layers=2, causal=True)
    logits = model(ids, mask=mask)
    for row, n in enumerate(mask.sum(1).tolist()):
        torch.testing.assert_close(model(ids[row : row + 1, :n])[0], logits[row, :n])
    changed = ids.clone()
    changed[0, 8] = (ids[0, 8] + 1) % 29
    assert not torch.isclose(model(changed)[0, 0], model(ids)[0, 0]).any()


def test_causal_encoder_equals_the_causal_lm_it_starts_from() -> None:
    ids, mask = ids_and_mask()
    shape = {**TEXT, "activation": "gelu", "norm_placement": "post", "norm_eps": 1e-12}
    source = CausalLM(CausalLMConfig(**shape, embed_norm=True)).double().eval()
    target = tagger(causal=True, n_segments=0)
    transfer(target, source)
    torch.testing.assert_close(
        target.encode(ids, mask=mask)[mask], source.hidden(ids, mask=mask)[mask]
    )


def test_pool_last_finds_the_last_real_token_with_either_padding() -> None:
    config = SequenceClassifierConfig(**TEXT, n_classes=3, pool="last", causal=True)
    model = SequenceClassifier(config).double().eval()
    ids, mask = ids_and_mask()
    for given, real in ((ids, mask), (ids.flip(1), mask.flip(1))):
        logits = model(given, mask=real)
        for row in range(3):
            torch.testing.assert_close(model(given[row : row + 1, real[row]])[0], logits[row])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("feature_layers", [4], r"0 to n_layers \(3\).*got \[4\]"),
        ("feature_layers", [], r"got \[\]"),
        ("feature_layers", [-2], r"got \[-2\]"),
        ("feature_mix", "mean", "sum, concat, got 'mean'"),
        ("lstm_width", -1, "must be at least 0"),
        ("lstm_layers", 0, "at least 1, got 0"),
    ],
)
def test_invalid_feature_options_raise(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        tagger(**{field: value})
    assert raised.value.option == field
