"""Document of the page: maps, tokens and predictions are those of the model, in every family."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fourfold
from fourfold.analysis.attention_flow import relevance
from fourfold.analysis.attention_maps import attention_layers
from fourfold.analysis.attention_statistics import token_distances
from fourfold.core.attention import Attention
from fourfold.errors import InputError
from fourfold.explorer import document as document_module
from fourfold.explorer.document import Settings, build_document, join_documents, make_view
from fourfold.explorer.image_views import darken
from fourfold.explorer.inputs import Example, token_texts
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.models import LadderLMConfig, SigLIPConfig
from fourfold.tasks import (
    LadderLanguageModeling,
    RecurrentTranslation,
    SigmoidContrastiveLearning,
)
from fourfold.tokenization.tokenizer import Tokenizer
from tests.fixtures import tiny_tasks
from tests.fixtures.explorer_documents import unpack


def ladder(texts: Path) -> Any:
    """Return a causal LM with a single head and the data."""
    task, data = tiny_tasks.causal(texts)
    config = LadderLMConfig(**vars(task.config), rung="scaled")
    return LadderLanguageModeling(config, tiny_tasks.SGD, tiny_tasks.FLAT), data


def siglip(texts: Path) -> Any:
    """Return a SigLIP, whose patches a learned query pools, and the data."""
    task, data = tiny_tasks.image_and_text(texts)
    config = SigLIPConfig(**{**vars(task.config), "d_embed": 16})
    return SigmoidContrastiveLearning(config, tiny_tasks.SGD, tiny_tasks.FLAT), data


def local(texts: Path) -> Any:
    """Return a recurrent encoder-decoder with predicted windows, and the data."""
    task, data = tiny_tasks.recurrent(texts)
    config = replace(task.config, attn_weights="local_p", attn_window=1)
    return RecurrentTranslation(config, tiny_tasks.SGD, tiny_tasks.FLAT), data


FAMILIES: dict[str, Callable[..., Any]] = {
    "causal_lm": tiny_tasks.causal,
    "masked_lm": tiny_tasks.masked,
    "translation": tiny_tasks.translation,
    "t5": tiny_tasks.text_to_text,
    "joined": tiny_tasks.joined,
    "recurrent": tiny_tasks.recurrent,
    "vit": tiny_tasks.images,
    "captioning": tiny_tasks.captions,
    "recurrent_captions": tiny_tasks.recurrent_captions,
    "classification": tiny_tasks.sequences,
    "causal_classes": tiny_tasks.causal_sequences,
    "tokens": tiny_tasks.words,
    "document": tiny_tasks.documents,
    "ladder": ladder,
    "local": local,
    "masked_image": tiny_tasks.masked_images,
    "image_text": tiny_tasks.image_and_text,
    "siglip": siglip,
}
# Names of the maps on the page, by the kinds of attention of the model, where they differ.
PAGE_NAMES = {
    "masked_image": {"self": "encoder", "decoder_stack": "decoder"},
    "image_text": {"image_stack": "image", "text_stack": "text"},
    "siglip": {
        "image_stack": "image",
        "text_stack": "text",
        "self": "pooling by the learned query",
    },
}
SETTINGS = Settings(generate=4)


@pytest.fixture(scope="session")
def loaded(texts: Path) -> Callable[[str], tuple[Any, list[Example]]]:
    """Return a function from a family to its model, as loaded, and to examples of test data."""

    def load(family: str) -> tuple[Any, list[Example]]:
        torch.manual_seed(0)
        task, data = FAMILIES[family](texts)
        data.setup()
        fields = {name: getattr(data, name) for name in task.inferred_from_data}
        model = task.model_class(replace(task.config, **fields)).eval()
        with torch.no_grad():  # the weights of a new model are near uniform
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        model.artifacts = data.artifacts()
        if "tokenizer" in model.artifacts:
            model.tokenizer = Tokenizer.from_str(model.artifacts["tokenizer"])
            start = model.tokenizer.bos_id
            ids = model.tokenizer.eos_id, model.tokenizer.pad_id
            model.generation_defaults = GenerationDefaults(start, *ids, num_beams=2)
        dataset = data.split("test")
        batch = dataset.batch(np.arange(2), 0, 0)
        return model, make_view(model, SETTINGS).from_batch(batch, dataset)

    return load


def run(function: Any, model: Any, example: Example) -> Any:
    """Call a function with the model and the inputs of one pass over a complete example."""
    inputs = model_inputs(model, example)
    options = {}
    if example.visible:
        options["visible"] = torch.tensor([example.visible])
    if example.segments is not None and getattr(model.config, "n_segments", 0):
        options["segments"] = torch.tensor([list(example.segments)])
    return function(*inputs, **options)


def model_inputs(model: Any, example: Example) -> tuple[Any, ...]:
    """Return the positional inputs of one pass over a complete example."""
    target = list(example.target or [])
    decoder = torch.tensor([[getattr(model.tokenizer, "bos_id", 0), *target[:-1]]])
    if example.sentences:
        sizes = [len(row) for row in example.sentences]
        rows = [[*row, *[0] * (max(sizes) - len(row))] for row in example.sentences]
        return torch.tensor(rows), sizes, [len(sizes)]
    if example.image is not None:
        image = example.image[None]
        if example.visible:
            return (image,)
        if example.ids:
            return image, torch.tensor([example.ids])
        return (image, decoder) if model.can_generate else (image,)
    ids = torch.tensor([list(example.ids)])
    if hasattr(model, "decode"):
        return ids, decoder
    if example.target is not None:
        return (torch.tensor([[*example.ids, *target]]),)
    return (ids,)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_the_document_are_the_weights_of_the_model(loaded: Any, family: str) -> None:
    model, examples = loaded(family)
    found, maps = build_document(model, examples, SETTINGS)
    assert len(found["rows"]) == 2
    view = make_view(model, SETTINGS)
    for row, example in zip(found["rows"], examples, strict=True):
        function = partial(fourfold.attention_maps, model)
        maps_of_model = run(function, model, view.complete(example))
        weights = {name: x.float().numpy() for name, x in maps_of_model.items()}
        weights = {name.replace("cross", "alpha"): x for name, x in weights.items()} | weights
        for kind, shown_name in PAGE_NAMES.get(family, {}).items():
            weights = {name.replace(kind, shown_name): x for name, x in weights.items()}
        n_compared = 0
        for entry in row["maps"]:
            shown = unpack(entry, maps)
            assert shown.shape == tuple(
                len(row["tokens"][entry[side]]) for side in ("queries", "keys")
            )
            name = f"{entry['name']}.{entry['layer']}"
            if entry["name"] == "alpha sum":
                total = weights[f"alpha.{entry['layer']}"][0].mean(0).sum(0)
                assert np.abs(shown[0] - total).max() <= 0.004 * entry["range"][1]
            elif entry["name"] == "rollout":
                np.testing.assert_allclose(shown.sum(-1), 1.0, atol=0.05)
            elif name in weights:
                own = weights[name][0]
                own = own.mean(0) if entry["head"] is None else own[entry["head"]]
                assert np.abs(shown - own[: len(shown)]).max() <= 0.004
                rows = weights[name][0] if entry["head"] is None else own
                entropy = -np.sum(rows * np.log(np.maximum(rows, 1e-30)), -1).mean()
                assert entry["stats"]["entropy"][0] == pytest.approx(entropy, abs=2e-3)
                n_compared += 1
        assert n_compared


def test_images_name_the_true_class_and_have_no_statistics_of_order(loaded: Any) -> None:
    model, examples = loaded("vit")
    found, _ = build_document(model, examples, SETTINGS)
    names = make_view(model, SETTINGS).class_names(torch.zeros(model.config.n_classes))
    for row, example in zip(found["rows"], examples, strict=True):
        assert row["truth"] == names[example.label]
        titles = {entry["name"]: entry.get("title") for entry in row["maps"]}
        name, share = row["classes"][0]
        assert titles["relevance"] == f"relevance for class {name} ({share:.3g})"
        assert titles["rollout"] is None
        for entry in row["maps"]:
            assert not {"previous", "next"} & set(entry["stats"])


def test_rollout_of_an_encoder_decoder_is_named_after_the_encoder(loaded: Any) -> None:
    model, examples = loaded("translation")
    found, _ = build_document(model, examples[:1], SETTINGS)
    titles = {e["title"] for e in found["rows"][0]["maps"] if e["name"] == "rollout"}
    assert titles == {"rollout of the encoder (layers 0 to this one together)"}


@pytest.mark.parametrize("family", ["causal_lm", "translation", "recurrent", "captioning"])
def test_steps_are_the_predictions_of_generation(loaded: Any, family: str) -> None:
    """The distribution of each step comes from the same pass as the maps."""
    model, examples = loaded(family)
    found, _ = build_document(model, examples[:1], SETTINGS)
    (row,) = found["rows"]
    example = make_view(model, SETTINGS).complete(examples[0])
    with torch.no_grad():
        logits = model(*model_inputs(model, example))[0]
    assert row["steps"]
    assert len(row["steps"]) == len(example.target or [])
    names = row["tokens"][row["steps"][0]["list"]]
    for step in row["steps"]:
        p = logits[step["query"]].softmax(-1)
        assert step["chosen"] == names[step["token"]]
        assert step["entropy"] == pytest.approx(float(torch.special.entr(p).sum()), rel=1e-3)
        assert step["top"][0][1] == pytest.approx(float(p.max()), rel=1e-3)
        token = model.tokenizer.backend.token_to_id(step["top"][0][0])
        assert token is None or token == int(p.argmax())
        if step["lens"]:
            chosen = [list(example.ids), []][hasattr(model, "decode")] + list(example.target or [])
            rank = int((p > p[chosen[step["token"]]]).sum())
            assert step["lens"][-1] == rank
    if family == "causal_lm":  # greedy search takes the most probable token
        assert all(step["lens"][-1] == 0 for step in row["steps"])


@pytest.mark.parametrize("family", ["translation", "captioning"])
def test_alternatives_of_beam_search_are_scored_by_the_model(loaded: Any, family: str) -> None:
    model, examples = loaded(family)
    model.generation_defaults = replace(model.generation_defaults, num_beams=4)
    bias = torch.zeros(model.tokenizer.vocab_size)
    bias[model.tokenizer.eos_id] = 8.0  # the end token is probable enough to finish hypotheses
    model.head.bias = torch.nn.Parameter(bias)
    found, _ = build_document(model, examples[:1], SETTINGS)
    example = make_view(model, SETTINGS).complete(examples[0])
    shown = found["rows"][0]["beams"]
    scores = [score for _, score in shown]
    assert 1 < len(scores) <= 4
    assert scores == sorted(scores, reverse=True)
    assert example.target == example.hypotheses[0].ids
    for (text, score), hypothesis in zip(shown, example.hypotheses, strict=True):
        assert text == model.tokenizer.decode(hypothesis.ids)
        with torch.no_grad():
            logits = model(*model_inputs(model, replace(example, target=hypothesis.ids)))[0]
        steps = torch.arange(len(hypothesis.ids))
        total = float(logits.log_softmax(-1)[steps, hypothesis.ids].sum())
        penalty = ((5 + len(hypothesis.ids)) / 6) ** 0.6
        assert score == pytest.approx(total / penalty, rel=2e-3)


def test_masked_places_show_truth_and_alternatives(loaded: Any) -> None:
    model, examples = loaded("masked_lm")
    found, _ = build_document(model, examples, SETTINGS)
    steps = [step for row in found["rows"] for step in row["steps"]]
    assert {step["kind"] for step in steps} == {"masked"}
    for row, example in zip(found["rows"], examples, strict=True):
        shown = {step["token"]: step["truth"] for step in row["steps"]}
        truth = token_texts(model.tokenizer, list(example.truth.values()))
        assert shown == dict(zip(example.truth, truth, strict=True))
    page = fourfold.look(model, ["a <mask> b"])
    assert len(page.document["rows"][0]["steps"]) == 1


def test_an_encoder_without_a_vocabulary_head_has_maps_and_no_predictions(loaded: Any) -> None:
    model, examples = loaded("masked_lm")
    encoder = type(model)(replace(model.config, head=False)).eval()
    encoder.load_state_dict(model.state_dict(), strict=False)
    encoder.artifacts, encoder.tokenizer = model.artifacts, model.tokenizer
    found, maps = build_document(encoder, examples, SETTINGS)
    expected, same = build_document(model, examples, SETTINGS)
    assert maps == same
    for row, other in zip(found["rows"], expected["rows"], strict=True):
        assert (row["steps"], row["tokens"], row["maps"]) == ([], other["tokens"], other["maps"])


def test_window_of_local_attention_counts_positions_from_0(loaded: Any) -> None:
    model, examples = loaded("local")
    found, maps = build_document(model, examples, SETTINGS)
    starts = []
    for row in found["rows"]:
        centers = np.floor(row["alignment"]["centers"])[:, None]
        assert row["alignment"]["window"] == 1
        (entry,) = [entry for entry in row["maps"] if entry["name"] == "cross"]
        weights = unpack(entry, maps)
        inside = np.abs(np.arange(weights.shape[1]) - centers) <= 1
        assert (weights[~inside] == 0).all()
        assert (weights[inside] > 0).mean() > 0.8
        starts += [*centers.ravel()]
    assert len(set(starts)) > 1


def test_causal_maps_store_the_lower_triangle_only(loaded: Any) -> None:
    model, examples = loaded("causal_lm")
    found, maps = build_document(model, examples[:1], replace_precision(SETTINGS, 16))
    entries = found["rows"][0]["maps"]
    assert all(entry["triangle"] for entry in entries)
    n_tokens = entries[0]["shape"][0]
    assert len(maps) == 2 * len(entries) * n_tokens * (n_tokens + 1) // 2
    distances = token_distances(n_tokens, n_tokens).numpy()
    for entry in entries:
        if "distance" in entry["stats"]:
            mean = float((unpack(entry, maps, 16) * distances).sum(-1).mean())
            assert entry["stats"]["distance"][0] == pytest.approx(mean, rel=1e-2)


def replace_precision(settings: Settings, precision: int) -> Settings:
    return settings._replace(precision=precision)


def test_layers_and_a_small_budget_leave_out_heads(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, examples = loaded("masked_lm")
    only, _ = build_document(model, examples[:1], SETTINGS._replace(layers=(-1,)))
    assert {entry["layer"] for entry in only["rows"][0]["maps"]} == {model.config.n_layers - 1}
    monkeypatch.setattr(document_module, "ROW_BYTES", 10)
    monkeypatch.setattr(document_module, "_few_layers", lambda _: (0,))
    reduced, maps = build_document(model, examples[:1], SETTINGS)
    (notice,) = reduced["notice"]
    assert "the heads of layers other than 0 are left out" in notice
    own = [entry for entry in reduced["rows"][0]["maps"] if entry["name"] == "self"]
    assert {entry["layer"] for entry in own if entry["head"] is not None} == {0}
    assert {entry["layer"] for entry in own} == set(range(model.config.n_layers))
    unpack(own[-1], maps)


def test_equal_inputs_give_equal_bytes(loaded: Any) -> None:
    model, examples = loaded("translation")
    first, second = (build_document(model, examples, SETTINGS) for _ in range(2))
    assert first == second


def test_comparison_adds_the_maps_of_the_other_model(loaded: Any) -> None:
    model, examples = loaded("masked_lm")
    other, _ = loaded("masked_lm")
    with torch.no_grad():
        other.stack.blocks[0].attn.q.weight.mul_(3)
    found, maps = build_document(model, examples[:1], SETTINGS, other)
    entries = found["rows"][0]["maps"]
    sides = [[entry for entry in entries if entry["model"] == side] for side in (0, 1)]
    assert len(sides[0]) == len(sides[1])
    assert np.abs(unpack(sides[0][0], maps) - unpack(sides[1][0], maps)).max() > 0.01
    assert found["compare"] == {"title": "MaskedLM (other)"}
    named = SETTINGS._replace(layers=(0,), name="first", compared="second")
    found, _ = build_document(model, examples[:1], named, other)
    assert (found["title"], found["compare"]) == ("Attention of first", {"title": "second"})
    with pytest.raises(InputError, match="--compare must be a model of the family masked_lm"):
        build_document(model, examples[:1], SETTINGS, loaded("causal_lm")[0])


@pytest.mark.parametrize("precision", [8, 16])
def test_joined_documents_hold_the_maps_of_each_model(loaded: Any, precision: int) -> None:
    families = ("translation", "causal_lm", "masked_lm")
    parts = []
    for family in families:
        model, examples = loaded(family)
        settings = Settings(precision=precision, checkpoint=f"{family}/last.ckpt", n_models=3)
        settings = settings._replace(name=family)
        parts.append(build_document(model, examples[:2], settings))
    found, maps = join_documents(parts)
    assert [row["family"] for row in found["rows"]] == [x for x in families for _ in range(2)]
    rows = [row for document, _ in parts for row in document["rows"]]
    data = [part for _, part in parts for _ in range(2)]
    for joined, row, own in zip(found["rows"], rows, data, strict=True):
        assert joined["title"] == f"{joined['family']}: {row['title']}"
        assert joined["provenance"]["checkpoint"] == f"{joined['family']}/last.ckpt"
        for a, b in zip(joined["maps"], row["maps"], strict=True):
            assert np.array_equal(unpack(a, maps, precision), unpack(b, own, precision))


def test_a_page_is_displayed_in_a_notebook_and_saved(loaded: Any, tmp_path: Path) -> None:
    model, _ = loaded("masked_lm")
    page = fourfold.look(model, 'a "quoted" </script> text')
    shown = page._repr_html_()
    assert shown.startswith("<iframe")
    assert shown.count("<") == 2  # the page is escaped in the attribute srcdoc
    page.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == page.html
    with pytest.raises(InputError, match=r"a\.html exists; --overwrite replaces it"):
        page.save(tmp_path / "a.html")
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "a" * 50}, "the text has 52 tokens, but the model reads 32; --truncate"),
        ({"image": "a.png"}, "--image must not be given: the model reads no images"),
        ({"text": "a", "layers": [7]}, "--layers must be from 0 to"),
        ({"source": ["a", "b"], "target": "c"}, "--target must be given for each of 2 sources"),
        ({}, "text must be given, or an image"),
    ],
)
def test_unsuitable_inputs_are_rejected(
    loaded: Any, arguments: dict[str, Any], message: str
) -> None:
    model, _ = loaded("masked_lm")
    with pytest.raises(InputError, match=message):
        fourfold.look(model, **arguments)


def test_classes_of_an_image_are_the_texts_of_the_page(loaded: Any) -> None:
    model, examples = loaded("image_text")
    found, _ = build_document(model, examples, SETTINGS)
    texts = list(dict.fromkeys(tuple(example.ids) for example in examples))
    names = [model.tokenizer.decode(list(ids)) for ids in texts]
    for row, example in zip(found["rows"], examples, strict=True):
        with torch.no_grad():
            columns = [model(example.image[None], torch.tensor([ids])) for ids in texts]
        p = torch.cat(columns, 1)[0].softmax(-1).tolist()
        assert dict(row["classes"]) == pytest.approx(dict(zip(names, p, strict=True)), rel=1e-3)
        assert "relevance" in {entry["name"] for entry in row["maps"]}
    page = fourfold.look(model, ["a bold one", "a three"])
    assert [row["image"] for row in page.document["rows"]] == [None, None]


def test_siglip_shows_the_relevance_for_its_learned_query(loaded: Any) -> None:
    model, examples = loaded("siglip")
    found, _ = build_document(model, examples, SETTINGS)
    layers = attention_layers(model)
    stack = [path for path, (name, _) in layers.items() if name == "image_stack"]
    for row, example in zip(found["rows"], examples, strict=True):
        assert len(row["tokens"]["tokens"]) == model.config.max_len > len(example.ids)
        assert row["tokens"]["patches"][0] == "row 0, column 0"
        image = example.image[None]
        ids = [torch.tensor([each.ids]) for each in examples]
        p = [model(image, text).sigmoid().item() for text in ids]
        assert [x for _, x in row["classes"]] == pytest.approx(sorted(p, reverse=True), rel=1e-3)
        own = next(text for text, each in zip(ids, examples, strict=True) if each is example)

        def forward(image: Any = image, own: Any = own) -> Any:
            return model(image, own)[:, 0]

        pool = relevance(model, forward, ["image_pool.attn"])
        expected = relevance(model, forward, [*stack, "image_pool.attn"])
        torch.testing.assert_close(pool @ relevance(model, forward, stack), expected)
        entry = next(entry for entry in row["maps"] if entry["name"] == "relevance")
        assert entry["shape"] == [1, 4]
        assert entry["range"] == [0.0, pytest.approx(float(expected.max()))]
    page = fourfold.look(model, ["a bold one"])
    assert "a bold one" in page.document["rows"][0]["title"]


def test_a_masked_autoencoder_starts_at_a_hidden_patch(loaded: Any) -> None:
    model, examples = loaded("masked_image")
    found, _ = build_document(model, examples, SETTINGS)
    for row, example in zip(found["rows"], examples, strict=True):
        assert row["query"] - 1 == min(set(range(16)) - set(example.visible))
        assert len(row["tokens"]["visible"]) == 1 + len(example.visible)
        encoder = [entry for entry in row["maps"] if entry["name"] == "encoder"]
        assert row["maps"][0]["name"] == "decoder"
        assert all(entry["shape"] == [5, 5] for entry in encoder)


def test_hidden_patches_are_dark() -> None:
    picture = np.full((4, 4, 1), 200, np.uint8)
    found = darken(picture, [2, 3], (2, 2))[..., 0]
    assert found.tolist() == [[200, 200, 50, 50]] * 2 + [[50, 50, 200, 200]] * 2


def test_models_without_attention_or_page_are_rejected() -> None:
    recurrent = fourfold.models.RecurrentLM(fourfold.models.RecurrentLMConfig(vocab_size=9))
    with pytest.raises(InputError, match="the model must have attention, got RecurrentLM"):
        make_view(recurrent, SETTINGS)

    class Other(fourfold.models.Model):
        def __init__(self) -> None:
            super().__init__()
            self.attn = Attention(8, 2)

    with pytest.raises(InputError, match="is a Other, for which there is no page"):
        make_view(Other(), SETTINGS)
