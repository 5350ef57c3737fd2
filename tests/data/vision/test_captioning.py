import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fourfold.data import CaptionData
from fourfold.data.loading.batches import CaptionBatch
from fourfold.data.vision.captioning import NUMBERS, SLANTS, STROKES, digit_captions
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.data.vision.sources import digits
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

COLORS = ("red", "green", "blue")


def make_records(n: int = 12) -> list[dict[str, Any]]:
    """Image k has one color, and 1 to 3 captions with the color and a number."""
    return [
        {
            "image": f"{k:02}.png",
            "split": "dev" if k % 4 == 3 else "train",
            "captions": [f"{COLORS[k % 3]} picture {k} text {j}" for j in range(1 + k % 3)],
        }
        for k in range(n)
    ]


def write_dataset(root: Path, records: list[dict[str, Any]], folder: str = "images") -> Path:
    (root / folder).mkdir(parents=True)
    for entry in records:
        k = int(entry["image"][:2])
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., k % 3] = 100 + k
        Image.fromarray(pixels).save(root / folder / entry["image"])
    text = "".join(json.dumps(entry) + "\n" for entry in records)
    (root / "captions.jsonl").write_text(text)
    return root


def pack(root: Path) -> Path:
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
        for row, ids in zip(batch.rows.tolist(), batch.ids, strict=True)
    }


def same(a: list[CaptionBatch], b: list[CaptionBatch]) -> bool:
    def equal(x: object, y: object) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else x == y

    assert len(a) == len(b)
    return all(equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "captions", make_records())


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_image_comes_with_one_of_its_captions(folder: Path, form: str) -> None:
    module = data(pack(folder) if form == "zip" else folder)
    training = [entry for entry in make_records() if entry["split"] == "train"]
    loaded = batches(module.train_dataloader())
    caption_of = texts(module, loaded)
    assert sorted(caption_of) == list(range(len(training)))
    for batch in loaded:
        for row, image in zip(batch.rows.tolist(), batch.images, strict=True):
            assert caption_of[row] in training[row]["captions"]
            assert COLORS[int(image.sum((1, 2)).argmax())] == caption_of[row].split()[0]


def test_empty_lines_are_skipped(folder: Path) -> None:
    whole = len(batches(data(folder).train_dataloader()))
    table = folder / "captions.jsonl"
    table.write_text("\n" + table.read_text() + "\n \n")
    assert len(batches(data(folder).train_dataloader())) == whole


def test_caption_runs_from_bos_to_eos(folder: Path) -> None:
    module = data(folder)
    tokenizer = module.tokenizer
    for batch in batches(module.val_dataloader()):
        for ids, mask in zip(batch.ids, batch.mask, strict=True):
            assert ids[0] == tokenizer.bos_id
            assert ids[int(mask.sum()) - 1] == tokenizer.eos_id
            assert (ids == tokenizer.eos_id).sum() == 1
            assert (ids[~mask] == tokenizer.pad_id).all()
            assert mask[: int(mask.sum())].all()


def test_evaluation_uses_the_first_caption(folder: Path) -> None:
    module = data(folder)
    module.setup()
    assert module.tests_on_val
    first = [e["captions"][0] for e in make_records() if e["split"] == "dev"]
    expected = [module.tokenizer.decode(module.tokenizer.encode(text)) for text in first]
    for epoch in (0, 3):
        for loader in (module.val_dataloader(), module.test_dataloader()):
            assert list(texts(module, batches(loader, epoch)).values()) == expected


def test_equal_seed_and_epoch_give_equal_batches(folder: Path) -> None:
    first = batches(data(folder, seed=3).train_dataloader(), 2)
    assert same(batches(data(folder, seed=3).train_dataloader(), 2), first)
    assert not same(batches(data(folder, seed=4).train_dataloader(), 2), first)


def test_every_caption_is_sampled_in_some_epoch(folder: Path) -> None:
    module = data(folder)
    seen: dict[int, set[str]] = {}
    for epoch in range(40):
        for row, text in texts(module, batches(module.train_dataloader(), epoch)).items():
            seen.setdefault(row, set()).add(text)
    training = [entry for entry in make_records() if entry["split"] == "train"]
    assert [seen[row] for row in range(len(training))] == [set(e["captions"]) for e in training]


def test_caption_depends_only_on_its_row(folder: Path) -> None:
    """Neither workers nor batch sizes change the sampled caption."""
    module = data(folder)
    split = module.split("train")
    whole = split.batch(np.arange(9), 5, 1)
    alone = split.batch(np.array([6]), 5, 7)
    length = int(alone.mask.sum())
    assert torch.equal(whole.ids[6, :length], alone.ids[0])


@pytest.mark.parametrize("done", [0, 1, 2])
def test_resume_samples_the_same_captions(folder: Path, done: int) -> None:
    module = data(folder, seed=1)
    whole = batches(module.train_dataloader(), 1)
    module.mark_trained(1, done)
    state = module.state_dict()
    resumed = data(folder, seed=1)
    resumed.load_state_dict(state)
    assert same(batches(resumed.train_dataloader(), 1), whole[done:])


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_batches_do_not_depend_on_archive_and_cache(folder: Path, form: str, cache: Any) -> None:
    plain = batches(data(folder).train_dataloader())
    module = data(pack(folder) if form == "zip" else folder, cache=cache)
    assert same(batches(module.train_dataloader()), plain)


def test_captions_of_digits_name_number_stroke_and_slant() -> None:
    for name, split in digit_captions().items():
        labels = digits()[name].labels.tolist()
        assert len(split.images) == len(labels)
        assert (split.counts == 3).all()
        for row, label in enumerate(labels):
            for text in split.texts.columns[0][3 * row : 3 * row + 3]:
                assert NUMBERS[label] in text.replace(":", " ").replace(",", " ").split()
                assert sum(word in text for word in STROKES) == 1
                assert sum(word in text for word in SLANTS) == 1
    train = digit_captions()["train"]
    for words in (STROKES, SLANTS):
        counts = [sum(word in text for text in train.texts.columns[0]) for word in words]
        assert max(counts) < 1.1 * min(counts)


def test_slant_of_a_diagonal_stroke() -> None:
    from fourfold.data.vision.captioning import _ink_and_slant
    from fourfold.data.vision.image_stores import ImageStore

    stroke = np.eye(8, dtype=np.uint8)[::-1].copy() * 255  # from below left to above right
    upright = np.zeros((8, 8), np.uint8)
    upright[:, 3] = 255
    images = [Image.fromarray(pixels) for pixels in (stroke, upright, stroke[:, ::-1])]
    slants = _ink_and_slant(ImageStore(images, np.zeros(3), ["x"], "x"))[:, 1]
    assert np.allclose(slants, [-1, 0, 1])  # the first leans right


def test_special_token_ids_of_trained_tokenizers(folder: Path) -> None:
    for kind in ("bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"):
        tokenizer = train_tokenizer(
            TokenizerConfig(kind, 300, min_frequency=1),
            [t for e in make_records() for t in e["captions"]],
            mask=False,
            special=CaptionData.special,
        )
        ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
        assert ids == (0, 1, 2, 3)
        assert tokenizer.unk_id not in tokenizer.encode("red picture 3 text 0")


def corrupt(folder: Path, defect: str) -> None:
    table = folder / "captions.jsonl"
    lines = table.read_text().split("\n")
    if defect == "image":
        (folder / "images" / "04.png").unlink()
    elif defect == "broken":
        lines[4] = lines[4][:20]
    elif defect == "split":
        lines[4] = lines[4].replace("train", "trian")
    elif defect == "column":
        lines[4] = lines[4].replace('"captions"', '"caption"')
    elif defect == "none":
        lines[4] = json.dumps({**make_records()[4], "captions": []})
    elif defect == "number":
        lines[4] = json.dumps({**make_records()[4], "captions": [7]})
    elif defect == "long":
        lines[4] = json.dumps({**make_records()[4], "captions": ["short", "very " * 30]})
    elif defect == "no train":
        lines = [line for line in lines if "train" not in line]
    table.write_text("\n".join(lines))


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("image", r"captions\.jsonl:5: there is no image images/04\.png in"),
        ("broken", r"captions\.jsonl:5: .*JSON"),
        ("split", r"jsonl:5: the split must be train, val or test, got 'trian'"),
        ("column", r"jsonl:5: column 'captions' must be .*, got None"),
        ("none", r"jsonl:5: column 'captions' must be .*, got \[\]"),
        ("number", r"jsonl:5: column 'captions' must be .*, got \[7\]"),
        ("long", r"captions\.jsonl:5: the row has \d+ tokens, but max_len allows 75"),
        ("no train", r"captions\.jsonl: there are no training images, only val"),
    ],
)
def test_invalid_record_is_named_by_its_line(
    folder: Path, defect: str, message: str, form: str
) -> None:
    corrupt(folder, defect)
    module = data(pack(folder) if form == "zip" else folder)
    with pytest.raises(InputError, match=message):
        module.setup()
    assert not module.splits


def write_flickr(folder: Path, form: str) -> list[str]:
    """Write the captions of `make_records` in a format of Flickr8k, and return the image names."""
    pairs = [(e["image"], text) for e in make_records() for text in e["captions"]]
    (folder / "captions.jsonl").unlink()
    if form == "csv":
        lines = ["image,caption", *(f'{name},"{text}, and no more"' for name, text in pairs)]
    else:
        lines = [f"{name}#{i}\t{text}" for i, (name, text) in enumerate(pairs)]
    (folder / "captions.txt").write_text("\n".join(lines) + "\n")
    return [e["image"] for e in make_records()]


def flickr(folder: Path, **options: Any) -> CaptionData:
    return data(folder, captions="captions.txt", **options)


@pytest.mark.parametrize("source", ["folder", "zip"])
@pytest.mark.parametrize("form", ["csv", "token"])
def test_flickr_formats_with_lists_of_images(folder: Path, form: str, source: str) -> None:
    names = write_flickr(folder, form)
    lists = {"train": names[:6], "val": names[6:9], "test": names[10:]}
    for split, listed in lists.items():
        (folder / f"{split}Images.txt").write_text("\n".join(listed) + "\n")
    files = {split: f"{split}Images.txt" for split in lists}
    module = flickr(pack(folder) if source == "zip" else folder, split_files=files)
    end = ", and no more" if form == "csv" else ""
    captions = {e["image"]: [text + end for text in e["captions"]] for e in make_records()}
    for split, listed in lists.items():
        assert module.references(split) == [captions[name] for name in listed]
        assert module.split(split).location(0).endswith(f"images/{listed[0]}")


def test_flickr_captions_without_lists_are_divided_by_a_seed(folder: Path) -> None:
    names = write_flickr(folder, "token")

    def parts(**options: Any) -> list[set[str]]:
        module = flickr(folder, val_fraction=0.25, test_fraction=0.25, **options)
        splits = [module.split(name) for name in ("train", "val", "test")]
        return [{Path(s.location(row)).name for row in range(len(s))} for s in splits]

    found = parts()
    assert [len(part) for part in found] == [6, 3, 3]
    assert set.union(*found) == set(names)
    assert parts() == found
    assert parts(split_seed=1) != found


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("image", r"captions\.txt:\d+: there is no image images/04\.png in"),
        ("caption", r"captions\.txt: the image images/99\.png has no caption"),
        ("listed", r"trainImages\.txt:2: the image 99\.png has no caption in .*captions\.txt"),
        ("empty", r"captions\.txt:3: the image 02\.png has an empty caption"),
        ("format", r"captions\.txt:2: the lines must be IMAGE#NUMBER, a tab and a caption, or CSV"),
        (
            "header",
            r"captions\.txt:1: the lines must be IMAGE#NUMBER, .* or CSV with image,caption",
        ),
        ("split", r"data\.split_files must be one of .* got 'trian'"),
    ],
)
def test_images_and_captions_must_belong_together(folder: Path, defect: str, message: str) -> None:
    write_flickr(folder, "token")
    table = folder / "captions.txt"
    lines, files = table.read_text().split("\n"), {}
    if defect == "image":
        (folder / "images" / "04.png").unlink()
    elif defect == "caption":
        Image.new("RGB", (8, 8)).save(folder / "images" / "99.png")
    elif defect in ("listed", "split"):
        files = {"trian" if defect == "split" else "train": "trainImages.txt"}
        (folder / "trainImages.txt").write_text("00.png\n99.png\n")
    else:
        number, line = {
            "empty": (2, "02.png#0\t "),
            "format": (1, "02.png, red"),
            "header": (0, "picture,text"),
        }[defect]
        lines[number] = line
    table.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        flickr(folder, split_files=files).setup()


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: there is no such file"):
        data(tmp_path / "nowhere").setup()
    (tmp_path / "not.zip").write_text("x")
    with pytest.raises(InputError, match=r"not\.zip: the archive cannot be read"):
        data(tmp_path / "not.zip").setup()


def test_truncated_captions_end_with_eos(folder: Path) -> None:
    module = data(folder, max_len=8, too_long="truncate")
    (batch, *_) = batches(module.val_dataloader())
    assert batch.ids.shape[1] == 8
    assert (batch.ids[:, -1] == module.tokenizer.eos_id).all()
    assert module.split("train").max_length == 8


def test_equal_bos_and_eos_are_rejected(folder: Path) -> None:
    file = folder / "tokenizer.json"
    made = train_tokenizer(TokenizerConfig("char"), ["ab"], mask=False, special=["<|endoftext|>"])
    made.save(file)
    module = CaptionData(str(folder), tokenizer=TokenizerConfig(file=str(file)))
    with pytest.raises(
        InputError, match=r"data\.tokenizer must have different tokens for BOS and EOS"
    ):
        module.setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": TransformConfig(mixup=0.5)}, "must have mixup 0 and cutmix 0"),
        ({"max_len": 2}, "max_len must be at least 3, got 2"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
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
