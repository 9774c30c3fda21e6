"""Guards for calls on which `onnx.shape_inference` crashes the process or does not terminate.

Found by fuzzing every op in a child process with random attributes, types, data and numbers of outputs;
`tests/graph/ops/registry/test_onnx_guards.py` and `test_hostile_calls.py` repeat that.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from graph.ops.registry.registry import Call

MAX_RANK = 64  # of a tensor; numpy's limit
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def reject_crashing_calls(call: Call) -> None:
    """Raise ValueError with the contradiction for a call that `onnx.shape_inference` must not get."""
    name = call.op.removeprefix("ai.onnx::")
    for i, type in enumerate(call.inputs):
        if type is not None and len(type.shape) > MAX_RANK:
            raise ValueError(f"input {i} has {len(type.shape)} axes; tensors have at most {MAX_RANK}")
    for i in _PER_AXIS.get(name, ()):
        _listed_per_axis(call, i)
    guard = _GUARDS.get(name)
    if guard is not None:
        guard(call)


def check_ranks(call: Call) -> None:
    """Raise ValueError if a typed input has a rank the op does not accept."""
    ranks = _RANKS.get(call.op.removeprefix("ai.onnx::"), ())
    for (i, type), (low, high) in zip(enumerate(call.inputs), ranks, strict=False):
        if type is not None and not low <= len(type.shape) <= high:
            rank = str(low) if low == high else f"at least {low}"
            raise ValueError(f"input {i} is {type}; the op takes a tensor of rank {rank}")


def _listed_per_axis(call: Call, position: int) -> None:
    """Check an input with one number per axis: inference allocates one length per element."""
    type = call.inputs[position] if position < len(call.inputs) else None
    if type is not None and len(type.shape) == 1 and type.shape[0] > 2 * MAX_RANK:
        raise ValueError(
            f"input {position} is {type}, one or two numbers per axis; tensors have at most {MAX_RANK} axes"
        )


def _rank(call: Call, position: int) -> int:
    type = call.inputs[position] if position < len(call.inputs) else None
    return 0 if type is None else len(type.shape)


def _axis(call: Call, axis: int, rank: int) -> None:
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")


def _split(call: Call) -> None:
    """Check that there are as many outputs as parts, in each form of giving the parts."""
    outputs = len(call.used)
    lengths = call.constant(1)
    if lengths is not None and lengths.size != outputs:
        raise ValueError(f"has {outputs} outputs for {lengths.size} lengths")
    listed = call.attribute("split")
    if listed is not None and len(listed) != outputs:
        raise ValueError(f"has {outputs} outputs for {len(listed)} lengths")
    parts = call.attribute("num_outputs")
    if parts is not None and int(parts) != outputs:
        raise ValueError(f"has {outputs} outputs and num_outputs {parts}")
    _axis(call, int(call.attribute("axis", 0)), _rank(call, 0))


def _gather_nd(call: Call) -> None:
    batch_dims, rank = int(call.attribute("batch_dims", 0)), min(_rank(call, 0), _rank(call, 1))
    if not 0 <= batch_dims < max(rank, 1):
        raise ValueError(f"batch_dims {batch_dims} of tensors of rank {_rank(call, 0)} and {_rank(call, 1)}")


def _einsum(call: Call) -> None:
    """Check the equation; inference does not terminate on two consecutive dots."""
    equation = str(call.attribute("equation", "")).replace(" ", "")
    terms, _, result = equation.partition("->")
    for term in (*terms.split(","), result):
        if not _TERM.fullmatch(term):
            raise ValueError(f"equation {equation[:80]!r} has the term {term[:80]!r}; write letters and one '...'")


def _normalization(call: Call) -> None:
    _axis(call, int(call.attribute("axis", -1)), _rank(call, 0))


#: Op -> inputs that hold one number per axis.
_PER_AXIS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1, 2),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
#: Ranks that the text of the standard requires and its inference does not check for all inputs.
_SEQUENCE = ((3, 3), (3, 3), (3, 3), (2, 2), (1, 1), (3, 3))
_PICTURE = (2, MAX_RANK)
_RANKS: dict[str, tuple[tuple[int, int], ...]] = {
    "Conv": (_PICTURE, _PICTURE),
    "ConvInteger": (_PICTURE, _PICTURE),
    "ConvTranspose": (_PICTURE, _PICTURE),
    "GRU": _SEQUENCE,
    "Gemm": ((2, 2), (2, 2)),
    "InstanceNormalization": (_PICTURE,),
    "LSTM": (*_SEQUENCE, (3, 3), (2, 2)),
    "RNN": _SEQUENCE,
}
_GUARDS: dict[str, Callable[[Call], None]] = {
    "Einsum": _einsum,
    "GatherND": _gather_nd,
    "LayerNormalization": _normalization,
    "RMSNormalization": _normalization,
    "Split": _split,
}
