import gzip
import logging

import pytest
import torch
from jsonargparse import ArgumentParser

from fourfold.core.errors import InputError
from fourfold.data import TranslationData
from fourfold.data.tokenizer_training import TokenizerConfig

SMALL = TokenizerConfig(vocab_size=300)


@pytest.fixture
def files(tmp_path):
    """Sixty pairs of growing length; a German one has twice the words."""
    for split, first, last in (("train", 0, 60), ("val", 60, 66), ("test", 66, 70)):
        for lang, times in (("en", 1), ("de", 2)):
            lines = [
                f"{lang} " + "wort " * (times * (i % 9 + 1)) + str(i) for i in range(first, last)
            ]
            packed = gzip.compress(("\n".join(lines) + "\n").encode())
            (tmp_path / f"{split}.{lang}.gz").write_bytes(packed)
    return str(tmp_path)


def from_files(folder, **options):
    names = {split: f"{folder}/{split}.{{lang}}.gz" for split in ("train", "val", "test")}
    options = {"tokenizer": SMALL, "max_tokens": 200, "max_len": 40} | names | options
    return TranslationData("files", **options)


def epoch(data, split="train", number=0):
    loader = data._loader(split)
    loader.batch_sampler.set_epoch(number)
    return list(loader)


def test_batches_hold_the_sentences_they_name(files):
    data = from_files(files)
    tokenizer = data.tokenizer
    seen = []
    for batch in epoch(data):
        assert batch.src.dtype == batch.tgt.dtype == batch.index.dtype == torch.int64
        longest = max(batch.src.shape[1], batch.tgt.shape[1] - 1)
        assert len(batch.index) * longest <= 200
        assert (batch.src[~batch.src_mask] == tokenizer.pad_id).all()
        assert (batch.tgt[~batch.tgt_mask] == tokenizer.pad_id).all()
        assert (batch.tgt[:, 0] == tokenizer.bos_id).all()
        for ids, mask in ((batch.src, batch.src_mask), (batch.tgt, batch.tgt_mask)):
            last = mask.sum(1) - 1
            assert (ids.gather(1, last[:, None]) == tokenizer.eos_id).all()
            assert not (mask.long().diff(dim=1) > 0).any()  # padding is on the right
        rows = batch.index.tolist()
        assert tokenizer.decode_batch(batch.src) == [data.sources("train")[i] for i in rows]
        assert tokenizer.decode_batch(batch.tgt) == [data.references("train")[i] for i in rows]
        seen += rows
    assert sorted(seen) == list(range(60))


def test_validation_covers_the_references_in_any_number_of_processes(files):
    data = from_files(files, max_rows=2)
    rows = [i for batch in epoch(data, "val") for i in batch.index.tolist()]
    assert sorted(rows) == list(range(6))
    assert len(data.references("test")) == 4


def test_epochs_differ_and_repeat_exactly(files):
    def order(seed, number):
        return [b.index.tolist() for b in epoch(from_files(files, seed=seed), number=number)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(5, 1)


def test_batches_an_epoch_never_change(files):
    data = from_files(files)
    assert {len(epoch(data, number=n)) for n in range(4)} == {data.n_train_batches()}


def test_workers_make_the_same_batches(files):
    alone, helped = (epoch(from_files(files, num_workers=n)) for n in (0, 2))
    for a, b in zip(alone, helped, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        assert a[5:] == b[5:]


def test_directions_and_artifacts(files):
    back = from_files(files, src_lang="de", tgt_lang="en")
    assert back.sources("val")[0].startswith("de ")
    artifacts = back.artifacts()
    assert artifacts["tokenizer"] == back.tokenizer.to_str()
    assert (artifacts["src_lang"], artifacts["tgt_lang"], artifacts["max_len"]) == ("de", "en", 40)
    assert all(isinstance(value, str | int) for value in artifacts.values())


def test_only_the_training_split_trains_the_tokenizer(files, tmp_path):
    for lang in ("en", "de"):
        (tmp_path / f"odd.{lang}").write_text("zzzzz\n" * 9)
    data = from_files(files, val=f"{tmp_path}/odd.{{lang}}")
    assert "z" not in data.tokenizer.core.get_vocab()


def test_error_for_a_sentence_too_long_names_file_line_and_length(files):
    with pytest.raises(InputError, match=r"train.en.gz \+ .*train.de.gz, line 5 has \d+ tokens"):
        from_files(files, max_len=12).setup()


def test_exactly_max_len_is_not_too_long(files):
    data = from_files(files)
    data.setup()
    longest = max(int(dataset.plan.lengths.max()) for dataset in data.splits.values())
    from_files(files, max_len=longest).setup()
    with pytest.raises(InputError, match=f"max_len allows {longest - 2}"):
        from_files(files, max_len=longest - 1).setup()


def test_dropping_spares_evaluation(files, caplog):
    with caplog.at_level(logging.WARNING):
        data = from_files(files, max_len=12, too_long="drop")
        data.setup()
    assert len(data.sources("train")) < 60
    assert len(data.references("val")) == 6
    assert sum("rows longer than 11 tokens" in line for line in caplog.messages) == 3
    for batch in epoch(data):
        found = data.tokenizer.decode_batch(batch.tgt)
        assert found == [data.references("train")[i] for i in batch.index]


def test_pairs_with_an_empty_side_are_not_trained_on(tmp_path, caplog):
    (tmp_path / "a.en").write_text("one\n\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n \n")
    names = [f"{tmp_path}/a.en", f"{tmp_path}/a.de"]
    with caplog.at_level(logging.WARNING):
        data = TranslationData("files", train=names, val=names, tokenizer=SMALL)
        assert data.sources("train") == ["one"]
    assert data.sources("val") == ["one", "", "three"]
    assert "train: 2 of 3 pairs have an empty side: dropped." in caplog.messages
    (tmp_path / "a.de").write_text("\nzwei\n\n")
    with pytest.raises(InputError, match="every training pair has an empty side"):
        TranslationData("files", train=names, tokenizer=SMALL).setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": None}, "source: files needs `train`"),
        ({"val": "gone.{lang}"}, "no file gone.en"),
        ({"max_tokens": 5}, r"Row \d+ has \d+ tokens"),
    ],
)
def test_bad_options_leave_nothing_behind(files, options, message):
    data = from_files(files, **options)
    with pytest.raises(InputError, match=message):
        data.setup()
    assert not data.splits


def test_unknown_source():
    with pytest.raises(InputError, match="not 'web'"):
        TranslationData("web", train="x").setup()


def test_parts_of_what_is_embedded_are_not_passed_over():
    for part in ({"train": "mine.{lang}"}, {"val": 0.1}):
        with pytest.raises(InputError, match="but source is embedded, which has its own splits"):
            TranslationData(**part).setup()


def test_embedded_is_the_default_and_needs_no_file():
    data = TranslationData(rows=300, tokenizer=TokenizerConfig(vocab_size=800))
    assert len(data.references("test")) == 500
    assert data.vocab_size == 800
    assert len(data.sources("train")) == 300


def test_multi30k(data_dir):
    folder = f"{data_dir}/translation/multi30k"
    data = TranslationData(
        "files",
        train=f"{folder}/val.{{lang}}.gz",
        val=[f"{folder}/test_2016_flickr.en.gz", f"{folder}/test_2016_flickr.de.gz"],
        tokenizer=TokenizerConfig(vocab_size=1000),
    )
    assert (len(data.sources("train")), len(data.references("val"))) == (1014, 1000)
    assert data.references("val")[0] == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."


def test_news_held_out_by_sentence(data_dir, monkeypatch):
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    data = TranslationData(
        "files",
        train="translation/wmt_newstest/newstest2009.en-de.{lang}.gz",
        val=0.1,
        max_len=400,
        max_tokens=9000,
        tokenizer=TokenizerConfig(vocab_size=500),
    )
    total = len(data.sources("train")) + len(data.sources("val"))
    assert 2500 < total <= 2525


def test_options_as_a_command_line_gives_them(files):
    parser = ArgumentParser()
    parser.add_class_arguments(TranslationData, "data")

    def data(*arguments):
        return parser.instantiate(parser.parse_args([f"--data.{a}" for a in arguments])).data

    table = data("source=files", "train=a.tsv", "columns=[0,1]", "val=0.1", "test=b.tsv")
    assert table.columns == ["0", "1"]
    assert table.parts == {"train": "a.tsv", "val": 0.1, "test": "b.tsv"}
    pair = data("source=files", 'train=["a","b"]', "tokenizer.kind=char", "tokenizer.vocab_size=9")
    assert pair.parts["train"] == ["a", "b"]
    assert pair._config == TokenizerConfig("char", 9)
