"""Operations for `fourfold.edit`, and the contexts `edit` and `record`.

A name of a tensor is [STACK.]LAYER.PART.SLOT[.INDEX], in which * stands for any text. STACK is the
path of the stack in the model, such as encoder, and left out if it is "stack". PART is self, cross
or ff:

=================================  ===================================================
3.in, 3.out                        residual stream (B, T, D) before and after block 3
3.self.in, 3.cross.in, 3.ff.in     what only this sub-layer reads (B, T, D)
3.self.out, 3.cross.out, 3.ff.out  what it adds to the residual stream (B, T, D)
3.self.q.N, 3.self.k.N, .v.N       queries, keys and values (B, T, Dh) of head N, rotated
3.self.weights.N                   attention weights (B, Tq, Tk) of head N
3.self.head.N                      output (B, T, Dv) of head N, before the output matrix
3.ff.neuron.N                      hidden neuron N (B, T), the input of the second matrix
=================================  ===================================================

Without the index, a name means the tensor of all heads (B, H, T, D), or neurons (B, T, F). k and v
have an index for each head of keys and values. A recurrent decoder has 0.cross.weights.0 and
0.cross.head.0. Positions are columns, counted from the first token of the sequence.
"""

from fourfold.edits.contexts import edit, record
from fourfold.edits.operations import (
    Operation,
    add,
    drop,
    dump_edits,
    hide,
    load_edits,
    mean,
    patch,
    resample,
    scale,
    set,
    zero,
)
from fourfold.edits.run import Run

__all__ = [
    "Operation",
    "Run",
    "add",
    "drop",
    "dump_edits",
    "edit",
    "hide",
    "load_edits",
    "mean",
    "patch",
    "record",
    "resample",
    "scale",
    "set",
    "zero",
]
