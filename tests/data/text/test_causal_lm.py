import pytest
import torch

from fourfold.data import CausalTextData
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.loading.sampler import Position
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig

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
    texts = data.read()["val"].columns[0]
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
    texts = data.read()["val"].columns[0]
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
        ({"batching": "words"}, "batching must be one of blocks, crops, documents, got 'words'"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"eval_context": 16}, "eval_context .* below block_size=16, got 16"),
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
    texts = data.read()["test"].columns[0]
    assert count_bytes_words_tokens(data, "test")[0] == sum(len(text.encode()) for text in texts)


def test_tiny_shakespeare_counts(data_dir):
    file = f"{data_dir}/lm/tinyshakespeare/input.txt.gz"
    data = CausalTextData("files", train=file, val=0.1, tokenizer=CHARS, block_size=256)
    assert data.vocab_size == 65 + 4
    assert count_bytes_words_tokens(data, "val") == (111_539, 20_152, 111_540)
