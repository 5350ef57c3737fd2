from functools import cache

import numpy as np
import pytest

from fourfold.data import MaskedTextData
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.loading.sampler import EpochSampler, Position
from fourfold.data.text.masked_lm import MaskedRowDataset, pack_sentences
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.data.text.next_sentence import SegmentPairDataset
from fourfold.data.text.packing import Sentences
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

BOS, EOS = 1, 2


@cache
def masking(dupe_factor=0) -> Masking:
    alphabet = [chr(0x4E00 + i) for i in range(300)]
    tokenizer = train_tokenizer(TokenizerConfig("char", 305), ["".join(alphabet)], mask=True)
    return Masking(MaskingConfig(dupe_factor=dupe_factor), tokenizer, 0)


def make_sentences(documents):
    """Sentences of distinct tokens from 5, given the lengths of the sentences per document."""
    lengths = np.array([n for document in documents for n in document])
    starts = np.cumsum([0, *map(len, documents)])
    return Sentences(RaggedArray.from_lengths(np.arange(5, 5 + lengths.sum()), lengths), starts)


def epoch_of(dataset, number=0):
    sampler = EpochSampler(dataset.order)
    sampler.set_epoch(number)
    return [dataset.__getitems__(keys) for keys in sampler]


def row_dataset(rows, max_rows, *, shuffle=True, **options):
    order = LengthBucketedOrder(rows.lengths, max_rows=max_rows, shuffle=shuffle)
    return MaskedRowDataset(rows, masking(), order, **options)


def pair_dataset(sentences, max_len, masking, single=False, **options):
    dataset = SegmentPairDataset(sentences, max_len, masking, single)
    dataset.order = LengthBucketedOrder(np.ones(len(dataset.chunks) - 1), **options)
    return dataset


def unmasked(batch):
    return np.where(batch.targets != IGNORE_INDEX, batch.targets, batch.ids)


def test_full_sentences_have_separator_between_documents():
    rows = pack_sentences(
        make_sentences([[2, 2], [1, 3]]), 8, masking().tokenizer, cross_documents=True
    )
    assert [rows[i].tolist() for i in range(len(rows))] == [
        [BOS, 5, 6, 7, 8, EOS, 9, EOS],
        [BOS, 10, 11, 12, EOS],
    ]


def test_doc_sentences_end_with_their_document():
    rows = pack_sentences(
        make_sentences([[2, 2], [1, 3]]), 8, masking().tokenizer, cross_documents=False
    )
    assert [rows[i].tolist() for i in range(len(rows))] == [
        [BOS, 5, 6, 7, 8, EOS],
        [BOS, 9, 10, 11, 12, EOS],
    ]


def test_packing_keeps_every_token_within_max_len():
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 9, rng.integers(1, 7)).tolist() for _ in range(20)]
    for cross in (True, False):
        rows = pack_sentences(
            make_sentences(documents), 12, masking().tokenizer, cross_documents=cross
        )
        assert rows.lengths.max() <= 12
        ids = np.concatenate([rows[i] for i in range(len(rows))])
        assert rows.lengths.sum() == len(ids)
        assert ids[ids > 4].tolist() == list(range(5, 5 + sum(map(sum, documents))))


def test_row_batches_have_mask_and_documents():
    rows = pack_sentences(
        make_sentences([[2, 2], [1, 3]]), 8, masking().tokenizer, cross_documents=True
    )
    dataset = row_dataset(rows, 2, shuffle=False, block_cross_document_attention=True)
    (batch,) = epoch_of(dataset)
    short, full = 0, 1  # sorted by length
    assert batch.mask[full].all()
    assert batch.mask[short].tolist() == [True] * 5 + [False] * 3
    assert batch.documents[full].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert unmasked(batch)[full].tolist() == rows[0].tolist()
    assert (batch.targets[~batch.mask] == IGNORE_INDEX).all()
    assert epoch_of(row_dataset(rows, 1, shuffle=False))[0].mask is None


def test_target_positions_index_the_targets():
    sentences = make_sentences([[9, 12, 7, 10]] * 6)
    rows = pack_sentences(sentences, 20, masking().tokenizer, cross_documents=False)
    pairs = pair_dataset(sentences, 24, masking(), max_rows=3)
    for batch in (*epoch_of(row_dataset(rows, 3)), *epoch_of(pairs)):
        assert len(batch.target_positions)
        assert (
            batch.target_positions.tolist()
            == np.flatnonzero(batch.targets != IGNORE_INDEX).tolist()
        )


DOCUMENTS = [[3, 4, 2, 5, 1, 2], [6, 2], [4], [1, 1, 1, 1, 1, 1, 1, 1], [7, 5, 3]]


@pytest.mark.parametrize("max_len", [9, 12, 20, 40])
def test_segment_pairs_are_consecutive_or_of_two_documents(max_len):
    sentences = make_sentences(DOCUMENTS)
    sentences = Sentences(sentences.ids.truncate(max_len - 4), sentences.starts)
    owner = {
        token: document
        for row, document in enumerate(sentences.document.tolist())
        for token in sentences.ids[row].tolist()
    }
    dataset = pair_dataset(sentences, max_len, masking(), max_rows=3, seed=1)
    seen = {True: 0, False: 0}
    starts = set()
    for number in range(40):
        for batch in epoch_of(dataset, number):
            assert batch.ids.shape[1] <= max_len
            mask = np.ones(batch.ids.shape, bool) if batch.mask is None else batch.mask.numpy()
            for ids, segments, real, follows in zip(
                unmasked(batch), batch.segments.numpy(), mask, batch.is_next.tolist(), strict=True
            ):
                ids, segments = ids[real].tolist(), segments[real].tolist()
                middle = ids.index(EOS)
                a, b = ids[1:middle], ids[middle + 1 : -1]
                assert [ids[0], ids[middle], ids[-1]] == [BOS, EOS, EOS]
                assert a
                assert b
                assert segments == [0] * (middle + 1) + [1] * (len(b) + 1)
                assert len({owner[t] for t in a}) == len({owner[t] for t in b}) == 1
                if follows:
                    # Truncation removed no token between A and B.
                    order = sentences.ids.ids.tolist()
                    assert order.index(b[0]) == order.index(a[-1]) + 1
                    assert owner[a[0]] == owner[b[0]]
                else:
                    assert owner[a[0]] != owner[b[0]]
                seen[bool(follows)] += 1
                starts.add(b[0])
    assert len(starts) > 8
    single = sum(np.diff(dataset.chunks) == 1) / len(dataset)
    assert seen[True] / sum(seen.values()) == pytest.approx((1 - single) / 2, abs=0.12)


@pytest.mark.parametrize("n_sentences", [12, 200])
def test_length_and_last_token_do_not_predict_next_sentence_label(n_sentences):
    rng = np.random.default_rng(0)
    documents = [rng.integers(3, 13, n_sentences).tolist() for _ in range(6000 // n_sentences)]
    sentences = make_sentences(documents)
    ends = set(sentences.ids.ids[sentences.ids.offsets[1:] - 1].tolist())
    dataset = pair_dataset(sentences, 40, masking(), max_rows=1)
    labels: dict[tuple[int, bool], list[bool]] = {}
    for row in range(len(dataset.chunks) - 1):
        a, b, follows = dataset._pair(row, rng.random(4))
        labels.setdefault((len(a) + len(b), int(b[-1]) in ends), []).append(follows)
    n, positives = sum(map(len, labels.values())), sum(map(sum, labels.values()))
    best = sum(max(sum(found), len(found) - sum(found)) for found in labels.values())
    assert best / n < max(positives, n - positives) / n + 0.1


def test_sentence_pairs_have_two_whole_sentences():
    sentences = make_sentences(DOCUMENTS)
    dataset = pair_dataset(sentences, 20, masking(), single=True, max_rows=99)
    assert dataset.chunks.tolist() == [0, 2, 4, 6, 8, 9, 11, 13, 15, 17, 19, 20]
    whole = {tuple(sentences.ids[row].tolist()) for row in range(len(sentences))}
    for number in range(5):
        (batch,) = epoch_of(dataset, number)
        for row, ids in enumerate(unmasked(batch).tolist()):
            middle = ids.index(EOS)
            end = ids.index(EOS, middle + 1)
            assert {tuple(ids[1:middle]), tuple(ids[middle + 1 : end])} <= whole
            follows = bool(batch.is_next[row])
            assert (ids[middle + 1] == ids[middle - 1] + 1) == follows


def test_pairs_change_per_epoch_unless_masks_are_static():
    sentences = make_sentences(DOCUMENTS)
    datasets = [pair_dataset(sentences, 20, masking(s), max_rows=99) for s in (0, 2)]
    rows = np.arange(len(datasets[0]))
    dynamic, static = ([d.batch(rows, e, 1).ids.tolist() for e in range(3)] for d in datasets)
    assert dynamic[0] != dynamic[2]
    assert static[0] == static[2]
    assert static[0] != static[1]


def test_next_sentence_prediction_of_one_document_raises():
    with pytest.raises(InputError, match="at least two documents"):
        pair_dataset(make_sentences([[3, 4]]), 20, masking(), max_rows=2)


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
        ({"max_len": 4}, "max_len must be at least 5, got 4"),
        ({"layout": "documents", "max_len": 9}, r"t.txt.*\d+: the row has \d+ tokens"),
        ({"layout": "segment_pairs", "documents": "file"}, "at least two documents"),
    ],
)
def test_invalid_option_raises(file, options, message):
    with pytest.raises(InputError, match=message):
        make(file, **options).setup()


def test_tokenizer_without_mask_token_raises(file, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(InputError, match="must contain a mask token"):
        make(file, tokenizer=TokenizerConfig(file=str(tmp_path / "vocab.txt"))).setup()


def test_text_without_sentence_raises(file, tmp_path):
    (tmp_path / "odd.txt").write_text("\u200b\u200b")
    with pytest.raises(InputError, match=r"odd.txt.*: the val split has no sentence"):
        make(file, val=str(tmp_path / "odd.txt")).setup()
