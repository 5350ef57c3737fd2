import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.data import CaptionData
from fourfold.data.batch import CaptionBatch
from fourfold.data.caption_sources import LEANINGS, NUMBERS, STROKES, described_digits
from fourfold.data.image_sources import digits
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.data.transforms import TransformConfig

COLOURS = ("red", "green", "blue")


def lines(n: int = 12) -> list[dict[str, Any]]:
    """Image k is of one colour, and has 1 to 3 texts that name it and count themselves."""
    return [
        {
            "image": f"{k:02}.png",
            "split": "dev" if k % 4 == 3 else "train",
            "captions": [f"{COLOURS[k % 3]} picture {k} text {j}" for j in range(1 + k % 3)],
        }
        for k in range(n)
    ]


def write(root: Path, said: list[dict[str, Any]], folder: str = "images") -> Path:
    (root / folder).mkdir(parents=True)
    for entry in said:
        k = int(entry["image"][:2])
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., k % 3] = 100 + k
        Image.fromarray(pixels).save(root / folder / entry["image"])
    text = "".join(json.dumps(entry) + "\n" for entry in said)
    (root / "captions.jsonl").write_text(text)
    return root


def packed(root: Path) -> Path:
    archive = root.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(root.rglob("*")):
            out.write(file, file.relative_to(root))
    return archive


def data(source: Path, **kwargs: Any) -> CaptionData:
    return CaptionData(str(source), batch_size=4, tokenizer=TokenizerConfig("char"), **kwargs)


def batches(loader: Any, epoch: int = 0) -> list[CaptionBatch]:
    loader.batch_sampler.set_epoch(epoch)
    return list(loader)


def texts(module: CaptionData, found: list[CaptionBatch]) -> dict[int, str]:
    """Texts by row of the split."""
    return {
        row: module.tokenizer.decode(ids.tolist())
        for batch in found
        for row, ids in zip(batch.index.tolist(), batch.ids, strict=True)
    }


def same(a: list[CaptionBatch], b: list[CaptionBatch]) -> bool:
    def equal(x: object, y: object) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else x == y

    assert len(a) == len(b)
    return all(equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "captions", lines())


# --------------------------------------------------------------------------------------- batches
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_an_image_comes_with_a_text_of_its_own(folder: Path, form: str) -> None:
    module = data(packed(folder) if form == "zip" else folder)
    training = [entry for entry in lines() if entry["split"] == "train"]
    found = batches(module.train_dataloader())
    said = texts(module, found)
    assert sorted(said) == list(range(len(training)))
    for batch in found:
        for row, image in zip(batch.index.tolist(), batch.images, strict=True):
            assert said[row] in training[row]["captions"]
            assert COLOURS[int(image.sum((1, 2)).argmax())] == said[row].split()[0]


def test_an_empty_line_is_no_image(folder: Path) -> None:
    whole = len(batches(data(folder).train_dataloader()))
    table = folder / "captions.jsonl"
    table.write_text("\n" + table.read_text() + "\n \n")
    assert len(batches(data(folder).train_dataloader())) == whole


def test_a_text_runs_from_bos_to_eos(folder: Path) -> None:
    module = data(folder)
    tokenizer = module.tokenizer
    for batch in batches(module.val_dataloader()):
        for ids, mask in zip(batch.ids, batch.mask, strict=True):
            assert ids[0] == tokenizer.bos_id
            assert ids[int(mask.sum()) - 1] == tokenizer.eos_id
            assert (ids == tokenizer.eos_id).sum() == 1
            assert (ids[~mask] == tokenizer.pad_id).all()
            assert mask[: int(mask.sum())].all()


def test_evaluation_reads_the_first_text(folder: Path) -> None:
    module = data(folder)
    module.setup()
    assert module.tests_on_val  # val stands for test
    first = [e["captions"][0] for e in lines() if e["split"] == "dev"]
    expected = [module.tokenizer.decode(module.tokenizer.encode(text)) for text in first]
    for epoch in (0, 3):
        for loader in (module.val_dataloader(), module.test_dataloader()):  # val stands for test
            assert list(texts(module, batches(loader, epoch)).values()) == expected


def test_the_same_seed_and_epoch_give_the_same_batches(folder: Path) -> None:
    first = batches(data(folder, seed=3).train_dataloader(), 2)
    assert same(batches(data(folder, seed=3).train_dataloader(), 2), first)
    assert not same(batches(data(folder, seed=4).train_dataloader(), 2), first)


def test_texts_change_with_the_epoch_and_each_has_its_turn(folder: Path) -> None:
    module = data(folder)
    seen: dict[int, set[str]] = {}
    for epoch in range(40):
        for row, text in texts(module, batches(module.train_dataloader(), epoch)).items():
            seen.setdefault(row, set()).add(text)
    training = [entry for entry in lines() if entry["split"] == "train"]
    assert [seen[row] for row in range(len(training))] == [set(e["captions"]) for e in training]


def test_a_text_depends_on_its_row_alone(folder: Path) -> None:
    """Not on the batch: so that neither workers nor other batch sizes change it."""
    module = data(folder)
    split = module.split("train")
    whole = split.batch(np.arange(9), 5, 1)
    alone = split.batch(np.array([6]), 5, 7)
    length = int(alone.mask.sum())
    assert torch.equal(whole.ids[6, :length], alone.ids[0])


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_resumed_epoch_goes_on_with_the_same_texts(folder: Path, done: int) -> None:
    module = data(folder, seed=1)
    whole = batches(module.train_dataloader(), 1)
    module.set_consumed(1, done)
    state = module.state_dict()
    resumed = data(folder, seed=1)
    resumed.load_state_dict(state)
    assert same(batches(resumed.train_dataloader(), 1), whole[done:])


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_pixels_are_the_same_from_anywhere(folder: Path, form: str, cache: Any) -> None:
    plain = batches(data(folder).train_dataloader())
    module = data(packed(folder) if form == "zip" else folder, cache=cache)
    assert same(batches(module.train_dataloader()), plain)


# --------------------------------------------------------------------------------------- digits
def test_digits_are_described_as_they_look() -> None:
    for name, split in described_digits().items():
        labels = digits()[name].labels.tolist()
        assert len(split.images) == len(labels)
        assert (split.counts == 3).all()
        for row, label in enumerate(labels):
            for text in split.texts.columns[0][3 * row : 3 * row + 3]:
                assert NUMBERS[label] in text.replace(":", " ").replace(",", " ").split()
                assert sum(word in text for word in STROKES) == 1
                assert sum(word in text for word in LEANINGS) == 1
    train = described_digits()["train"]
    for words in (STROKES, LEANINGS):
        counts = [sum(word in text for text in train.texts.columns[0]) for word in words]
        assert max(counts) < 1.1 * min(counts)


def test_a_slanted_stroke_leans() -> None:
    from fourfold.data.caption_sources import _looks
    from fourfold.data.image_sets import ArrayImages

    stroke = np.eye(8, dtype=np.uint8)[::-1].copy() * 255  # from below left to above right
    upright = np.zeros((8, 8), np.uint8)
    upright[:, 3] = 255
    both = np.stack([stroke, upright, stroke[:, ::-1]])
    slants = _looks(ArrayImages(both, np.zeros(3), ["x"], "x"))[:, 1]
    assert np.allclose(slants, [-1, 0, 1])  # the first leans right


# --------------------------------------------------------------------------------------- tokens
def test_a_trained_tokenizer_has_no_end_of_text_number_2(folder: Path) -> None:
    for kind in ("bpe", "byte_bpe", "wordpiece", "unigram", "char"):
        tokenizer = train_tokenizer(
            TokenizerConfig(kind, 300, min_frequency=1),
            [t for e in lines() for t in e["captions"]],
            mask=False,
            special=CaptionData.special,
        )
        ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
        assert ids == (0, 1, 2, 3)
        assert tokenizer.unk_id not in tokenizer.encode("red picture 3 text 0")


# --------------------------------------------------------------------------------------- errors
def spoil(folder: Path, how: str) -> None:
    table = folder / "captions.jsonl"
    said = table.read_text().split("\n")
    if how == "image":
        (folder / "images" / "04.png").unlink()
    elif how == "broken":
        said[4] = said[4][:20]
    elif how == "split":
        said[4] = said[4].replace("train", "trian")
    elif how == "column":
        said[4] = said[4].replace('"captions"', '"caption"')
    elif how == "none":
        said[4] = json.dumps({**lines()[4], "captions": []})
    elif how == "number":
        said[4] = json.dumps({**lines()[4], "captions": [7]})
    elif how == "long":
        said[4] = json.dumps({**lines()[4], "captions": ["short", "very " * 30]})
    elif how == "no train":
        said = [line for line in said if "train" not in line]
    table.write_text("\n".join(said))


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("image", r"captions\.jsonl, line 5: there is no image images/04\.png in"),
        ("broken", r"captions\.jsonl, line 5: broken JSON"),
        ("split", r"line 5: the split 'trian' is none of train, val, test"),
        ("column", r"line 5: column 'captions' holds None, which is no text"),
        ("none", r"line 5: the image 04\.png has no text"),
        ("number", r"line 5: column 'captions' holds \[7\], which is no text"),
        ("long", r"captions\.jsonl, line 5 has \d+ tokens, but max_len allows 75"),
        ("no train", r"captions\.jsonl has no training images, only val"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(folder: Path, how: str, why: str, form: str) -> None:
    spoil(folder, how)
    module = data(packed(folder) if form == "zip" else folder)
    with pytest.raises(InputError, match=why):
        module.setup()
    assert not module.splits


def test_no_such_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*nowhere"):
        data(tmp_path / "nowhere").setup()
    (tmp_path / "not.zip").write_text("x")
    with pytest.raises(InputError, match=r"not\.zip cannot be read"):
        data(tmp_path / "not.zip").setup()


def test_long_texts_are_cut_before_their_end(folder: Path) -> None:
    module = data(folder, max_len=8, too_long="truncate")
    (batch, *_) = batches(module.val_dataloader())
    assert batch.ids.shape[1] == 8
    assert (batch.ids[:, -1] == module.tokenizer.eos_id).all()
    assert module.split("train").longest == 8


def test_one_token_for_beginning_and_end_is_refused(folder: Path) -> None:
    file = folder / "tokenizer.json"
    made = train_tokenizer(TokenizerConfig("char"), ["ab"], mask=False, special=["<|endoftext|>"])
    made.save(file)
    module = CaptionData(str(folder), tokenizer=TokenizerConfig(file=str(file)))
    with pytest.raises(InputError, match="one token for beginning and end"):
        module.setup()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"transform": TransformConfig(mixup=0.5)}, "cannot be mixed"),
        ({"max_len": 2}, "max_len is 2"),
        ({"n_channels": 2}, "n_channels must be 1 or 3, not 2"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        CaptionData(**options)


def test_flickr8k(data_dir: Path) -> None:
    source = data_dir / "captions" / "flickr8k_900_short224.zip"
    module = CaptionData(str(source), batch_size=16, transform=TransformConfig(size=32))
    module.setup()
    sizes = {name: len(split) for name, split in module.splits.items()}
    assert sizes == {"train": 800, "val": 100, "test": 100}
    batch = next(iter(module.val_dataloader()))
    assert batch.images.shape == (16, 3, 32, 32)
    assert "rainbow" in module.tokenizer.decode(batch.ids[0].tolist())
