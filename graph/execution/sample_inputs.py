"""Sample arrays for inputs, parameters and states, deterministic in a seed and the value's name.

Readers determine the distribution: indices are in range, labels are classes, variances are positive,
weights are scaled by their fan-in. Deep nets stay finite, and no two weights are equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from graph.errors import CannotExecute
from graph.execution.arena import unpacked
from graph.ir import ABSENT, DTYPE_BITS, FLOAT_DTYPES, Graph, Node, Role, TensorType, producers
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array

#: (op, input) that must be positive.
_POSITIVE = frozenset(
    {
        ("Log", 0),
        ("Sqrt", 0),
        ("Pow", 0),
        ("BatchNormalization", 4),
        ("remat::SGD8bit", 3),
        ("remat::Adam", 3),
        ("remat::Adam8bit", 3),
        ("remat::Adam8bit", 5),
        ("remat::Adafactor", 3),
        ("remat::Adafactor", 4),
    }
)
#: (op, input) that counts steps from one.
_STEP_COUNTS = frozenset({("remat::Adam", 4), ("remat::Adam8bit", 6), ("remat::Adafactor", 2)})
#: (op, input) near one: scales of normalizations.
_NEAR_ONE = frozenset(
    (op, 1)
    for op in (
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "remat::BatchNorm",
    )
)
#: Ops with index inputs: op -> (position of the indices, position of the data).
_INDEXED = {"Gather": (1, 0), "GatherElements": (1, 0), "Scatter": (1, 0), "ScatterElements": (1, 0)}
_INDEXED_ND = {"GatherND": (1, 0), "ScatterND": (1, 0)}
_LABELLED = {"SoftmaxCrossEntropyLoss": (1, 0), "NegativeLogLikelihoodLoss": (1, 0)}
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "remat::LSTMGrad", "remat::GRUGrad"})
#: Ops whose outputs hold elements of the inputs at these positions.
_PASSING: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "Identity",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Cast",
            "CastLike",
            "Transpose",
            "Slice",
            "Split",
            "Expand",
            "Tile",
            "Gather",
            "GatherElements",
            "GatherND",
            "DepthToSpace",
            "SpaceToDepth",
        ),
        (0,),
    ),
    "Where": (1, 2),
    "Concat": tuple(range(64)),
}

IntRange = tuple[int, int]  # half-open
DEFAULT_RANGE: IntRange = (0, 2)


def sample_arrays(
    graph: Graph,
    seed: int,
    given: Mapping[str, np.ndarray] | None = None,
    without: Collection[int] = (),
    bounded: Collection[str] = (),
) -> dict[int, np.ndarray]:
    """Arrays of all values that no node writes, except `without`: given, else constant, else sampled.

    Those named in `bounded` may be shorter than their types. Raises CannotExecute for a given array of another type or
    unknown name.
    """
    given = given or {}
    ranges, uses = _integer_ranges(graph), _uses(graph)
    result: dict[int, np.ndarray] = {}
    left = set(given)
    for v, producer in enumerate(producers(graph)):
        value = graph.values[v]
        if producer >= 0 or v in without:
            continue
        if value.name in given:
            left.discard(value.name)
            result[v] = _checked(value.name, np.asarray(given[value.name]), value.type, value.name in bounded)
        elif value.data is not None:
            result[v] = value.data
        elif value.type is None:
            raise CannotExecute(
                f"value {value.name} has only a size; declare its dtype and shape, or plan without --execute"
            )
        else:
            draws = _generator(seed, value.name)
            result[v] = _array(draws, value.type, value.role, uses.get(v, []), ranges.get(v, DEFAULT_RANGE))
    if left:
        raise CannotExecute(f"unknown name {min(left)!r} in feeds; use the name of an input, parameter or state")
    return result


def _checked(name: str, array: np.ndarray, type: TensorType | None, is_bounded: bool) -> np.ndarray:
    actual = type_of_array(array)
    if type is not None and actual != type and not (is_bounded and is_part(actual, type)):
        raise CannotExecute(f"{name} is given as {actual}; the graph declares {type}")
    return array


def is_part(actual: TensorType, declared: TensorType) -> bool:
    """True if `actual` has the dtype and rank of `declared` and is nowhere longer."""
    return (
        actual.dtype == declared.dtype
        and len(actual.shape) == len(declared.shape)
        and all(own <= most for own, most in zip(actual.shape, declared.shape, strict=True))
    )


def _generator(seed: int, name: str) -> np.random.Generator:
    key = hashlib.blake2b(f"{seed}\0feed\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))


def _array(
    draws: np.random.Generator, type: TensorType, role: Role, uses: list[tuple[Node, int]], span: IntRange
) -> np.ndarray:
    dtype = numpy_dtype(type.dtype)
    if type.dtype == "bool":
        return np.asarray(draws.random(type.shape) < 0.5)
    if type.dtype.startswith("complex"):
        return (draws.standard_normal(type.shape) + 1j * draws.standard_normal(type.shape)).astype(dtype)
    if type.dtype not in FLOAT_DTYPES:
        low, high = span
        largest = 2 ** (DTYPE_BITS[type.dtype] - (type.dtype[0] == "i")) - 1
        return np.asarray(draws.integers(low, max(low + 1, min(high, largest + 1)), type.shape)).astype(dtype)
    places = {(node.op, i) for node, i in uses}
    if type.dtype == "float8e8m0":  # powers of two: every byte but 0xFF is a number
        return unpacked(draws.integers(120, 134, type.nbytes, dtype=np.uint8), type)
    if places & _POSITIVE:
        return np.asarray(draws.uniform(0.5, 1.5, type.shape)).astype(dtype)
    if places & _NEAR_ONE:
        return np.asarray(draws.normal(1, 0.1, type.shape)).astype(dtype)
    if places & _STEP_COUNTS:
        return np.ones(type.shape, dtype)
    numbers: Any = np.asarray(draws.random(type.shape, np.float64 if type.dtype == "float64" else np.float32))
    scale = 1.0 if role is Role.INPUT else _scale(type, uses)
    numbers -= 0.5  # uniform, of variance scale²; three times as fast as normal
    numbers *= scale * math.sqrt(12)
    return np.asarray(numbers, dtype)


def _scale(type: TensorType, uses: list[tuple[Node, int]]) -> float:
    """1 / √fan-in of a weight, 1 of an embedding, 0.1 of a bias or a state."""
    if len(type.shape) < 2:
        return 0.1
    op = uses[0][0].op if uses else ""
    if op == "Gather":
        return 1.0
    if op in ("Conv", "ConvTranspose"):
        return 1 / math.sqrt(max(1, math.prod(type.shape[1:])))
    transposed = op == "Gemm" and uses[0][0].attributes.get("transB", 0)
    return 1 / math.sqrt(max(1, type.shape[-1 if transposed else -2]))


def _uses(graph: Graph) -> dict[int, list[tuple[Node, int]]]:
    """Value that no node writes -> (node, position) of every read."""
    uses: dict[int, list[tuple[Node, int]]] = {v: [] for v, producer in enumerate(producers(graph)) if producer < 0}
    for node in graph.nodes:
        for i, v in enumerate(node.inputs):
            if v in uses:
                uses[v].append((node, i))
    return uses


def _integer_ranges(graph: Graph) -> dict[int, IntRange]:
    """Value -> intersection of the integer ranges its readers accept, propagated from readers to their inputs."""
    ranges: dict[int, IntRange] = {}

    def narrow(v: int, low: int, high: int) -> None:
        a, b = ranges.get(v, (low, high))
        ranges[v] = (max(a, low), min(b, high))

    for node in reversed(graph.nodes):
        accepted = _index_range(graph, node)
        if accepted is not None and accepted[0] < len(node.inputs) and node.inputs[accepted[0]] != ABSENT:
            narrow(node.inputs[accepted[0]], *accepted[1])
        for i in _PASSING.get(node.op, ()):
            for out in node.writes:
                if out in ranges and i < len(node.inputs) and node.inputs[i] != ABSENT:
                    narrow(node.inputs[i], *ranges[out])
    return ranges


def _index_range(graph: Graph, node: Node) -> tuple[int, IntRange] | None:
    """(position of the integer input, its valid range) for an op with indices; None for any other."""
    axis = int(node.attributes.get("axis", 0))
    shape = node.attributes.get("input_shape")
    if node.op in ("remat::GatherGrad", "remat::GatherElementsGrad") and shape:
        return 1, (0, shape[axis])
    if node.op == "remat::GatherNDGrad" and shape:
        return 1, (0, min(shape))
    if node.op == "remat::NllLossGrad" and shape:
        return 1, (0, shape[1])
    if node.op == "remat::SoftmaxCrossEntropyLossGrad":
        return 2, (0, _length(graph, node, 1, 1))
    if node.op in _RECURRENT:
        return 4, (1, _length(graph, node, 0, 0) + 1)
    if node.op in _INDEXED:
        return _INDEXED[node.op][0], (0, _length(graph, node, 0, axis))
    if node.op in _INDEXED_ND:
        type = graph.values[node.inputs[0]].type
        return 1, (0, min(type.shape, default=1) if type is not None else 1)
    if node.op in _LABELLED:
        return 1, (0, _length(graph, node, 0, 1))
    if count := next((i for op, i in _STEP_COUNTS if op == node.op), None):
        return count, (1, 2)
    if node.op == "OneHot":
        depth = graph.values[node.inputs[1]].data
        return 0, (0, 2 if depth is None else int(depth.reshape(-1)[0]))
    return None


def _length(graph: Graph, node: Node, position: int, axis: int) -> int:
    """Length of an input along an axis; 1 if its type is unknown."""
    v = node.inputs[position]
    type = graph.values[v].type if v != ABSENT else None
    return 1 if type is None or not type.shape else type.shape[axis]
