import json
from types import SimpleNamespace

import pytest

from fourfold.data import CausalTextData
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig


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


def reverse_letter_ids(state):
    """Reverse the ids of the letters, as in a tokenizer from another training run."""
    description = json.loads(state)
    vocab = description["model"]["vocab"]
    letters = [token for token in vocab if vocab[token] > 3]
    description["model"]["vocab"] = vocab | dict(
        zip(letters, reversed([vocab[token] for token in letters]), strict=True)
    )
    return json.dumps(description)


def test_state_restores_position_and_tokenizer(file):
    data = make(file)
    data.mark_trained(2, 3)
    state = data.state_dict()
    fresh = make(file)
    fresh.load_state_dict(state)
    assert fresh.position == (2, 3)
    batch = next(iter(fresh.train_dataloader()))
    assert (batch.epoch, batch.position) == (2, 4)
    assert fresh.tokenizer.to_str() == data.tokenizer.to_str()


def test_tokenizer_of_checkpoint_replaces_newly_trained_one(file):
    data = make(file, kind="char")
    state = data.state_dict()
    state["tokenizer"] = reverse_letter_ids(state["tokenizer"])
    fresh = make(file, kind="char")
    fresh.load_state_dict(state)
    ids = next(iter(fresh.val_dataloader())).ids
    assert ids.tolist() != next(iter(data.val_dataloader())).ids.tolist()
    assert fresh.tokenizer.decode(ids[0]) == data.tokenizer.decode(
        next(iter(data.val_dataloader())).ids[0]
    )


def test_evaluation_restores_tokenizer_but_not_position(file):
    data = make(file, kind="char")
    data.mark_trained(0, 2)
    state = data.state_dict()
    state["tokenizer"] = reverse_letter_ids(state["tokenizer"])
    fresh = make(file, kind="char")
    fresh.trainer = SimpleNamespace(
        state=SimpleNamespace(fn="test"), global_rank=0, world_size=1, ckpt_path="x.ckpt"
    )
    fresh.load_state_dict(state)
    assert fresh.tokenizer.backend.get_vocab() != data.tokenizer.backend.get_vocab()
    assert fresh.position == (0, 0)


def test_different_tokenizer_config_raises(file):
    with pytest.raises(
        InputError, match=r"data\.tokenizer\.kind must be 'bpe', as in the checkpoint, got 'char'"
    ):
        make(file, kind="char").load_state_dict(make(file).state_dict())


def test_resume_compares_content_of_tokenizer_file_not_its_path(file, tmp_path):
    text = make(file, kind="char").tokenizer.to_str()
    for folder, content in (("a", text), ("b", text), ("c", reverse_letter_ids(text))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tokenizer.json").write_text(content)

    def from_folder(folder):
        tokenizer = TokenizerConfig(file=str(tmp_path / folder / "tokenizer.json"))
        return CausalTextData("files", train=file, val=0.2, tokenizer=tokenizer, block_size=8)

    state = from_folder("a").state_dict()
    from_folder("b").load_state_dict(state)
    with pytest.raises(
        InputError, match=r"data\.tokenizer\.file .*got another tokenizer in .*c/tokenizer\.json"
    ):
        from_folder("c").load_state_dict(state)
    chars = TokenizerConfig(kind="char")  # trained instead of loaded
    trained = CausalTextData("files", train=file, val=0.2, tokenizer=chars, block_size=8)
    from_folder("b").load_state_dict(trained.state_dict())


def test_all_ranks_use_tokenizer_of_rank_0(file):
    own = make(file, kind="char").tokenizer.backend.get_vocab()
    data = make(file, kind="char")
    data.trainer = SimpleNamespace(
        world_size=2,
        global_rank=1,
        strategy=SimpleNamespace(broadcast=lambda text: reverse_letter_ids(text)),
    )
    data.setup()
    assert data.tokenizer.backend.get_vocab() != own
    assert sorted(data.tokenizer.backend.get_vocab()) == sorted(own)
