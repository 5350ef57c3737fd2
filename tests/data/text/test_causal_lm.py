import pytest
import torch

from fourfold.core.errors import InputError
from fourfold.data import CausalTextData
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.losses import IGNORED

TEXT = "".join(f"Satz Nummer {i}, größer als {i - 1}.\n" for i in range(120))
CHARS = TokenizerConfig("char", 200)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "t.txt").write_text(TEXT, "utf-8")
    return str(tmp_path / "t.txt")


def make(file, **options):
    options = {"train": file, "val": 0.2, "tokenizer": CHARS, "block_size": 16} | options
    return CausalTextData("files", **options)


def totals(data, split):
    batches = list(data._loader(split))
    n_tokens = sum(int((b.targets != IGNORED).sum()) for b in batches)
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
def test_validation_counts_exactly_the_text(file, kind, options):
    data = make(file, tokenizer=TokenizerConfig(kind, 150), **options)
    texts = data.read()["val"].columns[0]
    n_tokens = len(data.tokenizer.encode_corpus(texts).ids) + len(texts)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert totals(data, "val") == (n_bytes, sum(len(t.split()) for t in texts), n_tokens)


def test_the_text_comes_back(file):
    data = make(file)
    batches = list(data.val_dataloader())
    targets = torch.cat([b.targets[b.targets != IGNORED] for b in batches])
    assert data.tokenizer.decode(targets) == TEXT[-round(len(TEXT) * 0.2) :]


def test_truncated_documents_count_the_share_of_their_text(file):
    data = make(file, documents="line", batching="documents", block_size=17, too_long="truncate")
    texts = data.read()["val"].columns[0]
    n_bytes, _, n_tokens = totals(data, "val")
    assert n_tokens == sum(min(len(text), 16) + 1 for text in texts)
    assert n_bytes == pytest.approx(sum(len(t[:16].encode()) for t in texts), rel=0.1)


def test_training_rows_by_batching(file):
    blocks, crops = (make(file, batching=b, batch_size=8) for b in ("blocks", "crops"))
    assert {b.ids.shape[1] for b in blocks.train_dataloader()} == {16}
    assert abs(blocks.n_train_batches() - crops.n_train_batches()) <= 1
    documents = make(file, documents="line", batching="documents", block_size=64, batch_size=4)
    for batch in documents.train_dataloader():
        assert batch.ids.numel() <= 4 * 64
    assert next(iter(blocks.train_dataloader())).documents is None
    marked = next(iter(make(file, mark_documents=True).train_dataloader()))
    assert marked.documents.shape == marked.ids.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching": "words"}, "not 'words'"),
        ({"block_size": 0}, "block_size=0"),
        ({"eval_context": 16}, "eval_context=16"),
        ({"batching": "crops", "block_size": 99_999}, "too few for crops of 99999"),
        (
            {"documents": "line", "batching": "documents"},
            r"t.txt, non-empty line \d+ has \d+ tokens, but block_size allows 15",
        ),
    ],
)
def test_bad_options(file, options, message):
    with pytest.raises(InputError, match=message):
        make(file, **options).setup()


def test_embedded_needs_nothing():
    data = CausalTextData(tokenizer=CHARS, block_size=256)
    texts = data.read()["test"].columns[0]
    assert totals(data, "test")[0] == sum(len(text.encode()) for text in texts)


def test_tiny_shakespeare(data_dir):
    file = f"{data_dir}/lm/tinyshakespeare/input.txt.gz"
    data = CausalTextData("files", train=file, val=0.1, tokenizer=CHARS, block_size=256)
    assert data.vocab_size == 65 + 4
    assert totals(data, "val") == (111_539, 20_152, 111_540)
