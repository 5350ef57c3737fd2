import pytest

from fourfold.data import MaskedTextData
from fourfold.data.loading.sampler import Position
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig

LAYOUTS = ["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
SMALL = TokenizerConfig("wordpiece", 200)


@pytest.fixture
def file(tmp_path):
    paragraphs = [
        " ".join(f"Sentence {i} of paragraph {j}." for i in range(j % 4 + 1)) for j in range(40)
    ]
    (tmp_path / "t.txt").write_text("\n\n".join(paragraphs))
    return str(tmp_path / "t.txt")


def make(file, **options):
    options = {"train": file, "val": 0.2, "tokenizer": SMALL, "max_len": 40} | options
    return MaskedTextData("files", **options)


def epoch(data, split="train", number=0):
    loader = data._loader(split, Position())
    loader.batch_sampler.set_epoch(number)
    return list(loader)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_each_layout(file, layout):
    data = make(file, layout=layout)
    specials = set(data.tokenizer.special_ids)
    for batch in epoch(data) + epoch(data, "val"):
        chosen = batch.targets != IGNORE_INDEX
        assert batch.ids.shape == batch.targets.shape
        assert batch.ids.shape[1] <= 40
        assert (batch.ids[:, 0] == data.tokenizer.bos_id).all()
        assert chosen.any(1).all()
        assert not specials & set(batch.targets[chosen].tolist())
        if batch.mask is not None:
            assert (batch.ids[~batch.mask] == data.tokenizer.pad_id).all()
            assert not chosen[~batch.mask].any()
        pairs = layout.endswith("_pairs")
        assert (batch.is_next is not None) == (batch.segments is not None) == pairs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_change_per_epoch_in_training_only(file, layout):
    data = make(file, layout=layout)

    def targets(split, number):
        return [batch.targets.tolist() for batch in epoch(data, split, number)]

    assert targets("train", 0) == targets("train", 0)
    assert targets("train", 0) != targets("train", 1)
    # Lightning also calls set_epoch on the samplers of evaluation.
    assert targets("val", 0) == targets("val", 1) == targets("val", 5)


def test_batches_do_not_depend_on_workers(file):
    for a, b in zip(*(epoch(make(file, num_workers=n)) for n in (0, 2)), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.targets.tolist() == b.targets.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "words"}, "layout must be one of full_sentences, .*, got 'words'"),
        ({"max_len": 4}, "max_len must be at least 5 .*, got 4"),
        ({"layout": "documents", "max_len": 9}, r"t.txt.*\d+: the row has \d+ tokens"),
        ({"layout": "segment_pairs", "documents": "file"}, "at least two documents"),
    ],
)
def test_invalid_option_raises(file, options, message):
    with pytest.raises(InputError, match=message):
        make(file, **options).setup()


def test_tokenizer_without_mask_token_raises(file, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(InputError, match="no mask token"):
        make(file, tokenizer=TokenizerConfig(file=str(tmp_path / "vocab.txt"))).setup()


def test_text_without_sentence_raises(file, tmp_path):
    (tmp_path / "odd.txt").write_text("\u200b\u200b")
    with pytest.raises(InputError, match=r"odd.txt.*: the val split has no sentence"):
        make(file, val=str(tmp_path / "odd.txt")).setup()
