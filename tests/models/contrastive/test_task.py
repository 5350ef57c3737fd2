"""Contrastive learning: the loss, gathering over processes, retrieval metrics, conversion."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from lightning import Trainer
from torch import Tensor

from fourfold.data import CaptionData
from fourfold.data.loading.batches import CaptionBatch
from fourfold.errors import InputError
from fourfold.metrics import RetrievalScores
from fourfold.models import CLIPConfig, SigLIPConfig
from fourfold.models.contrastive.task import gather
from fourfold.tasks import ContrastiveLearning, SigmoidContrastiveLearning, load_task
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig
from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import FLAT, SGD, SMALL, train

CONFIG = CLIPConfig(
    **SMALL,
    vocab_size=None,
    max_len=16,
    image_d_model=16,
    image_n_layers=1,
    image_n_heads=2,
    image_d_ff=24,
    image_size=8,
    patch_size=4,
    n_channels=1,
    d_embed=8,
)


def captions(max_rows: int = 64, **kwargs: Any) -> tuple[ContrastiveLearning, CaptionData]:
    data = CaptionData(batch_size=max_rows, tokenizer=TokenizerConfig(vocab_size=150), **kwargs)
    return ContrastiveLearning(CONFIG, SGD, FLAT), data


def trainer(folder: Path, **kwargs: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **kwargs,
    )


def built(rows: int = 6) -> tuple[ContrastiveLearning, CaptionBatch]:
    """Return a task in fp64, and a batch of random numbers."""
    torch.manual_seed(0)
    config = CLIPConfig(**{**vars(CONFIG), "vocab_size": 20, "eos_id": 3})
    task = ContrastiveLearning(config, SGD, FLAT)
    task.configure_model()
    task.double()
    ids = torch.randint(4, 20, (rows, 7))
    ids[:, -1] = 3
    images = torch.randn(rows, 1, 8, 8, dtype=torch.float64)
    return task, CaptionBatch(images, ids, torch.ones_like(ids).bool(), torch.arange(rows))


# --------------------------------------------------------------------------------------- loss
def test_loss_is_that_of_figure_3() -> None:
    task, batch = built()
    image = task.model.encode_image(batch.images)
    text = task.model.encode_text(batch.ids)
    image, text = (x / x.norm(dim=1, keepdim=True) for x in (image, text))
    logits = image @ text.T * task.model.log_scale.exp()
    labels = torch.arange(6)
    plain = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    total, count = task.step(batch)
    assert count == 6
    torch.testing.assert_close(total / count, plain)


def test_accumulation_compares_pairs_within_a_micro_batch(tmp_path: Path) -> None:
    """The loss is the mean over the pairs of both micro-batches."""
    cut = train(*captions(max_rows=700), tmp_path, accumulate_grad_batches=2)
    task, data = captions(max_rows=700)
    data.setup()
    torch.manual_seed(0)
    task.trainer = trainer(tmp_path)
    task.trainer.datamodule = data
    with task.trainer.init_module():  # in fp64 from the beginning
        task.configure_model()
    batches = [b._replace(images=b.images.double()) for b in data.train_dataloader()]
    assert len(batches) == 2
    sums = [task.step(batch) for batch in batches]
    (sum(total for total, _ in sums) / sum(count for _, count in sums)).backward()
    for name, parameter in task.model.named_parameters():
        moved = parameter.detach() - parameter.grad
        if name == "log_scale":
            moved = moved.clamp(max=math.log(100))
        torch.testing.assert_close(cut[name], moved, rtol=1e-10, atol=1e-10, msg=name)


def share(rank: int, world: int, file: str, results: Any) -> None:
    """Run one of several processes on its rows of the batch, and store the reduced gradient."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    task, batch = built()
    mine = slice(0, 4) if rank == 0 else slice(4, 6)  # unequal shares
    parts = (x[mine] for x in batch[:4])
    task.step(CaptionBatch(*parts))[0].backward()
    gradients = {}
    for name, parameter in task.model.named_parameters():
        dist.all_reduce(parameter.grad)
        gradients[name] = parameter.grad.numpy()
    if rank == 0:
        results.update(gradients)
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_compare_all_pairs(tmp_path: Path) -> None:
    task, batch = built()
    task.step(batch)[0].backward()
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(share, (2, str(tmp_path / "meet"), results), nprocs=2)
        found = dict(results)
    for name, parameter in task.model.named_parameters():
        given = torch.from_numpy(found[name])
        torch.testing.assert_close(given, parameter.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_one_process_gathers_nothing() -> None:
    x = torch.randn(3, 2)
    assert gather(x)[0] is x
    assert gather(x)[1] == 0


def test_learned_scale_is_limited_to_100(tmp_path: Path) -> None:
    task, data = captions()
    task.optimizer = replace(SGD, lr=1e-9)
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    task.trainer = run
    run.datamodule = data
    task.configure_model()
    with torch.no_grad():
        task.model.log_scale.fill_(7.0)
    run.fit(task, data)
    assert math.isclose(task.model.log_scale.exp().item(), 100, rel_tol=1e-6)


def test_end_token_is_taken_from_the_tokenizer(tmp_path: Path) -> None:
    task, data = captions()
    trainer(tmp_path, max_steps=1, limit_val_batches=0).fit(task, data)
    assert task.config.eos_id == data.tokenizer.eos_id == 3


# --------------------------------------------------------------------------------------- metrics
def random_pairs(n: int, width: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, n, width, generator=generator).double()
    return images + texts, texts


def scores(images: Tensor, texts: Tensor, said: list[tuple[int, ...]], batch: int) -> Any:
    metric = RetrievalScores()
    rows = torch.arange(len(images)).flip(0)  # in whatever order
    for part in rows.split(batch):
        chosen = [said[row] for row in part.tolist()]
        metric.update(part.tolist(), images[part], texts[part], chosen)
    metric.update([0], images[:1], texts[:1], said[:1])  # once more, as another device may
    return metric.compute()


def test_recall_equals_hand_computed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = random_pairs(40)
    logits = images @ texts.T
    found = scores(images, texts, [(i,) for i in range(40)], batch=7)
    for name, x in (("image_to_text", logits), ("text_to_image", logits.T)):
        for k in (1, 5, 10):
            best = x.topk(k, dim=1).indices
            hits = (best == torch.arange(40)[:, None]).any(1).double().mean()
            assert found[f"{name}_recall_at_{k}"] == pytest.approx(float(hits))
    labels = torch.arange(40)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    assert found["loss"] == pytest.approx(float(loss))
    for batch, chunk in ((1, 1024), (40, 1024), (7, 3)):
        monkeypatch.setattr(RetrievalScores, "chunk_size", chunk)
        assert scores(images, texts, [(i,) for i in range(40)], batch) == pytest.approx(found)


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_constant_scores_have_no_recall(value: float) -> None:
    alike = torch.full((20, 3), value).double()
    found = scores(alike, alike, [(i,) for i in range(20)], batch=7)
    assert all(found[name] == 0.0 for name in found if name != "loss")


def test_images_with_the_same_caption_share_it() -> None:
    texts = torch.eye(3).double()[[0, 0, 1, 2]]
    images = torch.tensor([[9.0, 0, 1], [5, 6, 0], [0, 7, 0], [0, 0, 2]]).double()
    found = scores(images, texts, [(1,), (1,), (2,), (3,)], batch=4)
    assert found["image_to_text_recall_at_1"] == 0.75  # the second is more like another text
    assert found["text_to_image_recall_at_1"] == 1.0  # one of the two is best
    assert found["image_to_text_recall_at_5"] == 1.0


def test_metrics_do_not_depend_on_batch_size(tmp_path: Path) -> None:
    summaries = []
    for rows in (1000, 7):
        torch.manual_seed(0)
        task, data = captions(eval_batch_size=rows)
        trainer(tmp_path).test(task, data, verbose=False)
        summaries.append(task.summary)
    whole, cut = summaries
    assert len(whole) == 7
    assert cut == pytest.approx(whole, rel=1e-9)


# --------------------------------------------------------------------------------------- exchange
def test_checkpoint_is_exported_and_imported_again(tmp_path: Path) -> None:
    """The processor of transformers reads tokenizer and preprocessing of the exported task."""
    import transformers as hf

    from fourfold.data.vision.eval_transforms import eval_transform
    from fourfold.tasks.convert import export_checkpoint, import_checkpoint

    task, data = captions()
    run = trainer(tmp_path, max_steps=2, limit_val_batches=0)
    run.fit(task.float(), data)
    run.save_checkpoint(tmp_path / "x.ckpt")
    export_checkpoint(tmp_path / "x.ckpt", tmp_path / "there")
    model = hf.CLIPModel.from_pretrained(tmp_path / "there").eval()
    processor = hf.CLIPProcessor.from_pretrained(tmp_path / "there")
    split = data.split("test").images
    images = [split.encoded(row) for row in range(3)]
    texts = ["a bold handwritten three, upright", "the digit nine in thin strokes, leaning left"]
    given = processor(text=texts, images=images, padding=True, return_tensors="pt")
    pixels = torch.stack([eval_transform(task.artifacts)(image) for image in images])
    torch.testing.assert_close(given["pixel_values"], pixels, rtol=0, atol=1e-5)
    ours = load_task(tmp_path / "x.ckpt")
    encoded = [data.tokenizer.encode(text) for text in texts]
    for row, ids in zip(given["input_ids"], encoded, strict=True):
        assert row[: len(ids) + 2].tolist() == [2, *ids, 3]
    with torch.no_grad():
        theirs = model(**given).logits_per_image
        mine = ours.model(pixels, given["input_ids"], mask=given["attention_mask"].bool())
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    import_checkpoint(tmp_path / "there", tmp_path / "again.ckpt")
    again = load_task(tmp_path / "again.ckpt")
    assert again.config == ours.config
    kept = {key: value for key, value in ours.artifacts.items() if key != "max_len"}
    there = dict(again.artifacts)
    assert Tokenizer.from_str(there.pop("tokenizer")).encode(texts[0]) == data.tokenizer.encode(
        texts[0]
    )
    kept.pop("tokenizer")
    assert there == kept


def test_files_of_openai_are_imported(tmp_path: Path) -> None:
    """The tokenizer has other file names; processor_config.json holds the preprocessing."""
    import transformers as hf

    from fourfold.tasks.convert import import_checkpoint
    from tests.fixtures.hf_models import clip

    letters = [chr(c) + end for end in ("", "</w>") for c in range(97, 123)]
    names = [*letters, "th", "the</w>", "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = hf.CLIPTokenizer(vocab=vocabulary, merges=[("t", "h"), ("th", "e</w>")])
    images = hf.CLIPImageProcessor(
        size={"shortest_edge": 14}, crop_size={"height": 12, "width": 12}
    )
    hf.CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(tmp_path / "a")
    config = clip({"vocab_size": len(names), "eos_token_id": 2}, {})
    hf.CLIPModel(config).save_pretrained(tmp_path / "a")
    import_checkpoint(tmp_path / "a", tmp_path / "x.ckpt")
    task = load_task(tmp_path / "x.ckpt")
    read = Tokenizer.from_str(task.artifacts["tokenizer"])
    assert (read.bos_id, read.eos_id) == (len(names) - 2, len(names) - 1)
    theirs = tokenizer("The cat")["input_ids"]
    assert [read.bos_id, *read.encode("The cat"), read.eos_id] == theirs
    assert task.config.eos_id is None  # by the highest number
    assert task.artifacts["crop_pct"] == pytest.approx(12 / 14)
    assert task.artifacts["mean"] == pytest.approx([0.4815, 0.4578, 0.4082], abs=1e-3)
    assert task.artifacts["interpolation"] == "bicubic"
    assert "class_names" not in task.artifacts
    merges = "#version: 0.2\nt h\nth e</w>\n"
    (tmp_path / "a" / "merges.txt").write_text(merges)
    (tmp_path / "a" / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "a" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="neither GPT-2's vocabulary"):
        import_checkpoint(tmp_path / "a", tmp_path / "y.ckpt")


# ------------------------------------------------------------------------------------ SigLIP
def sigmoid(rows: int = 6) -> tuple[SigmoidContrastiveLearning, CaptionBatch]:
    """Return a task in fp64 with random weights, and a batch with padded texts."""
    _, batch = built(rows)
    sizes = {**vars(CONFIG), "vocab_size": 20, "d_embed": 16, "eos_id": None, "pad_id": 2}
    task = SigmoidContrastiveLearning(SigLIPConfig(**sizes), SGD, FLAT)
    task.configure_model()
    task.double().eval()
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.normal_(std=0.4)
    mask = torch.arange(7) < torch.arange(1, rows + 1)[:, None]
    return task, batch._replace(ids=batch.ids.masked_fill(~mask, 0), mask=mask)


def test_sigmoid_loss_classifies_each_pair() -> None:
    task, batch = sigmoid()
    logits = task.model(batch.images, batch.ids, mask=batch.mask)
    labels = torch.eye(6, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / 6
    total, count = task.step(batch)
    torch.testing.assert_close(total / count, expected)
    with torch.no_grad():
        task.update_metrics(batch, "val")
    task.retrieval.chunk_size = 4  # type: ignore[misc]
    scores = task.compute_metrics("val")
    assert scores["loss"] == pytest.approx(expected.item(), rel=1e-9)
    best = (logits.argmax(1) == torch.arange(6)).double().mean().item()
    assert scores["image_to_text_recall_at_1"] == pytest.approx(best)


def test_sigmoid_task_takes_the_padding_from_the_tokenizer(tmp_path: Path) -> None:
    config = SigLIPConfig(**{**vars(CONFIG), "d_embed": 16, "pad_id": 1})
    data = CaptionData(batch_size=64, tokenizer=TokenizerConfig(vocab_size=150))
    task = SigmoidContrastiveLearning(config, SGD, FLAT)
    trainer(tmp_path, max_steps=2, limit_val_batches=1).fit(task, datamodule=data)
    assert task.config.pad_id == data.tokenizer.pad_id == 0
    assert task.model.log_scale.exp().item() != pytest.approx(10.0, abs=1e-6)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_gradients_flow_back_to_each_process(tmp_path: Path) -> None:
    """Also with different numbers of rows, with none, and from a tensor that is not contiguous."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        generator = torch.Generator().manual_seed(0)
        rows, options = [3, 3, 0, 1], {"generator": generator, "dtype": torch.float64}
        for counts in (rows, [2] * 4):
            x = torch.randn(5, sum(counts), **options).requires_grad_()
            factors = torch.randn(4, sum(counts), 5, **options)
            begin = sum(counts[:rank])
            mine = slice(begin, begin + counts[rank])
            found, offset = gather(x.T[mine])
            assert offset == begin
            assert torch.equal(found, x.T)
            (found * factors[rank]).sum().backward()
            expected = torch.zeros_like(x.T)
            expected[mine] = factors.sum(0)[mine]
            torch.testing.assert_close(x.grad, expected.T, rtol=1e-14, atol=1e-14)

    ended = together(4, work, tmp_path)
    assert [end.code for end in ended] == [0] * 4, ended[0].out
