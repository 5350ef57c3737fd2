"""Recipe cards, and what their numbers come to: values by hand."""

import re

import pytest

from fourfold.errors import InputError
from fourfold.reproduce.recipe_cards.cards import (
    CONVENTION_OF,
    KEYS,
    MEANINGS,
    TASKS,
    Card,
    cards,
    find_card,
    read_card,
)
from fourfold.reproduce.recipe_cards.conventions import RESOLVED
from fourfold.reproduce.recipe_cards.differences import compare

(PENALTY, SMOOTHING, PEAK, DECAY, TOKENS, ROWS) = (quantity.of for quantity in RESOLVED)


@pytest.mark.parametrize("card", cards().values(), ids=lambda card: card.name)
def test_every_card_names_its_source_and_resolves(card: Card) -> None:
    assert re.match(r"[\w-]+/[\w.-]+ at [0-9a-f]{7,8}, .*\w\.\w|arXiv \d+\.\d+.*, ", card.source)
    assert set(card.values) | set(card.notes) <= set(KEYS)
    assert card.values["task"] in TASKS
    for convention, meanings in MEANINGS.items():
        assert card.values.get(convention) in (None, *meanings), convention
    assert not any(card.lacks(key) for key in card.values)
    peak = PEAK(card.values)
    assert peak is not None
    trains_images = card.values["task"] == "images"  # SGD is among them
    assert 5e-6 <= peak[0] <= (0.03 if trains_images else 1.5e-3)
    # Without its convention a number is half said.
    for key, other in CONVENTION_OF.items():
        stated = card.values.get(other) and not card.lacks(key)
        assert not stated or key in card.values or other in card.notes, key


def test_the_same_alpha_is_not_the_same() -> None:
    gnmt = PENALTY({"length_penalty": 0.6, "length_penalty_type": "gnmt"})
    power = PENALTY({"length_penalty": 0.6, "length_penalty_type": "power"})
    assert gnmt is not None
    assert power is not None
    assert gnmt[3] == pytest.approx((25 / 15) ** 0.6)  # 1.36
    assert power[3] == pytest.approx(2**0.6)  # 1.52
    assert PENALTY({"length_penalty": 0.6}) is None


def test_numbers_by_hand() -> None:
    values = dict(find_card("vaswani2017_base").values)
    assert PEAK(values) == pytest.approx((6.987712e-4,))
    assert PEAK(find_card("tensor2tensor_base").values) == pytest.approx((9.88e-4,), rel=1e-3)
    assert PEAK(find_card("nanogpt_124M").values) == pytest.approx((6e-4,), rel=1e-3)
    # big_vision's 1e-4, without the learning rate of 1e-3, is AdamW's 0.1.
    assert DECAY(find_card("beyer2022_s16").values) == pytest.approx((0.1,))
    assert DECAY(find_card("mosaic_hf_bert_base").values) == pytest.approx((0.02,))
    assert DECAY(find_card("bert_base").values) == (0.01,)
    assert TOKENS(find_card("fairseq_big").values) == (3584 * 8 * 16,)
    assert ROWS(find_card("roberta_base").values) == (2048,)
    base = {"label_smoothing": 0.1, "vocab_size": 11}
    assert SMOOTHING({**base, "label_smoothing_type": "uniform"}) == pytest.approx(
        (0.9 + 0.1 / 11, 1 / 11)
    )
    assert SMOOTHING({**base, "label_smoothing_type": "off_target"}) == pytest.approx((0.9, 0.1))


def test_a_comparison_shows_what_differs_and_why() -> None:
    lines = compare([find_card("tensor2tensor_base"), find_card("fairseq_big")])
    page = "\n".join(lines)
    assert f"{'length_penalty_type':<26}gnmt" in page
    assert "gnmt: scores are divided by ((5 + n) / 6)^alpha" in page
    assert "power: scores are divided by n^alpha" in page
    same = next(line for line in lines if line.startswith("Equal in both"))
    assert "length_penalty 0.6" in same
    assert "length_penalty_type gnmt" not in same


def test_a_recipe_and_itself_do_not_differ() -> None:
    card = find_card("bert_base")
    page = "\n".join(compare([card, card]))
    assert "the recipes do not differ" in page
    assert "What numbers come to" not in page


def test_different_words_may_mean_the_same() -> None:
    values = {
        "weight_decay": 0.1,
        "weight_decay_form": "times_lr",
        "lr": 1e-3,
        "schedule": "constant",
        "d_model": 8,
    }
    own = {**values, "weight_decay": 1e-4, "weight_decay_form": "own"}
    lines = compare([Card("a", "A", "s", values), Card("b", "B", "s", own)])
    assert "     therefore all are equal" in lines
    assert (
        "     own: each step multiplies weights by 1 - decay, without the peak learning rate"
        in lines
    )


def test_three_recipes_stand_side_by_side() -> None:
    names = ("vaswani2017_big", "tensor2tensor_base", "fairseq_big")
    lines = compare([find_card(name) for name in names])
    assert [line.split()[0] for line in lines[:6:2]] == ["A", "B", "C"]
    rows = {words[0]: words[1:] for line in lines if (words := line.split())}
    assert rows["norm_placement"] == ["post", "pre", "post"]
    assert rows["length_penalty_type"] == ["gnmt", "gnmt", "power"]
    assert rows["average_last_checkpoints"] == ["20", "(open)", "10*"]
    same = next(line for line in lines if line.startswith("Equal in all: "))
    assert "length_penalty 0.6" in same
    assert "length_penalty_type gnmt" not in same  # of A and B only


def test_one_alpha_of_three_is_two_things() -> None:
    names = ("vaswani2017_big", "tensor2tensor_base", "fairseq_big")
    lines = compare([find_card(name) for name in names])
    start = next(i for i, line in enumerate(lines) if line.startswith("length penalty"))
    gnmt, power = "1.7329, 2.3544, 3.3499, 1.3587", "3.9811, 6.0342, 9.1461, 1.5157"
    assert [line.partition("   from")[0] for line in lines[start + 1 : start + 6]] == [
        f"  A  {gnmt}",
        f"  B  {gnmt}",
        f"  C  {power}",
        "     gnmt: scores are divided by ((5 + n) / 6)^alpha (Wu et al. 2016)",
        "     power: scores are divided by n^alpha",
    ]


def test_the_papers_base_and_two_toolkits() -> None:
    names = ("vaswani2017_base", "tensor2tensor_base", "fairseq_base")
    paper, t2t, fairseq = (find_card(name).values for name in names)
    assert paper["length_penalty"] == t2t["length_penalty"] == fairseq["length_penalty"] == 0.6
    # ((5 + n) / 6)^0.6 and n^0.6 of 10, 20 and 40 tokens.
    assert PENALTY(t2t) == PENALTY(paper) == pytest.approx((1.733, 2.354, 3.350, 1.359), abs=1e-3)
    assert PENALTY(fairseq) == pytest.approx((3.981, 6.034, 9.146, 1.516), abs=1e-3)
    assert PEAK(paper) == pytest.approx((6.99e-4,), rel=1e-3)
    assert PEAK(fairseq) == (5e-4,)
    assert [TOKENS(v) for v in (paper, t2t, fairseq)] == [(25000,), (32768,), (28672,)]


def test_other_numbers_by_hand() -> None:
    values = {name: card.values for name, card in cards().items()}
    assert PEAK(values["tensor2tensor_base_single_gpu"]) == pytest.approx((0.1 / 16000**0.5,))
    assert PEAK(values["tensor2tensor_big"]) == pytest.approx((6.99e-4,), rel=1e-3)
    assert PEAK(values["tensor2tensor_base_v2"]) == PEAK(values["tensor2tensor_base"])
    assert TOKENS(values["opennmt_base"]) == (4096 * 4 * 4,)
    assert TOKENS(values["opennmt_big"]) == (50000,)
    assert TOKENS(values["fairseq_wikitext103"]) == (2048 * 2 * 16,)
    assert TOKENS(values["build_nanogpt_124M"]) == TOKENS(values["modded_nanogpt_adam"])
    assert ROWS(values["annotated_transformer"]) == (320,)
    assert ROWS(values["deit_b_384"]) == (512,)
    assert DECAY(values["mosaic_bert_base"]) == pytest.approx((0.02,))
    assert DECAY(values["mosaic_bert_mnli"]) == pytest.approx((0.1,))
    assert DECAY(values["augreg_b16"]) == pytest.approx((0.1,))
    assert DECAY(values["vit2020_i1k"]) is None  # the paper does not say
    uniform, padless = (SMOOTHING(values[name]) for name in ("opennmt_big", "joeynmt_wmt17"))
    assert uniform == pytest.approx((0.9 + 0.1 / 36000, 0.1 - 0.1 / 36000))
    assert padless == pytest.approx((0.9, 0.1), rel=1e-9)  # V - 2 words share it, not V - 1


def test_fairseqs_decay_is_adamws() -> None:
    assert DECAY(find_card("fairseq_iwslt").values) == (1e-4,)


def test_what_a_task_has_not_is_not_left_open() -> None:
    names = ("bert_base", "nanogpt_124M", "vaswani2017_base")
    lines = compare([find_card(name) for name in names])
    rows = {words[0]: words[1:] for line in lines if (words := line.split())}
    assert rows["mlm_probability"] == ["0.15", "-", "-"]
    assert rows["length_penalty"] == ["-", "-", "0.6"]
    assert rows["weight_decay_form"] == ["times_lr", "times_lr", "-"]  # the paper decays nothing
    assert rows["average_last_checkpoints"] == ["(open)", "(open)", "5"]
    start = next(i for i, line in enumerate(lines) if line.startswith("length penalty"))
    assert [line.split()[1] for line in lines[start + 1 : start + 3]] == ["-", "-"]


def test_a_rate_without_a_width_is_known_but_for_noam() -> None:
    assert PEAK({"lr": 2e-5, "schedule": "linear"}) == (2e-5,)
    assert PEAK({"lr": 2.0, "schedule": "noam"}) is None


def test_what_is_noted_has_a_mark() -> None:
    lines = compare([find_card("bert_base"), find_card("roberta_base")])
    assert any("   from batch_rows 256, length 512*" in line for line in lines)
    start = lines.index("Notes on values marked with *")
    assert lines[start + 1].startswith("A length: 128 for")


def test_what_is_the_same_and_comes_to_the_same_is_not_resolved() -> None:
    names = ("vaswani2017_base", "tensor2tensor_base")  # neither decays; their rates differ
    assert not any("weight decay" in line for line in compare([find_card(name) for name in names]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{title: t, values: {}}",
            "x is invalid: Card.__init__() missing 1 required positional argument: 'source'",
        ),
        ("[]", "must be a mapping, not list"),
    ],
)
def test_a_wrong_card_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        read_card("x", text)
    assert says in str(error.value)
