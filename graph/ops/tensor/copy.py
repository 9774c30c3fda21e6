"""Identity ops: a copy with its own storage, copies to the host and back, and stop-gradient."""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import FETCH, OFFLOAD, TensorType, Val
from graph.ops.registry.registry import Call, body, op
from graph.ops.tensor.shape import copy_work, no_work


def _same(call: Call) -> tuple[TensorType | None, ...]:
    return (call.inputs[0],)


@op("remat::StopGradient", infer=_same, views=((0, 0),), work=no_work)
def stop_gradient(call: Call, x: np.ndarray) -> np.ndarray:
    return x


@op("remat::Copy", infer=_same, work=copy_work)
def copy(call: Call, x: np.ndarray) -> np.ndarray:
    return x.copy()


@op(OFFLOAD, infer=_same, work=copy_work)
def offload(call: Call, x: np.ndarray) -> np.ndarray:
    return x.copy()


@op(FETCH, infer=_same, work=copy_work)
def fetch(call: Call, x: np.ndarray) -> np.ndarray:
    return x.copy()


@body("remat::StopGradient")
@body("remat::Copy")
@body(OFFLOAD)
@body(FETCH)
def _identity(emit: Emit, call: Call, x: Val) -> tuple[Val, ...]:
    return (emit.op("Identity", x),)
