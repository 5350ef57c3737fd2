"""ELECTRA in transformers: the same logits and gradients in both directions, and counts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import fourfold
from fourfold.checkpoints.init_from import initialize_from
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.hub.transformers_format import write_model
from fourfold.json_files import read_json
from fourfold.models import SequenceClassifier, SequenceClassifierConfig
from fourfold.models.electra.hub import DISCRIMINATOR, GENERATOR
from fourfold.models.electra.model import (
    Electra,
    ElectraBlocksConfig,
    ElectraConfig,
    ElectraDiscriminator,
    ElectraDiscriminatorConfig,
    ElectraGenerator,
    ElectraGeneratorConfig,
)
from tests.fixtures.hf_models import BERT, padding_mask, random_ids

SIZES: dict[str, Any] = {**BERT, "num_hidden_layers": 2, "max_position_embeddings": 23}
NATIVE: dict[str, Any] = {
    "d_model": 36,
    "n_layers": 2,
    "n_heads": 3,
    "d_ff": 50,
    "vocab_size": 61,
    "max_len": 23,
}
CASES = [
    (hf.ElectraForPreTraining, 20, DISCRIMINATOR),
    (hf.ElectraForPreTraining, 36, DISCRIMINATOR),
    (hf.ElectraForMaskedLM, 20, GENERATOR),
    (hf.ElectraForMaskedLM, 36, GENERATOR),
]


def randomize(model: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)


def compare(ours: Any, theirs: Any, architecture: Any) -> None:
    """Compare logits and all gradients in fp64 on sequences with padding and two segments."""
    ours, theirs = ours.double().eval(), theirs.double().eval()
    ids, mask = random_ids(3, 11), padding_mask([5, 11, 8])
    segments = (torch.arange(11) > 3).long().expand(3, -1)
    more = {"attention_mask": mask.long(), "token_type_ids": segments}
    actual = ours(ids, segments=segments, mask=mask)[mask]
    expected = theirs(input_ids=ids, **more).logits[mask]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn_like(actual)
    (actual.sin() * weights).sum().backward()
    (expected.sin() * weights).sum().backward()
    gradients: dict[str, Tensor] = {n: p.grad for n, p in theirs.named_parameters()}
    mapped, _ = architecture.keymap.to_native(gradients, ours.state_dict())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, mapped[name], rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize(("hf_class", "width", "architecture"), CASES)
def test_logits_and_gradients_of_an_import_equal_transformers(
    hf_class: Any, width: int, architecture: Any, tmp_path: Path
) -> None:
    theirs = hf_class(hf.ElectraConfig(**SIZES, embedding_size=width))
    randomize(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = fourfold.load(tmp_path / "theirs")
    assert type(ours) is architecture.model_class
    assert write_model(ours, tmp_path / "again") == hf_class.__name__
    first, second = (directory.read_tensors(tmp_path / name) for name in ("theirs", "again"))
    first.pop("generator_lm_head.weight", None)  # tied, and written by some versions
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    compare(ours, theirs, architecture)


@pytest.mark.parametrize("part", [ElectraGenerator, ElectraDiscriminator, Electra])
def test_logits_and_gradients_of_an_export_equal_transformers(part: Any, tmp_path: Path) -> None:
    blocks = ElectraBlocksConfig(d_model=12, n_layers=1, n_heads=2, d_ff=16)
    both = Electra(ElectraConfig(**NATIVE, embedding_size=20, generator=blocks))
    randomize(both)
    generator, discriminator = both.separate()
    ours: Any = generator if part is ElectraGenerator else discriminator
    name = fourfold.save(both if part is Electra else ours, tmp_path)
    is_generator = part is ElectraGenerator
    loader = hf.AutoModelForMaskedLM if is_generator else hf.AutoModelForPreTraining
    theirs, report = loader.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), (name, report)
    assert theirs.config.hidden_size == (12 if is_generator else 36)
    compare(ours, theirs, GENERATOR if is_generator else DISCRIMINATOR)


def test_parts_of_a_pair_have_its_logits() -> None:
    blocks = ElectraBlocksConfig(d_model=12, n_layers=1, n_heads=2, d_ff=16)
    both = Electra(ElectraConfig(**NATIVE, embedding_size=20, generator=blocks)).eval()
    generator, discriminator = (part.eval() for part in both.separate())
    ids, mask = random_ids(2, 9), padding_mask([9, 4])
    assert torch.equal(both(ids, mask=mask), discriminator(ids, mask=mask))
    assert torch.equal(both.generator(ids, mask=mask), generator(ids, mask=mask))
    both.embed.tokens.weight.data.add_(1.0)  # embeddings are shared in the pair only
    assert both.generator.embed.tokens.weight is both.embed.tokens.weight
    assert generator.embed.tokens.weight is not discriminator.embed.tokens.weight
    assert sum(name.endswith("tokens.weight") for name in both.state_dict()) == 1


def test_classifier_starts_from_the_encoder_if_the_widths_agree(tmp_path: Path) -> None:
    hf.ElectraForPreTraining(hf.ElectraConfig(**SIZES, embedding_size=36)).save_pretrained(
        tmp_path / "equal"
    )
    model = SequenceClassifier(SequenceClassifierConfig(**NATIVE, n_classes=3)).eval()
    report = initialize_from(model, str(tmp_path / "equal"), None, "bicubic")
    new = [line for line in report.splitlines() if line.split()[0] == "new"]
    assert new
    assert all("classifier." in line for line in new)
    ids = random_ids(2, 9)
    expected = hf.AutoModel.from_pretrained(tmp_path / "equal")(ids).last_hidden_state
    torch.testing.assert_close(model.encode(ids), expected, rtol=1e-5, atol=1e-5)


def test_what_transformers_cannot_represent_is_named(tmp_path: Path) -> None:
    config = ElectraConfig(**NATIVE, generator=ElectraBlocksConfig(d_model=12))
    generator, discriminator = Electra(config).separate()
    assert "ElectraForPreTraining" in write_model(discriminator, tmp_path / "discriminator")
    assert "ElectraForMaskedLM" in write_model(generator, tmp_path / "generator")
    relu = ElectraGenerator(ElectraGeneratorConfig(**NATIVE, activation="relu"))
    with pytest.raises(InputError, match="hidden_act must be gelu, got relu"):
        write_model(relu, tmp_path / "relu")
    single = ElectraDiscriminator(ElectraDiscriminatorConfig(**NATIVE, n_segments=0))
    with pytest.raises(InputError, match="no class for this model"):
        write_model(single, tmp_path / "single")
    hf.ElectraForMaskedLM(hf.ElectraConfig(**SIZES)).save_pretrained(tmp_path)
    entries = read_json(tmp_path / "config.json") | {"is_decoder": True}
    directory.write_json(tmp_path / "config.json", entries)
    with pytest.raises(InputError, match="is_decoder must be False"):
        fourfold.load(tmp_path)
