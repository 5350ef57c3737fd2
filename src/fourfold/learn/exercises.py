"""Claims about the solution f of each exercise: text, value, expected value, and typical mistakes.

f((arguments), shape, ...) calls the solution, and tests the shapes of what it returns. The random
inputs come from draw(shape), and all sizes in s differ. Mistakes are wrong values by a message. A
last entry is the tolerance of random values.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from functools import reduce

import torch
from torch import Tensor
from torch.autograd.functional import vjp
from torch.nn.functional import layer_norm as normalize
from torch.nn.functional import linear
from torch.nn.functional import scaled_dot_product_attention as attention


def self_attention(f, draw, s):
    """Exercise of page 5."""
    x, w_q, w_k, w_v = draw(s.b, s.tq, s.d), draw(s.d, s.dh), draw(s.d, s.dh), draw(s.d, s.dv)
    x[..., -1] = 1  # so that a row of w_v is added to all values
    order, shape = torch.arange(s.tq).flip(0), (s.b, s.tq, s.dv)
    permuted, y = f((x[:, order], w_q, w_k, w_v), shape), f((x, w_q, w_k, w_v), shape)
    more = f((x, w_q, w_k, torch.cat([w_v[:-1], w_v[-1:] + 1])), shape)
    yield "Permuted tokens give permuted outputs.", permuted[:, order], y
    yield "Weights sum to 1, so that values larger by 1 give outputs larger by 1.", more - y, 1
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    mistakes = {
        "the softmax runs over the queries": (q @ k.mT / s.dh**0.5).softmax(-2) @ v,
        "a causal mask hides the tokens after a query": attention(q, k, v, is_causal=True),
        "queries and keys are exchanged": attention(k, q, v),
        "the factor 1/√Dk is missing": attention(q, k, v, scale=1),
        "the scores are divided by √D and not by √Dk": attention(q, k, v, scale=s.d**-0.5),
    }
    yield "The result is softmax(q kᵀ / √Dk) v.", y, attention(q, k, v), mistakes


def scores(f, draw, s):
    """Exercise of page 6."""
    for width in (16, 256):
        y = f((draw(1, 3, 64, width), draw(1, 3, 64, width)), (1, 3, 64, 64))
        yield f"For Dh = {width}, the variance of the scores is 1.", y.var(), 1, (), 0.25
    q, k = draw(s.b, s.h, s.tq, s.dh), draw(s.b, s.h, s.tk, s.dh)
    y, products = f((q, k), (s.b, s.h, s.tq, s.tk)), q @ k.mT
    mistakes = {
        "divided by Dh and not by its root, the scores have the variance 1/Dh": products / s.dh,
        "divided by √(H · Dh), the scores depend on H": products / (s.h * s.dh) ** 0.5,
        "without a scale, the scores have the variance Dh": products,
    }
    yield "A score is the product q · k, divided by √Dh.", y, products / s.dh**0.5, mistakes


def heads(f, draw, s):
    """Exercise of page 6."""
    x, shape = draw(s.b, s.tq, s.h * s.dh), (s.b, s.h, s.tq, s.dh)
    mistakes = {
        "a reshape without a transposition mixes tokens and heads": x.reshape(shape),
        "head h takes each H-th channel": x.unflatten(-1, (s.dh, s.h)).permute(0, 3, 1, 2),
    }
    text = "Head h has the channels h · Dh to (h + 1) · Dh - 1 of each token."
    yield text, f((x, s.h), shape), torch.stack(x.split(s.dh, -1), 1), mistakes


def causal_mask(f, draw, s):
    """Exercise of page 6."""
    y, right = f((s.tk,), (s.tk, s.tk), dtype=torch.bool), torch.ones(s.tk, s.tk).tril().bool()
    mistakes = {
        "without the diagonal, a token does not see itself": right.tril(-1),
        "your tokens see later ones: the rows are the queries": right.T,
        "True has to stand for visible keys, and not for hidden ones": ~right,
    }
    yield "A query sees the keys up to its own token.", y, right, mistakes


def masked_softmax(f, draw, s):
    """Exercise of page 6."""
    x, mask = draw(s.b, s.tq, s.tk), draw(s.tq, s.tk) > 0
    mask[0], mask[1, 0], mask[1, 1] = False, True, False
    loud = f(((x - 200).masked_fill(~mask, 1e4), mask), x.shape)
    y, gradient = vjp(lambda x: f((x, mask), x.shape), x, draw(*x.shape))
    hidden = x.masked_fill(~mask, -math.inf).softmax(-1)
    mistakes = {
        "the mask is multiplied after the softmax": x.softmax(-1) * mask,
        "the mask is added to the scores as 0 and 1": (x + mask).softmax(-1),
        "hidden scores are 0, and exp(0) is 1": (x * mask).softmax(-1),
        "visible keys are hidden: True means visible": x.masked_fill(mask, -math.inf).softmax(-1),
        "a query without keys gets NaN, since its softmax is 0/0": hidden,
        "a query without keys gets uniform weights": hidden.nan_to_num(1 / s.tk),
    }
    yield "Hidden keys have the weight 0, also if a query sees no key.", y * ~mask, 0
    yield "The weights of a query that sees keys sum to 1.", y[:, mask.any(1)].sum(-1), 1
    yield "The rest is a softmax over the visible keys.", y, hidden.nan_to_num(0), mistakes
    yield "Visible scores near -200 and hidden ones of 10,000 change nothing.", loud, y
    yield "The gradient is finite, also if NaN is replaced later.", gradient.isfinite(), True


def padding(f, draw, s):
    """Exercise of page 6."""
    x, mask = draw(s.tq, s.tq, s.d), (draw(s.tq, s.tq) > 0) | torch.eye(s.tq).bool()
    x *= torch.where(mask, 1, 10)[..., None]
    mistakes = {
        "real tokens read padding: the mask belongs to the keys": attention(x, x, x)[mask],
        "by broadcasting, a sentence has the mask of another one": attention(x, x, x, mask)[mask],
    }
    y, right = f((x, mask), x.shape)[mask], attention(x, x, x, mask[:, None])[mask]
    yield "Real tokens have the outputs of their sentence alone.", y, right, mistakes


def sinusoids(f, draw, s):
    """Exercise of page 7."""
    t, d = s.tk, 2 * s.h
    p, i, y = torch.arange(t), torch.arange(d), f((t, d), (t, d))
    right, each = _angles(p, d), p[:, None] * 10_000.0 ** (-i / d)
    unpaired = torch.where(i % 2 == 0, each.sin(), each.cos())
    mistakes = {
        "sine and cosine of a pair have different exponents": unpaired,
        "the positions start at 1": _waves(_angles(p + 1, d)),
        "all sines come before all cosines": torch.cat([right.sin(), right.cos()], 1),
        "the exponent is -i/d": _waves(_angles(p, d, step=1)),
    }
    yield "The row of position 0 is 0, 1, 0, 1 and so on.", y[0], i % 2
    yield "The angle of pair i at position p is p · 10000^(-2i/d).", y, _waves(right), mistakes


def rotary(f, draw, s):
    """Exercise of page 7."""
    shape, p = (s.b, s.h, s.tq, s.dh), 2 * torch.arange(s.tq) + 1
    x = draw(2, *shape)
    later, y = (torch.stack(f((*x, p + n), shape, shape)) for n in (7, 0))
    yield "A rotation keeps the norms of q and k.", y.norm(dim=-1), x.norm(dim=-1)
    yield "The scores stay if all positions grow by 7.", later[0] @ later[1].mT, y[0] @ y[1].mT
    norms, expected = (z[0].unflatten(-1, (-1, 2)).norm(dim=-1) for z in (y, x))
    halves = bool((norms - expected).abs().max() > 1e-3)  # pairs of neighbours keep their norms
    right = _rotate(x, p, halves)
    mistakes = {
        "only the queries are rotated": torch.stack([right[0], x[1]]),
        "q and k have different pairs": torch.stack([right[0], _rotate(x, p, not halves)[1]]),
        "the pairs turn clockwise": _rotate(x, -p, halves),
    }
    yield "Pair i turns by the angle p · 10000^(-2i/Dh).", y, right, mistakes


def layer_norm(f, draw, s):
    """Exercise of page 8."""
    x, eps = draw(s.b, s.tq, s.d) / 100 + 0.1, 3e-5
    y, first = f((x, eps), x.shape), f((x[:, :1], eps), (s.b, 1, s.d))
    yield "The mean of the D numbers of a token is 0.", y.mean(-1), 0
    yield "Other tokens do not change the result of a token.", y[:, :1], first
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    mistakes = {
        "the variance is divided by D - 1": centred / (x.var(-1, keepdim=True) + eps).sqrt(),
        "mean and variance are those over the tokens": normalize(x.mT, (s.tq,), eps=eps).mT,
        "eps is added to the root of the variance": centred / (variance.sqrt() + eps),
        "eps is missing": centred / variance.sqrt(),
        "eps is not the argument": normalize(x, (s.d,), eps=1e-5),
        "the squares are added up, and not averaged": centred / (s.d * variance + eps).sqrt(),
    }
    yield "The divisor is √(variance + eps).", y, normalize(x, (s.d,), eps=eps), mistakes


def block(f, draw, s):
    """Exercise of page 8."""
    x, mix, w = draw(s.b, s.tq, s.d), draw(s.tq, s.tq), draw(s.d, s.d)
    branches = (lambda y: (mix @ y).tanh(), lambda y: (y @ w).tanh())
    norms = (lambda y: 2 * normalize(y, (s.d,)), lambda y: normalize(y, (s.d,)) - 1)
    steps = (lambda y, f, norm: norm(y + f(y)), lambda y, f, norm: y + f(norm(y)))
    after, inside = (lambda y, f, norm: norm(y) + f(norm(y)), lambda y, f, norm: y + norm(f(y)))
    for pre, *uses in itertools.product((True, False), (False, True), (False, True)):
        used = [f if use else torch.zeros_like for f, use in zip(branches, uses, strict=True)]
        y, step = f((x, *used, *norms, pre), x.shape), steps[pre]
        mistakes = {
            "your pre-norm is post-norm, or the reverse": _chain(x, steps[not pre], used, norms),
            "the feed-forward layer has no norm": _chain(x, step, used, (norms[0], torch.clone)),
            "norm_1 is used for both sub-layers": _chain(x, step, used, norms[:1] * 2),
            "the residual is taken after the norm": _chain(x, after, used, norms),
            "the norm is that of the branch alone": _chain(x, inside, used, norms),
        }
        text = f"A sub-layer is {'x + f(norm(x))' if pre else 'norm(x + f(x))'} for pre = {pre}."
        yield text, y, _chain(x, step, used, norms), mistakes


def decode(f, draw, s):
    """Exercise of page 13."""
    x, positions, at = draw(s.b, 9, s.d), draw(12, s.d), torch.arange(9)
    h = x + positions[:9]
    for pieces in ([9], [1] * 9, *([n, 9 - n] for n in range(1, 9)), [2, 3, 4]):
        cache, outputs, ends = None, [], list(itertools.accumulate(pieces))
        for piece, n in zip(x.split(pieces, 1), ends, strict=True):
            y, cache = f((piece, positions, cache), piece.shape, (s.b, n, s.d))
            outputs.append(y)
        again = torch.cat([at[:n] for n in pieces])
        r, end = x + positions[again], torch.tensor(ends).repeat_interleave(torch.tensor(pieces))
        mistakes = {
            "the positions start at 0 in each call": attention(r, r, r, is_causal=True),
            "new tokens miss the last ones of the cache": attention(h, h, h, at <= again[:, None]),
            "a token sees later ones of its call": attention(h, h, h, at < end[:, None]),
        }
        text = f"Nine tokens in pieces of {pieces} have the outputs softmax(h kᵀ / √D) k."
        yield text, torch.cat(outputs, 1), attention(h, h, h, is_causal=True), mistakes


def mask_tokens(f, draw, s):
    """Exercise of page 13."""
    ids = (300 * draw(200, 500)).abs().long().clamp(max=1999)
    ids[:, ::10] = torch.arange(50) % 4  # special tokens
    inputs, labels = f((ids, [0, 1, 2, 3], 3, 2000), *[ids.shape] * 2, dtype=torch.long)
    target, special, kept = labels != -100, ids < 4, inputs == ids
    random = inputs[target & ~kept & (inputs != 3)]
    for text, values, share in (
        ("15 % of the ordinary tokens have a label that is not -100.", target[~special], 0.15),
        ("Special tokens have the label -100.", target[special], 0),
        ("The label of a target is its id before masking.", (labels == ids)[target], 1),
        ("Tokens that are no targets stay.", kept[~target], 1),
        ("80 % of the targets become the mask token.", (inputs == 3)[target], 0.8),
        ("10 % of the targets stay.", kept[target], 0.1),
        ("The other ids are random ones of the vocabulary.", (random - 1000).abs() < 1000, 1),
        ("All ids of the vocabulary are as likely.", random < 500, 0.25),
    ):
        yield text, values.double().mean(), share, (), 0.02


def ablate_head(f, draw, s):
    """Exercise of page 16."""
    z, w, bias = draw(s.b, s.h, s.tq, s.dv), draw(s.d, s.h * s.dv), draw(s.d)
    x = z.transpose(1, 2).flatten(2)
    for h in range(s.h):
        others, outside = (torch.arange(n) // s.dv != h for n in (s.h * s.dv, s.d))
        right = linear(x, w * others, bias)
        mistakes = {
            "a slice of the output has parts of all heads": linear(x, w, bias) * outside,
            "the bias belongs to no head, and stays": right - bias,
            "the bias is added once for each head": right + bias * (s.h - 2),
            "the other heads are removed": linear(x, w * ~others, bias),
        }
        text = f"Without head {h}, the output is that of a matrix with columns 0 for this head."
        yield text, f((z, w, bias, h), (s.b, s.tq, s.d)), right, mistakes


def _angles(positions: Tensor, width: int, step: int = 2) -> Tensor:
    """Return the angles of all pairs of channels; the exponent of pair i is -step · i / width."""
    exponents = step * torch.arange(width // 2, dtype=torch.float64) / width
    return positions.double()[:, None] * 10_000.0**-exponents


def _waves(angles: Tensor) -> Tensor:
    """Return sine and cosine of each angle as neighbouring channels."""
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _rotate(x: Tensor, positions: Tensor, halves: bool = False) -> Tensor:
    """Rotate pairs of channels counterclockwise; the pairs are neighbours or halves."""
    pairs = x.unflatten(-1, (2, -1)).mT if halves else x.unflatten(-1, (-1, 2))
    turns = torch.exp(1j * _angles(positions, x.shape[-1]))
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    return (turned.mT if halves else turned).flatten(-2)


def _chain(x: Tensor, step: Callable, branches: Iterable, norms: Iterable) -> Tensor:
    """Return the output of branches, each with its norm; `step` is the formula of one."""
    return reduce(lambda y, pair: step(y, *pair), zip(branches, norms, strict=True), x)


_FIRST = (self_attention, scores, heads, causal_mask, masked_softmax, padding, sinusoids, rotary)
EXERCISES = {f.__name__: f for f in (*_FIRST, layer_norm, block, decode, mask_tokens, ablate_head)}
