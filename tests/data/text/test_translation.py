import gzip
import logging
from pathlib import Path

import pytest
import torch
from jsonargparse import ArgumentParser

from fourfold.data import TranslationData
from fourfold.data.loading.sampler import Position
from fourfold.data.readers.text_table import TextTable
from fourfold.data.text.translation import join_pairs, read_pairs
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig

LANGS = ("en", "de")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "a.en": "one\ntwo\n",
        "a.de": "eins\nzwei\n",
        "b.en": "three\n",
        "b.de": "drei\n",
        "c.tsv": "de\ten\nvier\tfour\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_pairs_come_from_two_files_a_template_or_a_table(folder: Path) -> None:
    both = read_pairs([f"{folder}/a.en", f"{folder}/a.de"], LANGS, None)
    assert both.columns == [["one", "two"], ["eins", "zwei"]]
    assert read_pairs([f"{folder}/a.{{lang}}"], LANGS, None).columns == both.columns
    table = read_pairs([f"{folder}/c.tsv"], LANGS, ["en", "de"])
    assert table.columns == [["four"], ["vier"]]


def test_several_templates_are_concatenated(folder: Path) -> None:
    table = read_pairs([f"{folder}/a.{{lang}}", f"{folder}/b.{{lang}}"], ("de", "en"), None)
    assert table.columns == [["eins", "zwei", "drei"], ["one", "two", "three"]]
    assert table.location(2) == f"{folder}/b.de + {folder}/b.en:1"


@pytest.mark.parametrize("sources", [["a.en"], ["a.en", "a.de", "b.en"], []])
def test_sources_without_two_languages_are_rejected(sources: list[str]) -> None:
    with pytest.raises(InputError, match=r"must be \[source file, target file\]"):
        read_pairs(sources, LANGS, None)


def test_joined_pairs_consist_of_whole_pairs_and_have_30_to_60_words() -> None:
    words = [3, 17, 30, 31, 0, 8]
    english = [f"e{i} " * n for i, n in enumerate(words)]
    table = TextTable.from_columns([english, [f"d{i}" for i in range(len(words))]], "pair ")
    joined = join_pairs(table, 200)
    assert join_pairs(table, 200).columns == joined.columns
    for source, target in zip(*joined.columns, strict=True):
        rows = [int(word[1:]) for word in target.split()]
        assert source == " ".join(english[row] for row in rows)
        assert not {3, 4} & set(rows)
        assert 30 <= len(source.split()) <= 60
    assert len({len(source.split()) for source in joined.columns[0]}) > 10


def test_joined_pairs_follow_the_pairs_of_their_split(files):
    plain, data = from_files(files), from_files(files, joined_pairs={"train": 5, "test": 3})
    data.max_len = 200
    for each in (plain, data):
        each.setup()
    for split, count in (("train", 5), ("val", 0), ("test", 3)):
        sources = data.sources(split)
        assert sources[: len(sources) - count] == plain.sources(split)
        assert all(len(text.split()) >= 30 for text in sources[len(sources) - count :])


SMALL = TokenizerConfig(vocab_size=300)


@pytest.fixture
def files(tmp_path):
    """Sixty pairs of different lengths; German sentences have twice as many words."""
    for split, first, last in (("train", 0, 60), ("val", 60, 66), ("test", 66, 70)):
        for lang, times in (("en", 1), ("de", 2)):
            lines = [
                f"{lang} " + "wort " * (times * (i % 9 + 1)) + str(i) for i in range(first, last)
            ]
            data = gzip.compress(("\n".join(lines) + "\n").encode())
            (tmp_path / f"{split}.{lang}.gz").write_bytes(data)
    return str(tmp_path)


def from_files(folder, **options):
    names = {split: f"{folder}/{split}.{{lang}}.gz" for split in ("train", "val", "test")}
    options = {"tokenizer": SMALL, "max_tokens": 200, "max_len": 40} | names | options
    return TranslationData("files", **options)


def epoch(data, split="train", number=0):
    loader = data._loader(split, Position())
    loader.batch_sampler.set_epoch(number)
    return list(loader)


def test_batches_decode_to_the_rows_they_name(files):
    data = from_files(files)
    tokenizer = data.tokenizer
    seen = []
    for batch in epoch(data):
        assert batch.src.dtype == batch.tgt.dtype == batch.rows.dtype == torch.int64
        longest = max(batch.src.shape[1], batch.tgt.shape[1] - 1)
        assert len(batch.rows) * longest <= 200
        assert (batch.src[~batch.src_mask] == tokenizer.pad_id).all()
        assert (batch.tgt[~batch.tgt_mask] == tokenizer.pad_id).all()
        assert (batch.tgt[:, 0] == tokenizer.bos_id).all()
        for ids, mask in ((batch.src, batch.src_mask), (batch.tgt, batch.tgt_mask)):
            last = mask.sum(1) - 1
            assert (ids.gather(1, last[:, None]) == tokenizer.eos_id).all()
            assert not (mask.long().diff(dim=1) > 0).any()  # padding is on the right
        rows = batch.rows.tolist()
        assert tokenizer.decode_batch(batch.src) == [data.sources("train")[i] for i in rows]
        assert tokenizer.decode_batch(batch.tgt) == [data.references("train")[i] for i in rows]
        seen += rows
    assert sorted(seen) == list(range(60))


def test_validation_covers_all_references(files):
    data = from_files(files, max_rows=2)
    rows = [i for batch in epoch(data, "val") for i in batch.rows.tolist()]
    assert sorted(rows) == list(range(6))
    assert len(data.references("test")) == 4


def test_order_depends_on_seed_and_epoch_alone(files):
    def order(seed, number):
        return [b.rows.tolist() for b in epoch(from_files(files, seed=seed), number=number)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(5, 1)


def test_number_of_batches_is_equal_in_all_epochs(files):
    data = from_files(files)
    assert {len(epoch(data, number=n)) for n in range(4)} == {data.n_train_batches()}


def test_batches_do_not_depend_on_workers(files):
    without, with_workers = (epoch(from_files(files, num_workers=n)) for n in (0, 2))
    for a, b in zip(without, with_workers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        assert a[5:] == b[5:]


def test_reversed_direction_and_artifacts(files):
    back = from_files(files, src_lang="de", tgt_lang="en")
    assert back.sources("val")[0].startswith("de ")
    artifacts = back.artifacts()
    assert artifacts["tokenizer"] == back.tokenizer.to_str()
    assert (artifacts["src_lang"], artifacts["tgt_lang"], artifacts["max_len"]) == ("de", "en", 40)
    assert all(isinstance(value, str | int) for value in artifacts.values())


def test_tokenizer_is_trained_on_training_split_only(files, tmp_path):
    for lang in ("en", "de"):
        (tmp_path / f"odd.{lang}").write_text("zzzzz\n" * 9)
    data = from_files(files, val=f"{tmp_path}/odd.{{lang}}")
    assert "z" not in data.tokenizer.backend.get_vocab()


def test_long_sentence_raises_with_file_line_and_length(files):
    with pytest.raises(InputError, match=r"train.en.gz.*train.de.gz.*5: the row has \d+ tokens"):
        from_files(files, max_len=12).setup()


def test_sentence_of_exactly_max_len_is_accepted(files):
    data = from_files(files)
    data.setup()
    longest = max(int(dataset.order.lengths.max()) for dataset in data.splits.values())
    from_files(files, max_len=longest).setup()
    with pytest.raises(InputError, match=f"max_len allows {longest - 2}"):
        from_files(files, max_len=longest - 1).setup()


def test_long_evaluation_pairs_are_never_dropped(files, caplog):
    with caplog.at_level(logging.WARNING):
        data = from_files(files, max_len=12, too_long="drop")
        data.setup()
    assert len(data.sources("train")) < 60
    assert len(data.references("val")) == 6
    assert sum("rows longer than 11 tokens" in line for line in caplog.messages) == 3
    for batch in epoch(data):
        found = data.tokenizer.decode_batch(batch.tgt)
        assert found == [data.references("train")[i] for i in batch.rows]


def test_training_pairs_with_empty_side_are_dropped(tmp_path, caplog):
    (tmp_path / "a.en").write_text("one\n\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n \n")
    names = [f"{tmp_path}/a.en", f"{tmp_path}/a.de"]
    with caplog.at_level(logging.WARNING):
        data = TranslationData("files", train=names, val=names, tokenizer=SMALL)
        assert data.sources("train") == ["one"]
    assert data.sources("val") == ["one", "", "three"]
    assert any("dropped 2 of 3 rows with an empty text" in line for line in caplog.messages)
    (tmp_path / "a.de").write_text("\nzwei\n\n")
    with pytest.raises(InputError, match=r"a.en \+ .*a.de:1: all rows .* have an empty text"):
        TranslationData("files", train=names, tokenizer=SMALL).setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": None}, "data.train must be given for source: files"),
        ({"val": "gone.{lang}"}, "gone.en: there is no such file"),
        ({"max_tokens": 5}, r"max_tokens must be at least the \d+ tokens of row \d+, got 5"),
    ],
)
def test_failed_setup_keeps_no_splits(files, options, message):
    data = from_files(files, **options)
    with pytest.raises(InputError, match=message):
        data.setup()
    assert not data.splits


def test_named_split_of_builtin_source_raises():
    for split in ({"train": "mine.{lang}"}, {"val": 0.1}):
        with pytest.raises(InputError, match="must be null for source: builtin, got"):
            TranslationData(**split).setup()


def test_builtin_source_is_the_default():
    data = TranslationData(rows=300, tokenizer=TokenizerConfig(vocab_size=800))
    assert len(data.references("test")) == 500
    assert data.vocab_size == 800
    assert len(data.sources("train")) == 300


def test_sizes_of_multi30k(data_dir):
    folder = f"{data_dir}/translation/multi30k"
    data = TranslationData(
        "files",
        train=f"{folder}/val.{{lang}}.gz",
        val=[f"{folder}/test_2016_flickr.en.gz", f"{folder}/test_2016_flickr.de.gz"],
        tokenizer=TokenizerConfig(vocab_size=1000),
    )
    assert (len(data.sources("train")), len(data.references("val"))) == (1014, 1000)
    assert data.references("val")[0] == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."


def test_fraction_of_sentences_is_held_out(data_dir, monkeypatch):
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


def test_options_are_parsed_from_command_line(files):
    parser = ArgumentParser()
    parser.add_class_arguments(TranslationData, "data")

    def data(*arguments):
        return parser.instantiate(parser.parse_args([f"--data.{a}" for a in arguments])).data

    table = data("source=files", "train=a.tsv", "columns=[0,1]", "val=0.1", "test=b.tsv")
    assert table.columns == [0, 1]
    assert table.split_sources == {"train": "a.tsv", "val": 0.1, "test": "b.tsv"}
    pair = data("source=files", 'train=["a","b"]', "tokenizer.kind=char", "tokenizer.vocab_size=9")
    assert pair.split_sources["train"] == ["a", "b"]
    assert pair._tokenizer_config == TokenizerConfig("char", 9)
