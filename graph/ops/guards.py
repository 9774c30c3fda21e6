"""Uses of standard ops on which `onnx.shape_inference` ends the process instead of raising, refused before it is asked.

Found by asking every op with random attributes, types and numbers of outputs in a child process;
`tests/graph/ops/test_guards.py` asks again.
"""

from __future__ import annotations

from collections.abc import Callable

from graph.ops.table import Call


def refuse_crashes(call: Call) -> None:
    """Nothing for a call that may be asked. Raises ValueError, saying what contradicts what."""
    guard = _GUARDS.get(call.op.removeprefix("ai.onnx::"))
    if guard is not None:
        guard(call)


def _rank(call: Call, position: int) -> int:
    type = call.inputs[position] if position < len(call.inputs) else None
    return 0 if type is None else len(type.shape)


def _axis(call: Call, axis: int, rank: int) -> None:
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")


def _split(call: Call) -> None:
    """As many outputs as parts, whichever way the parts are said."""
    outputs = len(call.wanted)
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
    batch_dims, least = int(call.attribute("batch_dims", 0)), min(_rank(call, 0), _rank(call, 1))
    if not 0 <= batch_dims < max(least, 1):
        raise ValueError(f"batch_dims {batch_dims} of tensors of rank {_rank(call, 0)} and {_rank(call, 1)}")


def _normalization(call: Call) -> None:
    _axis(call, int(call.attribute("axis", -1)), _rank(call, 0))


_GUARDS: dict[str, Callable[[Call], None]] = {
    "GatherND": _gather_nd,
    "LayerNormalization": _normalization,
    "RMSNormalization": _normalization,
    "Split": _split,
}
