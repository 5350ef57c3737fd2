"""Models in lm-evaluation-harness: known mistakes of adapters, and the harness's own model."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fourfold
from tests.commands.infer.test_score import CORPUS, TEXTS, TOKENIZER, build

lm_eval = pytest.importorskip("lm_eval")
from lm_eval.api.registry import get_model  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from fourfold.lm_eval import FourfoldLM  # noqa: E402


def requests(*args: Any) -> list[Any]:
    return [SimpleNamespace(args=a) for a in args]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Paths of a causal LM, a masked LM and an encoder-decoder."""
    folder = tmp_path_factory.mktemp("models")

    def path(kind: str) -> str:
        if not (folder / kind).exists():
            model = build(kind).float()
            fourfold.save(model, folder / kind)
        return str(folder / kind)

    return path


def test_results_are_scores_in_the_order_of_the_requests(saved: Any) -> None:
    harness = FourfoldLM(saved("causal"), batch_size="2", device="cpu")
    pairs = [
        ("the mat", " sat"),
        ("", "dog"),
        ("a dog ran away, and", " the cats slept"),
        ("", "dog"),
    ]
    found = harness.loglikelihood(requests(*pairs))
    for (context, continuation), (total, greedy) in zip(pairs, found, strict=True):
        assert type(total) is float
        assert type(greedy) is bool
        (alone,) = fourfold.score(harness.model, [(context, continuation)])
        assert total == pytest.approx(alone.total, abs=1e-4)
    rolling = harness.loglikelihood_rolling(requests(*((text,) for text in TEXTS)))
    expected = [x.total for x in fourfold.score(harness.model, TEXTS)]
    assert rolling == pytest.approx(expected, abs=1e-4)


def test_a_long_context_is_cut_on_its_left(saved: Any) -> None:
    """The continuation stays the same, whatever was cut (ml-explore/mlx-lm, pull request 1902)."""
    harness, context = FourfoldLM(saved("causal")), "the cat sat." + " the cat sat." * 29
    with pytest.warns(UserWarning, match="windows of 40 tokens"):
        ((total, _),) = harness.loglikelihood(requests((context, " dog")))
    ids = TOKENIZER.encode(context + " dog")
    n = len(ids) - len(TOKENIZER.encode(context))
    with torch.inference_mode():
        logits = harness.model(torch.tensor([ids[-41:-1]])).log_softmax(-1)[0, -n:]
    assert total == pytest.approx(float(logits[torch.arange(n), ids[-n:]].sum()), abs=1e-4)


def test_masked_models_and_encoder_decoders(saved: Any) -> None:
    masked = FourfoldLM(saved("masked"), method="masked")
    ((total, greedy),) = masked.loglikelihood(requests(("the cat", " sat.")))
    (alone,) = fourfold.score(masked.model, [("the cat", " sat.")], method="masked")
    assert (total, greedy) == (pytest.approx(alone.total, abs=1e-4), False)
    with pytest.raises(NotImplementedError):
        masked.loglikelihood_rolling(requests(("the cat",)))
    with pytest.raises(NotImplementedError):
        masked.generate_until(requests(("the cat", {})))
    pairs = FourfoldLM(saved("pairs"))
    ((total, _),) = pairs.loglikelihood(requests(("the cat", "a dog")))
    (alone,) = fourfold.score(pairs.model, [("the cat", "a dog")], eos=False)
    assert total == pytest.approx(alone.total, abs=1e-4)
    assert alone.tokens[-1].text != "</s>"
    (text,) = pairs.generate_until(requests(("the cat", {"until": ["t"], "max_gen_toks": 5})))
    assert "t" not in text


def test_generation_stops_and_keeps_the_order(saved: Any) -> None:
    harness = FourfoldLM(saved("causal"))
    short, long = {"until": ["a", "e"], "max_gen_toks": 12}, {"until": [], "max_gen_toks": 12}
    prompts = [("the cat", long), ("a dog", short), ("cats can", long)]
    found = harness.generate_until(requests(*prompts))
    whole = fourfold.generate_text(
        harness.model,
        ["the cat", "a dog", "cats can"],
        temperature=0.0,
        max_new_tokens=12,
        only_new=True,
    )
    assert [found[0], found[2]] == [whole[0], whole[2]]
    cut = min((whole[1].partition(stop)[0] for stop in "ae"), key=len)
    assert found[1] == cut


@pytest.mark.parametrize("kind", ["causal", "pairs"])
def test_a_task_may_ask_for_more_than_a_small_model_can_read(kind: str, saved: Any) -> None:
    long = "the cat sat on the mat. " * 20
    asked = [("the cat", {"until": []}), (long, {"until": [], "max_gen_toks": 10_000})]
    assert len(FourfoldLM(saved(kind)).generate_until(requests(*asked))) == 2


def test_the_harness_agrees_with_its_own_model_pair_by_pair(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions on minimal pairs are those of the export in transformers."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    from fourfold.cli import main
    from fourfold.models import CausalLM, CausalLMConfig

    config = CausalLMConfig(
        d_model=12, n_layers=2, n_heads=3, d_ff=48, vocab_size=TOKENIZER.vocab_size, max_len=40
    )
    torch.manual_seed(3)
    model = CausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = TOKENIZER
    fourfold.save(model, tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "hf")]) == 0
    words = " ".join(CORPUS).replace(",", "").replace(".", "").split()
    pairs = [
        {
            "sentence_good": " ".join(words[i : i + 4]),
            "sentence_bad": " ".join(words[i : i + 4][::-1]),
        }
        for i in range(len(words) - 4)
    ]
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "tasks").mkdir()
    task = {
        "task": "tiny_pairs",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(lines)}},
        "validation_split": "validation",
        "output_type": "multiple_choice",
        "doc_to_text": "",
        "doc_to_target": 0,
        "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "tasks/tiny_pairs.yaml").write_text(json.dumps(task))

    def scores(name: str, **options: Any) -> list[list[float]]:
        manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
        found = lm_eval.simple_evaluate(
            model=get_model(name)(**options),
            tasks=["tiny_pairs"],
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=True,
        )
        samples = sorted(found["samples"]["tiny_pairs"], key=lambda sample: sample["doc_id"])
        return [[total for total, _ in sample["filtered_resps"]] for sample in samples]

    ours = scores("fourfold", path=str(tmp_path / "model"))
    # By default, theirs would begin with <s>, which no text begins with in training.
    start = {"prefix_token_id": TOKENIZER.eos_id}
    theirs = scores("hf", pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32", **start)
    assert len(ours) == len(pairs)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-3)
    command = [
        sys.executable,
        "-m",
        "fourfold.lm_eval",
        "--model",
        "fourfold",
        "--tasks",
        "tiny_pairs",
    ]
    command += [
        "--model_args",
        f"path={tmp_path / 'model'}",
        "--output_path",
        str(tmp_path / "out"),
    ]
    command += ["--include_path", str(tmp_path / "tasks"), "--device", "cpu"]
    subprocess.run(command, check=True)
    (file,) = (tmp_path / "out").rglob("results*.json")
    accuracy = json.loads(file.read_text())["results"]["tiny_pairs"]["acc,none"]
    assert accuracy == pytest.approx(sum(good > bad for good, bad in ours) / len(ours))
    expected = fourfold.score(model.eval(), [pair["sentence_good"] for pair in pairs])
    assert [good for good, _ in ours] == pytest.approx([x.total for x in expected], abs=1e-4)
