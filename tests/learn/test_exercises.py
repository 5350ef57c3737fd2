"""The checks are checked: right solutions in two styles pass, and each mistake has its message."""

import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.learn import WrongSolution, check
from fourfold.learn.checker import SIZES, _Claim, _draw
from fourfold.learn.exercises import EXERCISES

STUBS = Path(__file__).resolve().parents[2] / "docs" / "course" / "exercises"


# Solutions in the style of the course, by exercise.


def self_attention(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def scores(q, k):
    return q @ k.mT / q.shape[-1] ** 0.5


def split_heads(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def causal_mask(t):
    return torch.arange(t)[:, None] >= torch.arange(t)


def masked_softmax(scores, mask):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def encode(x, mask):
    scores = x @ x.mT / x.shape[-1] ** 0.5
    return scores.masked_fill(~mask[:, None], -math.inf).softmax(-1) @ x


def sinusoids(t, d, first=0, step=2):
    rates = 10_000.0 ** (-step * torch.arange(d // 2).double() / d)
    angles = torch.arange(first, first + t)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def rotary(q, k, positions):
    rates = 10_000.0 ** (-torch.arange(0, q.shape[-1], 2) / q.shape[-1])
    cos, sin = (positions[:, None] * rates).cos(), (positions[:, None] * rates).sin()

    def turned(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return turned(q), turned(k)


def layer_norm(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def block(x, attention, feed_forward, norm_1, norm_2, pre):
    if pre:
        x = x + attention(norm_1(x))
        return x + feed_forward(norm_2(x))
    x = norm_1(x + attention(x))
    return norm_2(x + feed_forward(x))


def decode(x, positions, cache):
    past = 0 if cache is None else cache.shape[1]
    return continued(x + positions[past : past + x.shape[1]], cache)


def continued(h, cache, shift=0):
    k = h if cache is None else torch.cat([cache, h], 1)
    visible = torch.ones(h.shape[1], k.shape[1]).tril(k.shape[1] - h.shape[1] + shift).bool()
    scores = h @ k.mT / h.shape[-1] ** 0.5
    return scores.masked_fill(~visible, -math.inf).softmax(-1) @ k, k


def mask_tokens(ids, special_ids, mask_id, vocab_size):
    inputs, targets = masked(ids, special_ids, mask_id, vocab_size)
    return inputs, torch.where(targets, ids, -100)


def masked(ids, special_ids, mask_id, vocab_size):
    targets = (torch.rand(ids.shape) < 0.15) & ~torch.isin(ids, torch.tensor(special_ids))
    choice, random_ids = torch.rand(ids.shape), torch.randint(vocab_size, ids.shape)
    inputs = torch.where(targets & (choice < 0.8), mask_id, ids)
    return torch.where(targets & (choice > 0.9), random_ids, inputs), targets


def ablate_head(z, weight, bias, h):
    return output(torch.arange(z.shape[1]) != h, z, weight, bias)


def output(kept, z, weight, bias):
    return F.linear((z * kept[:, None, None]).transpose(1, 2).flatten(2), weight, bias)


FIRST = {
    name: globals()[{"heads": "split_heads", "padding": "encode"}.get(name, name)]
    for name in EXERCISES
}


# Solutions in another style: loops, einsum, functions of torch.


def attention_by_token(x, w_q, w_k, w_v):
    rows = []
    for sentence in x:
        for token in sentence:
            weights = F.softmax(
                torch.stack([(token @ w_q) @ (t @ w_k) for t in sentence]) / (w_q.shape[1] ** 0.5),
                dim=0,
            )
            rows.append(sum(w * (t @ w_v) for w, t in zip(weights, sentence, strict=True)))
    return torch.stack(rows).view(*x.shape[:2], -1)


def scores_by_einsum(q, k):
    return torch.einsum("bhqd,bhkd->bhqk", q / math.sqrt(q.size(3)), k)


def heads_by_loop(x, n_heads):
    width = x.shape[2] // n_heads
    return torch.stack([x[:, :, i * width : (i + 1) * width] for i in range(n_heads)], dim=1)


def causal_mask_by_loop(t):
    mask = torch.zeros(t, t, dtype=torch.bool)
    for i in range(t):
        mask[i, : i + 1] = True
    return mask


def masked_softmax_by_exp(scores, mask):
    largest = scores.masked_fill(~mask, -1e9).amax(-1, keepdim=True)
    powers = torch.where(mask, (scores - largest).masked_fill(~mask, 0).exp(), 0)
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-30)


def encode_by_function(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.unsqueeze(1))


def sinusoids_by_loop(t, d):
    table = torch.empty(t, d)  # in fp32
    for p in range(t):
        for i in range(d // 2):
            angle = p / 10_000 ** (2 * i / d)
            table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def rotary_of_neighbours(q, k, positions):
    angles = positions[:, None] / 10_000 ** (torch.arange(0, q.shape[-1], 2).double() / q.shape[-1])
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
    return tuple(torch.view_as_real(pair * turns).flatten(-2) for pair in pairs)


def layer_norm_by_function(x, eps):
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def block_by_loop(x, attention, feed_forward, norm_1, norm_2, pre):
    for f, norm in ((attention, norm_1), (feed_forward, norm_2)):
        x = x + f(norm(x)) if pre else norm(x + f(x))
    return x


def decode_by_token(x, positions, cache):
    k, outputs = x[:, :0] if cache is None else cache, []
    for token in x.unbind(1):
        h = (token + positions[k.shape[1]])[:, None]
        k = torch.cat([k, h], dim=1)
        outputs.append(F.scaled_dot_product_attention(h, k, k))
    return torch.cat(outputs, dim=1), k


def mask_tokens_by_bernoulli(ids, special_ids, mask_id, vocab_size):
    special = sum(ids == i for i in special_ids).bool()
    targets = torch.bernoulli(torch.full(ids.shape, 0.15).masked_fill(special, 0)).bool()
    labels = ids.masked_fill(~targets, -100)
    ids = ids.clone()
    replaced = torch.bernoulli(torch.full(ids.shape, 0.8)).bool() & targets
    ids[replaced] = mask_id
    random = torch.bernoulli(torch.full(ids.shape, 0.5)).bool() & targets & ~replaced
    ids[random] = torch.randint(vocab_size, ids.shape)[random]
    return ids, labels


def ablate_head_by_difference(z, weight, bias, h):
    width = z.shape[-1]
    y = F.linear(torch.cat(z.unbind(1), -1), weight, bias)
    return y - z[:, h] @ weight[:, h * width : (h + 1) * width].T


SECOND = {
    "self_attention": attention_by_token,
    "scores": scores_by_einsum,
    "heads": heads_by_loop,
    "causal_mask": causal_mask_by_loop,
    "masked_softmax": masked_softmax_by_exp,
    "padding": encode_by_function,
    "sinusoids": sinusoids_by_loop,
    "rotary": rotary_of_neighbours,
    "layer_norm": layer_norm_by_function,
    "block": block_by_loop,
    "decode": decode_by_token,
    "mask_tokens": mask_tokens_by_bernoulli,
    "ablate_head": ablate_head_by_difference,
}


# Wrong solutions, each with its message. A message with a full stop is that of a property.


def self_attention_over_queries(x, w_q, w_k, w_v):
    return ((x @ w_q) @ (x @ w_k).mT / w_q.shape[1] ** 0.5).softmax(-2) @ (x @ w_v)


def self_attention_causal(x, w_q, w_k, w_v):
    return F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, is_causal=True)


def self_attention_exchanged(x, w_q, w_k, w_v):
    return self_attention(x, w_k, w_q, w_v)


def self_attention_unscaled(x, w_q, w_k, w_v):
    return ((x @ w_q) @ (x @ w_k).mT).softmax(-1) @ (x @ w_v)


def self_attention_by_model_width(x, w_q, w_k, w_v):
    return ((x @ w_q) @ (x @ w_k).mT / x.shape[-1] ** 0.5).softmax(-1) @ (x @ w_v)


def self_attention_with_positions(x, w_q, w_k, w_v):
    return self_attention(x + sinusoids(x.shape[1], x.shape[2]), w_q, w_k, w_v)


def attention_to_itself(x, w_q, w_k, w_v):
    return x @ w_v


def masked_softmax_by_where(scores, mask):
    return (scores + torch.where(mask, 0.0, -math.inf)).softmax(-1).nan_to_num(0.0)


def weak_mask(scores, mask):
    return masked_softmax(scores - 1e4 * ~mask, mask | ~mask) * mask.any(1, keepdim=True)


def unequal_wavelengths(t, d):
    angles = torch.arange(t)[:, None] * 10_000.0 ** (-torch.arange(d) / d)
    return torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], -1).flatten(1)


def sines_first(t, d):
    table = sinusoids(t, d)
    return torch.cat([table[:, 0::2], table[:, 1::2]], 1)


def rotary_clockwise(q, k, positions):
    return rotary(q, k, -positions)


def rotary_of_queries(q, k, positions):
    return rotary(q, k, positions)[0], k


def rotary_mixed(q, k, positions):
    return rotary_of_neighbours(q, k, positions)[0], rotary(q, k, positions)[1]


def rotary_without_rotation(q, k, positions):
    cos = positions[:, None].cos()
    return q * cos, k * cos


def rotary_from_absolute_positions(q, k, positions):
    return rotary(q, k, positions**2)


def layer_norm_over_tokens(x, eps):
    return (x - x.mean(1, True)) / (x.var(1, correction=0, keepdim=True) + eps).sqrt()


def layer_norm_eps_outside(x, eps):
    return (x - x.mean(-1, True)) / (x.std(-1, correction=0, keepdim=True) + eps)


def layer_norm_of_batch(x, eps):
    return (x - x.mean(-1, True)) / (x.var((1, 2), correction=0, keepdim=True) + eps).sqrt()


def block_after_norm(x, attention, feed_forward, norm_1, norm_2, pre):
    if not pre:
        return block(x, attention, feed_forward, norm_1, norm_2, pre)
    x = norm_1(x)
    x = norm_2(x + attention(x))
    return x + feed_forward(x)


def block_without_second_norm(x, attention, feed_forward, norm_1, norm_2, pre):
    return block(x, attention, feed_forward, norm_1, lambda y: y, pre)


def block_with_one_norm(x, attention, feed_forward, norm_1, norm_2, pre):
    return block(x, attention, feed_forward, norm_1, norm_1, pre)


def block_exchanged(x, attention, feed_forward, norm_1, norm_2, pre):
    return block(x, attention, feed_forward, norm_1, norm_2, not pre)


def block_with_norm_of_branch(x, attention, feed_forward, norm_1, norm_2, pre):
    if pre:
        return block(x, attention, feed_forward, norm_1, norm_2, pre)
    x = x + norm_1(attention(x))
    return x + norm_2(feed_forward(x))


def block_without_residual(x, attention, feed_forward, norm_1, norm_2, pre):
    return norm_2(feed_forward(norm_1(attention(x))))


def decode_from_zero(x, positions, cache):
    return continued(x + positions[: x.shape[1]], cache)


def decode_top_left(x, positions, cache):
    past = 0 if cache is None else cache.shape[1]
    return continued(x + positions[past : past + x.shape[1]], cache, shift=-past)


def decode_without_mask(x, positions, cache):
    past = 0 if cache is None else cache.shape[1]
    return continued(x + positions[past : past + x.shape[1]], cache, shift=x.shape[1])


def decode_without_positions(x, positions, cache):
    return continued(x, cache)


def labels_everywhere(ids, *options):
    return masked(ids, *options)[0], ids


def late_labels(ids, *options):
    inputs, targets = masked(ids, *options)
    return inputs, torch.where(targets, inputs, -100)


def special_targets(ids, special_ids, *options):
    return mask_tokens(ids, [], *options)


def only_masks(ids, *options):
    _, targets = masked(ids, *options)
    return torch.where(targets, options[1], ids), torch.where(targets, ids, -100)


def two_of_a_hundred(ids, *options):
    inputs, targets = masked(ids, *options)
    return torch.where(targets & (inputs != options[1]), ids, inputs), torch.where(
        targets, ids, -100
    )


def one_random_id(ids, special_ids, mask_id, vocab_size):
    inputs, labels = mask_tokens(ids, special_ids, mask_id, vocab_size)
    is_random = (inputs != ids) & (inputs != mask_id)
    return inputs.masked_fill(is_random, 17), labels


def ids_beyond_the_vocabulary(ids, special_ids, mask_id, vocab_size):
    inputs, labels = mask_tokens(ids, special_ids, mask_id, vocab_size)
    is_random = (inputs != ids) & (inputs != mask_id)
    return torch.where(is_random, 10 * inputs, inputs), labels


def only_one_special_id(ids, special_ids, mask_id, vocab_size):
    return mask_tokens(ids, special_ids[:1], mask_id, vocab_size)


def noise_everywhere(ids, *options):
    inputs, labels = mask_tokens(ids, *options)
    return torch.where(torch.rand(ids.shape) < 0.1, 7, inputs), labels


def slice_of_output(z, weight, bias, h):
    y, width = output(torch.ones(z.shape[1]), z, weight, bias), z.shape[-1]
    y[..., h * width : (h + 1) * width] = 0
    return y


def only_this_head(z, weight, bias, h):
    return output(torch.arange(z.shape[1]) == h, z, weight, bias)


def bias_for_each_head(z, weight, bias, h):
    return ablate_head(z, weight, bias * (z.shape[1] - 1), h)


def rescaled_heads(z, weight, bias, h):
    return ablate_head(z * z.shape[1] / (z.shape[1] - 1), weight, bias, h)


WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("self_attention", self_attention_over_queries, "the softmax runs over the queries"),
    ("self_attention", self_attention_causal, "a causal mask hides the tokens after a query"),
    ("self_attention", self_attention_exchanged, "queries and keys are exchanged"),
    ("self_attention", self_attention_unscaled, "the factor 1/√Dk is missing"),
    (
        "self_attention",
        self_attention_by_model_width,
        "the scores are divided by √D and not by √Dk",
    ),
    (
        "self_attention",
        self_attention_with_positions,
        "Permuted tokens give permuted outputs.",
    ),
    (
        "self_attention",
        lambda x, w_q, w_k, w_v: (x @ w_q) @ (x @ w_k).mT @ (x @ w_v),
        "Weights sum to 1, so that values larger by 1 give outputs larger by 1.",
    ),
    ("self_attention", attention_to_itself, "The result is softmax(q kᵀ / √Dk) v."),
    (
        "scores",
        lambda q, k: q @ k.mT / q.shape[-1],
        "divided by Dh and not by its root, the scores have the variance 1/Dh",
    ),
    (
        "scores",
        lambda q, k: q @ k.mT / (q.shape[1] * q.shape[-1]) ** 0.5,
        "divided by √(H · Dh), the scores depend on H",
    ),
    ("scores", lambda q, k: q @ k.mT, "without a scale, the scores have the variance Dh"),
    (
        "scores",
        lambda q, k: q @ k.mT / q.shape[-1] ** 0.25,
        "For Dh = 16, the variance of the scores is 1.",
    ),
    (
        "scores",
        lambda q, k: F.normalize(q, dim=-1) @ k.mT,
        "A score is the product q · k, divided by √Dh.",
    ),
    (
        "heads",
        lambda x, n: x.reshape(len(x), n, x.shape[1], -1),
        "a reshape without a transposition mixes tokens and heads",
    ),
    (
        "heads",
        lambda x, n: x.unflatten(-1, (-1, n)).permute(0, 3, 1, 2),
        "head h takes each H-th channel",
    ),
    (
        "heads",
        lambda x, n: split_heads(x, n).flip(1),
        "Head h has the channels h · Dh to (h + 1) · Dh - 1 of each token.",
    ),
    (
        "causal_mask",
        lambda t: causal_mask(t).tril(-1),
        "without the diagonal, a token does not see itself",
    ),
    (
        "causal_mask",
        lambda t: causal_mask(t).T,
        "your tokens see later ones: the rows are the queries",
    ),
    (
        "causal_mask",
        lambda t: ~causal_mask(t),
        "True has to stand for visible keys, and not for hidden ones",
    ),
    (
        "causal_mask",
        lambda t: causal_mask(t).tril(1) | torch.eye(t).bool().roll(1),
        "A query sees the keys up to its own token.",
    ),
    ("masked_softmax", lambda s, m: s.softmax(-1) * m, "the mask is multiplied after the softmax"),
    (
        "masked_softmax",
        lambda s, m: (s + m).softmax(-1),
        "the mask is added to the scores as 0 and 1",
    ),
    ("masked_softmax", lambda s, m: (s * m).softmax(-1), "hidden scores are 0, and exp(0) is 1"),
    (
        "masked_softmax",
        lambda s, m: s.masked_fill(m, -1e30).softmax(-1),
        "visible keys are hidden: True means visible",
    ),
    (
        "masked_softmax",
        lambda s, m: s.masked_fill(~m, -math.inf).softmax(-1),
        "a query without keys gets NaN, since its softmax is 0/0",
    ),
    (
        "masked_softmax",
        lambda s, m: s.masked_fill(~m, -1e9).softmax(-1),
        "a query without keys gets uniform weights",
    ),
    (
        "masked_softmax",
        masked_softmax_by_where,
        "The gradient is finite, also if NaN is replaced later.",
    ),
    (
        "masked_softmax",
        weak_mask,
        "Visible scores near -200 and hidden ones of 10,000 change nothing.",
    ),
    (
        "masked_softmax",
        lambda s, m: s.exp() * m / s.exp().sum(),
        "The weights of a query that sees keys sum to 1.",
    ),
    (
        "masked_softmax",
        lambda s, m: masked_softmax(2 * s, m),
        "The rest is a softmax over the visible keys.",
    ),
    (
        "masked_softmax",
        lambda s, m: s.softmax(-1),
        "Hidden keys have the weight 0, also if a query sees no key.",
    ),
    (
        "padding",
        lambda x, m: encode(x, m | True),
        "real tokens read padding: the mask belongs to the keys",
    ),
    (
        "padding",
        lambda x, m: F.scaled_dot_product_attention(x, x, x, m),
        "by broadcasting, a sentence has the mask of another one",
    ),
    (
        "padding",
        lambda x, m: encode(2 * x, m),
        "Real tokens have the outputs of their sentence alone.",
    ),
    ("sinusoids", unequal_wavelengths, "sine and cosine of a pair have different exponents"),
    ("sinusoids", lambda t, d: sinusoids(t, d, first=1), "the positions start at 1"),
    ("sinusoids", sines_first, "all sines come before all cosines"),
    ("sinusoids", lambda t, d: sinusoids(t, d, step=1), "the exponent is -i/d"),
    (
        "sinusoids",
        lambda t, d: sinusoids(t, d).flip(1),
        "The row of position 0 is 0, 1, 0, 1 and so on.",
    ),
    (
        "sinusoids",
        lambda t, d: sinusoids(t, d, step=-2),
        "The angle of pair i at position p is p · 10000^(-2i/d).",
    ),
    ("rotary", rotary_of_queries, "only the queries are rotated"),
    ("rotary", rotary_mixed, "q and k have different pairs"),
    ("rotary", rotary_clockwise, "the pairs turn clockwise"),
    ("rotary", rotary_without_rotation, "A rotation keeps the norms of q and k."),
    (
        "rotary",
        rotary_from_absolute_positions,
        "The scores stay if all positions grow by 7.",
    ),
    (
        "rotary",
        lambda q, k, p: rotary(q, k, torch.arange(len(p))),
        "Pair i turns by the angle p · 10000^(-2i/Dh).",
    ),
    (
        "layer_norm",
        lambda x, eps: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + eps).sqrt(),
        "the variance is divided by D - 1",
    ),
    ("layer_norm", layer_norm_over_tokens, "mean and variance are those over the tokens"),
    ("layer_norm", layer_norm_eps_outside, "eps is added to the root of the variance"),
    ("layer_norm", lambda x, eps: layer_norm(x, 0.0), "eps is missing"),
    ("layer_norm", lambda x, eps: layer_norm(x, 1e-5), "eps is not the argument"),
    (
        "layer_norm",
        lambda x, eps: layer_norm(x, eps / x.shape[-1]) / x.shape[-1] ** 0.5,
        "the squares are added up, and not averaged",
    ),
    (
        "layer_norm",
        lambda x, eps: x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt(),
        "The mean of the D numbers of a token is 0.",
    ),
    (
        "layer_norm",
        layer_norm_of_batch,
        "Other tokens do not change the result of a token.",
    ),
    ("layer_norm", lambda x, eps: layer_norm(x, 2 * eps), "The divisor is √(variance + eps)."),
    ("block", block_after_norm, "the residual is taken after the norm"),
    ("block", block_without_second_norm, "the feed-forward layer has no norm"),
    ("block", block_with_one_norm, "norm_1 is used for both sub-layers"),
    ("block", block_exchanged, "your pre-norm is post-norm, or the reverse"),
    ("block", block_with_norm_of_branch, "the norm is that of the branch alone"),
    ("block", block_without_residual, "A sub-layer is x + f(norm(x)) for pre = True."),
    ("decode", decode_from_zero, "the positions start at 0 in each call"),
    ("decode", decode_top_left, "new tokens miss the last ones of the cache"),
    ("decode", decode_without_mask, "a token sees later ones of its call"),
    (
        "decode",
        decode_without_positions,
        "Nine tokens in pieces of [9] have the outputs softmax(h kᵀ / √D) k.",
    ),
    (
        "mask_tokens",
        labels_everywhere,
        "15 % of the ordinary tokens have a label that is not -100.",
    ),
    ("mask_tokens", late_labels, "The label of a target is its id before masking."),
    ("mask_tokens", special_targets, "Special tokens have the label -100."),
    ("mask_tokens", only_masks, "80 % of the targets become the mask token."),
    ("mask_tokens", two_of_a_hundred, "10 % of the targets stay."),
    ("mask_tokens", noise_everywhere, "Tokens that are no targets stay."),
    ("mask_tokens", only_one_special_id, "Special tokens have the label -100."),
    ("mask_tokens", one_random_id, "All ids of the vocabulary are as likely."),
    (
        "mask_tokens",
        ids_beyond_the_vocabulary,
        "The other ids are random ones of the vocabulary.",
    ),
    ("ablate_head", slice_of_output, "a slice of the output has parts of all heads"),
    (
        "ablate_head",
        lambda z, w, b, h: ablate_head(z, w, 0 * b, h),
        "the bias belongs to no head, and stays",
    ),
    ("ablate_head", bias_for_each_head, "the bias is added once for each head"),
    ("ablate_head", only_this_head, "the other heads are removed"),
    ("ablate_head", rescaled_heads, "Without head 0, the output is that of a matrix with"),
]


def message_of(name: str, solution: Callable[..., Any]) -> str:
    with pytest.raises(WrongSolution) as caught:
        check(name, solution)
    return str(caught.value)


def stub(name: str) -> Callable[..., Any]:
    text = (STUBS / f"{name}.py").read_text()
    (function,) = re.findall(r"^def (\w+)", text, re.MULTILINE)
    assert function == FIRST[name].__name__
    return runpy.run_path(str(STUBS / f"{name}.py"))[function]


def claims(name: str, solution: Callable[..., Any]) -> list[_Claim]:
    """Return the claims of an exercise about a right solution."""

    def call(args: tuple[Any, ...], *shapes: Any, dtype: Any = None) -> Any:
        return solution(*args)

    found = []
    for seed, sizes in enumerate(SIZES):
        noise = torch.Generator().manual_seed(seed)

        def draw(*shape: int, noise: torch.Generator = noise) -> Tensor:
            return _draw(noise, *shape)

        found += [_Claim(*claim) for claim in EXERCISES[name](call, draw, sizes)]
    return found


def test_there_is_a_file_and_a_row_of_the_course_for_each_exercise() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (STUBS.parents[1] / "course.md").read_text(), re.MULTILINE)
    assert rows == list(EXERCISES)
    assert {file.stem for file in STUBS.glob("*.py")} == set(EXERCISES)
    for name, exercise in EXERCISES.items():
        page = str(exercise.__doc__).removeprefix("Exercise of ").removesuffix(".")
        first_line = f'"""Exercise {name} of {page}: `fourfold learn {name}` checks this file."""'
        assert (STUBS / f"{name}.py").read_text().startswith(first_line)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_file_without_a_solution_is_not_solved(name: str) -> None:
    assert message_of(name, stub(name)) == f"{name}: not solved"


@pytest.mark.parametrize("solutions", [FIRST, SECOND], ids=["first", "second"])
@pytest.mark.parametrize("name", EXERCISES)
def test_right_solutions_pass(
    name: str, solutions: dict[str, Callable[..., Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)  # of mask_tokens
    check(name, solutions[name])
    assert capsys.readouterr().out == f"{name}: right\n"


@pytest.mark.parametrize("name", EXERCISES)
def test_solutions_in_fp32_pass(name: str) -> None:
    torch.manual_seed(0)

    def single(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.float() if floating else value

    def solution(*args: Any) -> Any:
        if name == "block":  # its functions multiply by matrices in fp64
            return FIRST[name](*args).float()
        result = FIRST[name](*map(single, args))
        return tuple(map(single, result)) if isinstance(result, tuple) else single(result)

    check(name, solution)


@pytest.mark.parametrize(
    ("name", "solution", "message"),
    [pytest.param(*row, id=f"{row[0]}-{row[2][:40]}") for row in WRONG],
)
def test_a_wrong_solution_has_its_own_message(
    name: str, solution: Callable[..., Any], message: str
) -> None:
    torch.manual_seed(0)
    found = message_of(name, solution)
    if message.endswith((".", "with")):  # a property, followed by a counterexample
        assert found.startswith(f"{name}: {message}")
        assert re.search(r" For \S+\(.*\): expected \S+, got \S+", found)
    else:
        assert found == f"{name}: {message}"


@pytest.mark.parametrize("name", EXERCISES)
def test_each_message_has_a_wrong_solution(name: str) -> None:
    """Each property and each mistake of an exercise is the message of one row of the table."""
    torch.manual_seed(0)
    tested = [message for other, _, message in WRONG if other == name]
    for claim in claims(name, FIRST[name]):
        for message in dict(claim.mistakes):
            assert message in tested
    texts = {re.sub(r"\d+|\[.*?\]|True|False", "#", c.text) for c in claims(name, FIRST[name])}
    for text in texts - {"A sub-layer is norm(x + f(x)) for pre = #."}:
        assert any(text.startswith(re.sub(r"\d+|\[.*?\]|True", "#", one)) for one in tested), text


@pytest.mark.parametrize("name", EXERCISES)
def test_no_mistake_has_the_values_of_another_one(name: str) -> None:
    """At least one claim separates two mistakes, and each of them from the right values."""
    rows = [c for c in claims(name, FIRST[name]) if c.mistakes]
    for first in dict(rows[0].mistakes) if rows else ():
        assert any(c._replace(value=c.mistakes[first]).differences(c.expected).any() for c in rows)
        for second in set(rows[0].mistakes) - {first}:
            wrong = [c._replace(value=c.mistakes[first]) for c in rows]
            assert any(c.differences(c.mistakes[second]).any() for c in wrong), (first, second)
