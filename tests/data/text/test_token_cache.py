"""Token cache: batches equal those of texts in memory, second starts, sources, workers."""

import functools
import json
import operator
import random
import string
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from fourfold.data import CausalTextData, MaskedTextData
from fourfold.data.loading.array_cache import cached_arrays
from fourfold.data.readers.documents import Documents
from fourfold.data.readers.hf_datasets import HubConfig
from fourfold.data.text import token_cache
from fourfold.data.text.packing import Sentences
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

WORDS = [
    "the",
    "cat",
    "größer",
    "x.",
    "End!",
    "why?",
    '"so."',
    "日本",
    "\u2028",
    "\x85",
    "(ok.)",
    "I",
]
SPACES = [" ", " ", " ", "\n", "\n\n", "\r\n", "\n \n", "  ", ". \n\n ", "\r", "\n\n\n"]


def write_text(file, seed, n_words=300):
    rng = random.Random(seed)
    text = "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(n_words))
    file.write_text(text, "utf-8", newline="")
    return str(file)


@pytest.fixture
def small_pieces(monkeypatch):
    """Divide texts into pieces, blocks and lists so small that every boundary occurs."""
    monkeypatch.setattr("fourfold.data.readers.documents._PIECE_CHARS", 10)
    monkeypatch.setattr("fourfold.text_files._BLOCK_CHARS", 7)
    monkeypatch.setattr("fourfold.data.text.packing._PACKED_TOGETHER", 5)
    monkeypatch.setattr(token_cache, "_CONTEXT", 25)
    monkeypatch.setattr(token_cache, "_ITEM_CHARS", 300)
    monkeypatch.setattr(token_cache, "_CHARS_PER_PIECE", 1)


def in_memory(data):
    data.cached = lambda split, options, produce: cached_arrays(None, "", produce)
    return data


def batches(data):
    found = []
    for name in ("train", "val", "test"):
        dataset = data.split(name)
        for epoch in (0, 1):
            for rows in dataset.order.batches(epoch):
                batch = dataset.batch(rows, epoch, 1)
                found.append([x.tolist() if isinstance(x, torch.Tensor) else x for x in batch])
    return found


OPTIONS = [
    (CausalTextData, {"block_size": 17, "block_cross_document_attention": True}),
    (CausalTextData, {"block_size": 9, "batching": "crops", "eval_context": 3}),
    (CausalTextData, {"block_size": 30, "batching": "documents", "too_long": "drop"}),
    (MaskedTextData, {"max_len": 20}),
    (MaskedTextData, {"max_len": 12, "layout": "doc_sentences", "sentences": "line"}),
    (MaskedTextData, {"max_len": 16, "layout": "segment_pairs"}),
    (MaskedTextData, {"max_len": 16, "layout": "sentence_pairs", "sentences": "line"}),
    (MaskedTextData, {"max_len": 30, "layout": "documents", "too_long": "truncate"}),
]


@pytest.mark.parametrize(
    ("number", "kind", "documents"),
    [
        *((i, ("char", "bpe", "byte_bpe", "wordpiece")[i % 4], "file") for i in range(8)),
        *((i, ("byte_bpe", "char", "wordpiece", "bpe")[i % 4], "paragraph") for i in range(8)),
        (2, "bpe", "line"),
        (5, "byte_bpe", "line"),
    ],
)
def test_batches_equal_those_without_cache(tmp_path, request, number, kind, documents):
    cls, options = OPTIONS[number]
    if options.get("too_long") == "drop" and documents == "file":
        options = options | {"too_long": "truncate"}  # all documents are too long
    files = [write_text(tmp_path / f"{i}.txt", i) for i in range(5)]
    made = {
        "train": files[:3],
        "val": files[3:] if documents == "file" else 0.3,
        "test": files[1:3] if documents == "file" else 0.3,
        "tokenizer": TokenizerConfig(kind, 300, min_frequency=1),
        "documents": documents,
        "batch_size": 3,
        "too_long": "truncate",
    } | options
    expected = batches(in_memory(cls("files", **made)))
    request.getfixturevalue("small_pieces")
    folder = str(tmp_path / "cache")
    assert batches(cls("files", **made, cache_dir=folder)) == expected
    assert batches(cls("files", **made, cache_dir=folder)) == expected  # from the files


SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]


def like_llama_2(backend):
    """Put a "▁" before each text, and let tokens cross from one word to the next."""
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(steps)


def like_longformer(backend):
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def like_llama_3(backend):
    pattern = r" ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+|\p{N}"
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "kind", ["char", "bpe", "byte_bpe", "wordpiece", like_llama_2, like_longformer, like_llama_3]
)
def test_arrays_equal_those_of_complete_documents(tmp_path, kind):
    files = [write_text(tmp_path / f"{i}.txt", i) for i in range(4)]
    if isinstance(kind, str):
        config = TokenizerConfig(kind, 300, min_frequency=1)
    else:
        backend = Backend(models.BPE(unk_token="<unk>"))
        kind(backend)
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train(files, trainer)
        backend.save(str(tmp_path / "tokenizer.json"))
        config = TokenizerConfig(file=str(tmp_path / "tokenizer.json"))
    data = CausalTextData("files", train=files, tokenizer=config, cache_dir=str(tmp_path / "cache"))
    texts = list(data.read()["train"])
    tokenizer = data.tokenizer
    pieces = list(data.read()["train"].pieces(token_cache.token_cut(tokenizer)))
    assert len(pieces) > 100
    assert "".join(piece.text + piece.gap for piece in pieces) == "".join(texts)
    stream = data.split("train").stream
    encoded = [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
    assert stream.ids.tolist() == [tokenizer.eos_id, *functools.reduce(operator.iadd, encoded, [])]
    assert stream.offsets.tolist() == [0, *accumulate(map(len, encoded))]
    assert stream.bytes_before.tolist() == [0, *accumulate(len(t.encode()) for t in texts)]
    assert stream.words_before.tolist() == [0, *accumulate(len(t.split()) for t in texts)]
    for sep in ("line", "punctuation"):
        expected = Sentences.from_texts(texts, tokenizer, sep, 9)
        parts = token_cache.sentence_arrays(data.read()["train"], tokenizer, sep, 9, 0)
        arrays = cached_arrays(None, "", lambda parts=parts: parts)
        assert arrays["ids"].tolist() == expected.ids.ids.tolist()
        assert arrays["offsets"].tolist() == expected.ids.offsets.tolist()
        assert arrays["starts"].tolist() == expected.starts.tolist()


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"])
@given(st.text("abcdé .,\n\t日\u2028<", max_size=300))
@settings(max_examples=30, deadline=None)
def test_pieces_have_the_ids_of_the_text(kind, text):
    corpus = ["a b, bad dé. 日 <a>\n\nbc  cb\tda " * 9]
    tokenizer = train_tokenizer(TokenizerConfig(kind, 40), corpus, mask=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fourfold.data.readers.documents._PIECE_CHARS", 5)
        patch.setattr(token_cache, "_CONTEXT", 20)
        documents = Documents(lambda: [("x", (text[:99], text[99:]))])
        pieces = list(documents.pieces(token_cache.token_cut(tokenizer)))
    assert "".join(piece.text + piece.gap for piece in pieces) == text
    ids = tokenizer.encode_batch([piece.text for piece in pieces])
    assert functools.reduce(operator.iadd, ids, []) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "word", "char"])
def test_tokenizers_are_the_same_when_trained_on_pieces(kind, monkeypatch):
    text = "".join(f"{WORDS[i * i % 11]}{SPACES[i % 11]}" for i in range(999))
    config = TokenizerConfig(kind, 300, min_frequency=1)
    expected = train_tokenizer(config, [text], mask=False).to_str()
    monkeypatch.setattr("fourfold.data.readers.documents._PIECE_CHARS", 10)
    documents = Documents(lambda: [("x", (text,))])
    texts = token_cache.divided_texts(documents, metaspace=kind == "bpe")
    assert len(list(texts)) > 100
    assert train_tokenizer(config, texts, mask=False).to_str() == expected


FORMS = {
    "paragraphs": "\n\n".join(f"Paragraph {i} has 12 words. And more 日本" for i in range(2000)),
    "one line": "Words that have neither a line end nor a full stop " * 2000,
    "no space": "\n\n".join(["日本語のテキスト。"] * 10_000),
    "short lines": "A line.\n" * 10_000,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cls", [CausalTextData, MaskedTextData])
@pytest.mark.parametrize("documents", ["file", "paragraph", "line"])
def test_no_piece_is_long(tmp_path, monkeypatch, form, cls, documents):
    monkeypatch.setattr("fourfold.data.readers.documents._PIECE_CHARS", 500)
    monkeypatch.setattr("fourfold.text_files._BLOCK_CHARS", 200)
    monkeypatch.setattr(token_cache, "_SENTENCE_CHARS", 1000)
    (tmp_path / "t.txt").write_text(FORMS[form])
    longest = []
    encode_batch = Tokenizer.encode_batch

    def examined(self, texts):
        longest.append(max(map(len, texts)))
        return encode_batch(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", examined)
    config = TokenizerConfig("byte_bpe", 300)
    options = {"documents": documents, "cache_dir": str(tmp_path / "cache")}
    cls("files", train=str(tmp_path / "t.txt"), tokenizer=config, **options).setup()
    assert 0 < max(longest) < 2500


@pytest.mark.usefixtures("small_pieces")
def test_workers_write_the_same_arrays_and_leave_random_numbers(tmp_path):
    file = write_text(tmp_path / "t.txt", 0, 2000)
    streams = []
    for n in (0, 2):
        data = CausalTextData("files", train=file, num_workers=n, cache_dir=str(tmp_path / str(n)))
        before = torch.get_rng_state()
        data.setup()
        assert torch.equal(torch.get_rng_state(), before)
        streams.append(data.split("train").stream.ids.tolist())
    assert streams[0] == streams[1]


def test_second_start_reads_the_cache_and_changes_make_a_new_one(tmp_path, monkeypatch):
    file = write_text(tmp_path / "t.txt", 0)
    folder = tmp_path / "cache"

    def keys(**options):
        made = {"train": file, "val": 0.3, "documents": "paragraph", "cache_dir": str(folder)}
        CausalTextData("files", **made | options).prepare_data()
        return {path.name for path in folder.iterdir() if path.is_dir()}

    first = keys()
    assert len(first) == 3  # tokenizer, train, val
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "_encode_stream", None)
        patch.setattr("fourfold.data.text.base.make_tokenizer", None)
        assert keys() == first
        assert keys(block_size=7, batch_size=2, seed=3, num_workers=2) == first
    assert len(keys(tokenizer=TokenizerConfig("char")) - first) == 3
    assert len(keys(val=0.31)) == 3 + 3 + 3
    assert len(keys(documents="line")) == 3 + 3 + 3 + 3
    (tmp_path / "t.txt").write_text((tmp_path / "t.txt").read_text() + "\n\nMore text.")
    assert len(keys()) == 5 * 3


def test_train_rows_do_not_change_a_validation_split_of_the_same_file(tmp_path):
    file = write_text(tmp_path / "t.txt", 0)
    made = {"train": file, "val": file, "documents": "line", "batching": "documents"}
    data = CausalTextData("files", train_rows=3, **made)
    assert len(data.split("train")) == 3
    assert len(data.split("val")) > 3


def test_built_in_data_need_no_file(tmp_path):
    data = CausalTextData(tokenizer=TokenizerConfig("char"), cache_dir=str(tmp_path / "cache"))
    data.prepare_data()
    data.setup()
    assert not (tmp_path / "cache").exists()


TEXTS = [f"Row {i} holds a text.\nIts second line is {'long ' * i}" for i in range(30)]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hub"])
def test_rows_of_tables_and_datasets_are_documents(tmp_path, form):
    if form == "jsonl":
        rows = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
        (tmp_path / "t.jsonl").write_text(rows)
        source = {"source": "files", "train": str(tmp_path / "t.jsonl")}
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        pytest.importorskip("datasets")
        import pyarrow

        file = str(tmp_path / "t.parquet")
        parquet.write_table(pyarrow.table({"body": TEXTS, "other": [1] * len(TEXTS)}), file)
        source = {"source": "files", "train": file}
        if form == "hub":
            hub = HubConfig("parquet", options={"data_files": file, "cache_dir": str(tmp_path)})
            source = {"source": "hub", "train": "train", "hub": hub}
    made = {"column": "body", "tokenizer": TokenizerConfig("char"), "block_size": 8}
    for _ in range(2):
        data = CausalTextData(**source, **made, cache_dir=str(tmp_path / "cache"))
        stream = data.split("train").stream
        documents = np.split(stream.ids[1:], stream.offsets[1:-1])
        assert [data.tokenizer.decode(ids) for ids in documents] == TEXTS
    with pytest.raises(InputError, match="missing"):
        CausalTextData(**source, **made | {"column": "missing"}).setup()


@pytest.fixture
def tokenizer_file(tmp_path):
    tokenizer = train_tokenizer(TokenizerConfig("char", 60), [*TEXTS, string.printable], mask=False)
    tokenizer.save(tmp_path / "tokenizer.json")
    return str(tmp_path / "tokenizer.json"), tokenizer


def test_bin_files_are_mapped_as_they_are(tmp_path, tokenizer_file):
    file, tokenizer = tokenizer_file
    rows = [[*tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
    ids = np.array(functools.reduce(operator.iadd, rows, []), np.uint16)
    ids.tofile(tmp_path / "t.bin")
    data = CausalTextData(
        "files",
        train=str(tmp_path / "t.bin"),
        tokenizer=TokenizerConfig(file=file),
        block_size=16,
        block_cross_document_attention=True,
        cache_dir=str(tmp_path / "cache"),
    )
    dataset = data.split("train")
    assert len(dataset) == -(-(len(ids) - 1) // 16)
    batch = dataset.batch(np.arange(len(dataset)), 0, 1)
    assert batch.ids.flatten()[: len(ids) - 1].tolist() == ids[:-1].tolist()
    assert batch.targets.flatten()[: len(ids) - 1].tolist() == ids[1:].tolist()
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    assert batch.documents.flatten()[: len(ids) - 1].tolist() == owners[1:].tolist()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"\1\0\2", {}, "must be a file of two or more uint16, got 3 bytes"),
        (b"\1\0\xff\xff", {}, "has id 65535, but the tokenizer has 60 entries"),
        (b"\1\0\2\0", {"val": 0.1}, "must each be one .bin file"),
        (b"\1\0\2\0", {"batching": "documents"}, "batching must be one of blocks, crops"),
        (b"\1\0\2\0", {"tokenizer": TokenizerConfig()}, r"tokenizer\.file must name the tokenizer"),
    ],
)
def test_invalid_bin_file_raises(tmp_path, tokenizer_file, content, options, message):
    (tmp_path / "t.bin").write_bytes(content)
    made = {"train": str(tmp_path / "t.bin"), "tokenizer": TokenizerConfig(file=tokenizer_file[0])}
    with pytest.raises(InputError, match=message):
        CausalTextData("files", **made | options).setup()
