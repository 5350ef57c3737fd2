import json
from types import SimpleNamespace

import pytest

from fourfold.core.errors import InputError
from fourfold.data import CausalTextData
from fourfold.data.tokenizer_training import TokenizerConfig


@pytest.fixture
def file(tmp_path):
    (tmp_path / "t.txt").write_text("some words and some more words to read\n" * 20)
    return str(tmp_path / "t.txt")


def make(file, kind="bpe", **options):
    return CausalTextData(
        "files",
        train=file,
        val=0.2,
        tokenizer=TokenizerConfig(kind, 60),
        block_size=8,
        batch_size=3,
        **options,
    )


def reversed_vocabulary(state):
    """The same tokenizer with other numbers for its letters: what another training might give."""
    described = json.loads(state)
    vocab = described["model"]["vocab"]
    letters = [token for token in vocab if vocab[token] > 3]
    described["model"]["vocab"] = vocab | dict(
        zip(letters, reversed([vocab[token] for token in letters]), strict=True)
    )
    return json.dumps(described)


def test_state_brings_place_and_tokenizer(file):
    data = make(file)
    data.set_consumed(2, 3)
    state = data.state_dict()
    fresh = make(file)
    fresh.load_state_dict(state)
    assert fresh.consumed == (2, 3)
    batch = next(iter(fresh.train_dataloader()))
    assert (batch.epoch, batch.position) == (2, 4)
    assert fresh.tokenizer.to_str() == data.tokenizer.to_str()


def test_the_checkpoints_tokenizer_wins_over_one_trained_anew(file):
    data = make(file, kind="char")
    state = data.state_dict()
    state["tokenizer"] = reversed_vocabulary(state["tokenizer"])
    fresh = make(file, kind="char")
    fresh.load_state_dict(state)
    ids = next(iter(fresh.val_dataloader())).ids
    assert ids.tolist() != next(iter(data.val_dataloader())).ids.tolist()
    assert fresh.tokenizer.decode(ids[0]) == data.tokenizer.decode(
        next(iter(data.val_dataloader())).ids[0]
    )


def test_evaluation_takes_the_tokenizer_but_not_the_place(file):
    data = make(file, kind="char")
    data.set_consumed(0, 2)
    state = data.state_dict()
    state["tokenizer"] = reversed_vocabulary(state["tokenizer"])
    fresh = make(file, kind="char")
    fresh.trainer = SimpleNamespace(
        state=SimpleNamespace(fn="test"), global_rank=0, world_size=1, ckpt_path="x.ckpt"
    )
    fresh.load_state_dict(state)
    assert fresh.tokenizer.core.get_vocab() != data.tokenizer.core.get_vocab()
    assert fresh.consumed == (0, 0)


def test_another_tokenizer_section_is_refused(file):
    with pytest.raises(InputError, match="tokenizer has kind='bpe', this data section has 'char'"):
        make(file, kind="char").load_state_dict(make(file).state_dict())


def test_a_tokenizers_file_may_lie_elsewhere_by_now(file, tmp_path):
    text = make(file, kind="char").tokenizer.to_str()
    for folder, content in (("a", text), ("b", text), ("c", reversed_vocabulary(text))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tokenizer.json").write_text(content)

    def given(folder):
        tokenizer = TokenizerConfig(file=str(tmp_path / folder / "tokenizer.json"))
        return CausalTextData("files", train=file, val=0.2, tokenizer=tokenizer, block_size=8)

    state = given("a").state_dict()
    given("b").load_state_dict(state)
    with pytest.raises(InputError, match=r"is another than that of .*c/tokenizer\.json: use"):
        given("c").load_state_dict(state)
    chars = TokenizerConfig(kind="char")  # trained there, and not read from a file
    trained = CausalTextData("files", train=file, val=0.2, tokenizer=chars, block_size=8)
    given("b").load_state_dict(trained.state_dict())


def test_ranks_use_the_tokenizer_of_the_first(file):
    own = make(file, kind="char").tokenizer.core.get_vocab()
    data = make(file, kind="char")
    data.trainer = SimpleNamespace(
        world_size=2,
        global_rank=1,
        strategy=SimpleNamespace(broadcast=lambda own: reversed_vocabulary(own)),
    )
    data.setup()
    assert data.tokenizer.core.get_vocab() != own
    assert sorted(data.tokenizer.core.get_vocab()) == sorted(own)
