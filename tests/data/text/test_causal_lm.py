from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data import CausalTextData
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.loading.sampler import EpochSampler, Position
from fourfold.data.text.causal_lm import BlockDataset, DocumentDataset
from fourfold.data.text.packing import TokenStream
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig

EOS = 2
documents_of = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def make_stream(lengths):
    """Documents of distinct tokens, with one word of three bytes and a space for each token."""
    ids = np.arange(10, 10 + sum(lengths))
    documents = RaggedArray.from_lengths(ids, np.array(lengths))
    return documents, ["äx " * n for n in lengths]


def stream_of(lengths):
    documents, texts = make_stream(lengths)
    terminated = documents.wrap(after=EOS)
    sizes = [0, *accumulate(len(text.encode()) for text in texts)]
    words = [0, *accumulate(lengths)]
    ids = np.concatenate([[EOS], terminated.ids])
    return TokenStream(ids, terminated.offsets, np.array(sizes), np.array(words))


def blocks(stream, block_size, context=0, **order_options):
    order = LengthBucketedOrder(np.ones(stream.n_blocks(block_size, context)), **order_options)
    return BlockDataset(stream, block_size, order, context)


def epoch(dataset, number=0):
    sampler = EpochSampler(dataset.order)
    sampler.set_epoch(number)
    return [dataset.__getitems__(keys) for keys in sampler]


@given(documents_of, st.integers(2, 9), st.integers(0, 8), st.booleans())
@settings(max_examples=120, deadline=None)
def test_blocks_contain_every_token_and_count_every_byte_once(lengths, block, context, shuffle):
    context = min(context, block - 1)
    dataset = blocks(stream_of(lengths), block, context, max_rows=2, shuffle=shuffle)
    batches = epoch(dataset)
    counted = torch.cat([b.targets[b.targets != IGNORE_INDEX] for b in batches]).tolist()
    tokens = list(range(10, 10 + sum(lengths)))
    assert sorted(counted) == sorted([*tokens, *[EOS] * len(lengths)])
    assert sum(b.n_bytes for b in batches) == 4 * sum(lengths)
    assert sum(b.n_words for b in batches) == sum(lengths)
    for batch in batches:
        assert batch.ids.shape == batch.targets.shape == (len(batch.ids), block)
        assert (batch.targets != IGNORE_INDEX).any(1).all()


@given(documents_of, st.integers(2, 9), st.integers(0, 8))
@settings(max_examples=80, deadline=None)
def test_targets_are_next_tokens_and_context_is_input(lengths, block, context):
    context = min(context, block - 1)
    stream = stream_of(lengths)
    dataset = blocks(stream, block, context, max_rows=1, shuffle=False)
    flat = stream.ids.tolist()
    for number, batch in enumerate(epoch(dataset)):
        begin = number * (block - context)
        for j in range(block):
            if batch.targets[0, j] != IGNORE_INDEX:
                assert batch.ids[0, : j + 1].tolist() == flat[begin : begin + j + 1]
                assert batch.targets[0, j] == flat[begin + j + 1]
                assert j >= context or number == 0


@given(documents_of, st.integers(2, 9))
@settings(max_examples=80, deadline=None)
def test_document_includes_separator_before_its_first_token(lengths, block):
    dataset = blocks(stream_of(lengths), block, max_rows=3, shuffle=False)
    dataset.block_cross_document_attention = True
    document_of = np.repeat(np.arange(len(lengths)), lengths)  # document of token 10, 11, ...
    for batch in epoch(dataset):
        for ids, targets, documents in zip(batch.ids, batch.targets, batch.documents, strict=True):
            for token, target, document in zip(
                ids.tolist(), targets.tolist(), documents.tolist(), strict=True
            ):
                if target >= 10:
                    assert document == document_of[target - 10]
                if token >= 10 and target != IGNORE_INDEX:
                    assert document == document_of[token - 10]
            padding = set(documents[targets == IGNORE_INDEX].tolist())
            assert not padding & set(documents[targets != IGNORE_INDEX].tolist())


def test_crops_start_at_random_positions_in_every_epoch():
    dataset = blocks(stream_of([200]), 8, seed=1, max_rows=4)
    dataset.crops = True
    rows = [
        (row[0].item(), targets.tolist())
        for number in range(8)
        for batch in epoch(dataset, number)
        for row, targets in zip(batch.ids, batch.targets, strict=True)
    ]
    assert len(rows) == 8 * 26
    starts = {start for start, _ in rows}
    assert len(starts) > 100
    assert {start % 8 for start in starts} == set(range(8))
    assert all(len(targets) == 8 and IGNORE_INDEX not in targets for _, targets in rows)
    assert {EOS, *range(10, 210)} == {t for _, targets in rows for t in targets}  # both ends too
    again = [b.ids.tolist() for b in epoch(dataset, 3)]
    assert again == [b.ids.tolist() for b in epoch(dataset, 3)]
    assert again != [b.ids.tolist() for b in epoch(dataset, 4)]


@given(documents_of, st.booleans())
@settings(max_examples=80, deadline=None)
def test_document_rows_run_from_eos_to_eos(lengths, shuffle):
    sizes = np.array(lengths)
    order = LengthBucketedOrder(sizes + 1, max_tokens=40, shuffle=shuffle)
    stream = stream_of(lengths)
    counts = np.stack([4 * sizes, sizes])
    dataset = DocumentDataset(stream.ids, stream.offsets[:-1], sizes, counts, EOS, order)
    seen = []
    for batch in epoch(dataset):
        assert batch.ids.numel() <= 40
        for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
            real = [t for t in targets if t != IGNORE_INDEX]
            assert ids[: len(real)] == [EOS, *real[:-1]]
            assert real[-1] == EOS
            assert targets[len(real) :] == [IGNORE_INDEX] * (len(targets) - len(real))
            seen += real[:-1]
    assert sorted(seen) == list(range(10, 10 + sum(lengths)))


@pytest.mark.parametrize("n_documents", [1, 3])
def test_byte_count_of_slice_is_proportional_to_its_tokens(n_documents):
    stream = stream_of([40] * n_documents)
    for begin, end in ((0, 10), (7, 31), (0, len(stream))):
        n_bytes, n_words = stream.count_bytes_and_words(np.array([begin]), np.array([end]))
        share = (end - begin) * 40 / 41  # a token in 41 is an EOS
        assert n_bytes == pytest.approx(4 * share, abs=5)
        assert n_words == pytest.approx(share, abs=2)


TEXT = "".join(f"Satz Nummer {i}, größer als {i - 1}.\n" for i in range(120))
CHARS = TokenizerConfig("char", 200)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "t.txt").write_text(TEXT, "utf-8")
    return str(tmp_path / "t.txt")


def make(file, **options):
    options = {"train": file, "val": 0.2, "tokenizer": CHARS, "block_size": 16} | options
    return CausalTextData("files", **options)


def count_bytes_words_tokens(data, split):
    batches = list(data._loader(split, Position()))
    n_tokens = sum(int((b.targets != IGNORE_INDEX).sum()) for b in batches)
    return sum(b.n_bytes for b in batches), sum(b.n_words for b in batches), n_tokens


@pytest.mark.parametrize("kind", ["char", "bpe", "byte_bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batching": "crops"},
        {"eval_context": 5},
        {"documents": "line", "block_size": 64},
        {"documents": "line", "batching": "documents", "block_size": 64},
    ],
)
def test_validation_counts_add_up_to_the_text(file, kind, options):
    data = make(file, tokenizer=TokenizerConfig(kind, 150), **options)
    texts = list(data.read()["val"])
    n_tokens = len(RaggedArray.from_lengths(*data.tokenizer.encode_corpus(texts)).ids) + len(texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert count_bytes_words_tokens(data, "val") == (
        n_bytes,
        sum(len(t.split()) for t in texts),
        n_tokens,
    )


def test_targets_of_validation_decode_to_the_text(file):
    data = make(file)
    batches = list(data.val_dataloader())
    targets = torch.cat([b.targets[b.targets != IGNORE_INDEX] for b in batches])
    assert data.tokenizer.decode(targets) == TEXT[-round(len(TEXT) * 0.2) :]


def test_truncated_documents_count_fraction_of_their_text(file):
    data = make(file, documents="line", batching="documents", block_size=17, too_long="truncate")
    texts = list(data.read()["val"])
    n_bytes, _, n_tokens = count_bytes_words_tokens(data, "val")
    assert n_tokens == sum(min(len(text), 16) + 1 for text in texts)
    assert n_bytes == pytest.approx(sum(len(t[:16].encode()) for t in texts), rel=0.1)


def test_shapes_of_training_batches_by_batching(file):
    blocks, crops = (make(file, batching=b, batch_size=8) for b in ("blocks", "crops"))
    assert {b.ids.shape[1] for b in blocks.train_dataloader()} == {16}
    assert abs(blocks.n_train_batches() - crops.n_train_batches()) <= 1
    documents = make(file, documents="line", batching="documents", block_size=64, batch_size=4)
    for batch in documents.train_dataloader():
        assert batch.ids.numel() <= 4 * 64
    assert next(iter(blocks.train_dataloader())).documents is None
    marked = next(iter(make(file, block_cross_document_attention=True).train_dataloader()))
    assert marked.documents.shape == marked.ids.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"block_size": None}, "block_size must be given for a model without max_len"),
        ({"eval_context": 16}, "eval_context must be at least 0 and below 16, got 16"),
        (
            {"batching": "crops", "block_size": 99_999},
            r"t.txt.*has \d+ tokens, fewer than block_size=99999",
        ),
        (
            {"documents": "line", "batching": "documents"},
            r"t.txt.*\d+: the row has \d+ tokens, but block_size allows 15",
        ),
    ],
)
def test_invalid_option_raises(file, options, message):
    with pytest.raises(InputError, match=message):
        make(file, **options).setup()


def test_builtin_source_needs_no_option():
    data = CausalTextData(tokenizer=CHARS, block_size=256)
    texts = data.read()["test"]
    assert count_bytes_words_tokens(data, "test")[0] == sum(len(text.encode()) for text in texts)


def test_tiny_shakespeare_counts(data_dir):
    file = f"{data_dir}/lm/tinyshakespeare/input.txt.gz"
    data = CausalTextData("files", train=file, val=0.1, tokenizer=CHARS, block_size=256)
    assert data.vocab_size == 65 + 4
    assert count_bytes_words_tokens(data, "val") == (111_539, 20_152, 111_540)
