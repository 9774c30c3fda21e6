"""Shape inference of variables from the ops that read them, and recognition of weights.

FullyConnected(data [32, 784], weight ?, bias ?), num_hidden 10     weight [10, 784], bias [10]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graph.formats.shared.attributes import Attributes
from graph.formats.shared.op_helpers import checked_shape, same_each
from graph.ir import TensorType

Shape = tuple[int, ...]
InputTypes = Sequence[TensorType | None]

_IN, _WEIGHT, _STATE = "input", "parameter", "state"
_LAYER = (_IN, _WEIGHT, _WEIGHT)
_BATCH_NORMS = ("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "batch_norm")
#: Roles of the inputs of each op, by position; the last role applies to all further inputs.
ROLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("FullyConnected", "dense", "Convolution", "Convolution_v1", "conv2d", "Deconvolution"), _LAYER),
    **dict.fromkeys(("LayerNorm", "InstanceNorm", "GroupNorm"), _LAYER),
    **dict.fromkeys(_BATCH_NORMS, (_IN, _WEIGHT, _WEIGHT, _STATE, _STATE)),
    "Embedding": (_IN, _WEIGHT),
    "LeakyReLU": (_IN, _WEIGHT),
    "RNN": (_IN, _WEIGHT, _IN, _IN),
}
#: Ops whose inputs all have the same shape.
_ALIKE = frozenset(
    {
        "elemwise_add",
        "_plus",
        "_Plus",
        "elemwise_sub",
        "_minus",
        "elemwise_mul",
        "_mul",
        "elemwise_div",
        "_div",
        "add_n",
        "ElementWiseSum",
        "_maximum",
        "_minimum",
        "_grad_add",
        "LinearRegressionOutput",
        "LogisticRegressionOutput",
        "MAERegressionOutput",
        "where",
    }
)
_WEIGHT_WORDS = ("weight", "bias", "gamma", "beta", "parameters", "alpha")
_STATE_WORDS = ("moving_mean", "moving_var", "running_mean", "running_var", "moving_inv_var")


def role_by_name(name: str) -> str:
    """Role of a variable by the suffix of its name."""
    if name.endswith(_STATE_WORDS):
        return _STATE
    return _WEIGHT if name.endswith(_WEIGHT_WORDS) else _IN


def role_by_position(op: str, place: int) -> str:
    """Role of a variable by its input position in an op."""
    roles = ROLES.get(op, (_IN,))
    return roles[min(place, len(roles) - 1)]


def shapes_of_inputs(op: str, a: Attributes, known: InputTypes) -> list[Shape | None]:
    """Shape of each input that follows from the other inputs and the attributes; None where unknown.

    Raises ValueError on attributes the op does not take.
    """
    data = known[0] if known else None
    if op in _ALIKE:
        common = next((t.shape for t in known if t is not None), None)
        return [common] * len(known)
    rule = _RULES.get(op)
    if rule is None or data is None:
        return [None] * len(known)
    found: list[Shape | None] = [data.shape, *(checked_shape(shape) for shape in rule(a, data.shape))]
    return (found + [None] * len(known))[: len(known)]


def _dense(a: Attributes, x: Shape) -> list[Shape]:
    units = a.integer("num_hidden", "units")
    return [(units, math.prod(x[1:]) if a.flag("flatten", default=True) else x[-1]), (units,)]


def _convolution(a: Attributes, x: Shape) -> list[Shape]:
    rank = len(x) - 2
    filters, kernel = a.integer("num_filter", "channels"), same_each(a.integers("kernel", "kernel_size"), rank, 1)
    return [(filters, x[1] // max(a.integer("num_group", "groups", default=1), 1), *kernel), (filters,)]


def _deconvolution(a: Attributes, x: Shape) -> list[Shape]:
    filters, kernel = a.integer("num_filter"), same_each(a.integers("kernel"), len(x) - 2, 1)
    return [(x[1], filters // max(a.integer("num_group", default=1), 1), *kernel), (filters,)]


def _channels(a: Attributes, x: Shape) -> list[Shape]:
    return [(x[a.integer("axis", default=1)],)] * 4


def _last(a: Attributes, x: Shape) -> list[Shape]:
    return [(x[a.integer("axis", default=-1)],)] * 2


def _embedding(a: Attributes, x: Shape) -> list[Shape]:
    return [(a.integer("input_dim"), a.integer("output_dim"))]


def _labels(a: Attributes, x: Shape) -> list[Shape]:
    if a.flag("multi_output", default=False):
        return [(x[0], math.prod(x[2:])) if len(x) > 3 else (x[0], *x[2:])]
    return [x[:-1] if a.flag("preserve_shape", default=False) else x[:1]]


def _recurrent(a: Attributes, x: Shape) -> list[Shape]:
    """Packed weights and states: per layer and direction, the gates of input and state products, two biases each."""
    size, layers = a.integer("state_size"), a.integer("num_layers")
    ways = 2 if a.flag("bidirectional", default=False) else 1
    gates = {"lstm": 4, "gru": 3}.get(a.text("mode"), 1)
    each = [x[2] if layer == 0 else ways * size for layer in range(min(layers, 1024))]
    packed = sum(ways * gates * size * (inner + size + 2) for inner in each)
    return [(packed,), (layers * ways, x[1], size), (layers * ways, x[1], size)]


_RULES: dict[str, Callable[[Attributes, Shape], list[Shape]]] = {
    **dict.fromkeys(("FullyConnected", "dense"), _dense),
    **dict.fromkeys(("Convolution", "Convolution_v1", "conv2d"), _convolution),
    "Deconvolution": _deconvolution,
    **dict.fromkeys((*_BATCH_NORMS, "InstanceNorm", "GroupNorm", "LeakyReLU"), _channels),
    "LayerNorm": _last,
    "Embedding": _embedding,
    **dict.fromkeys(("SoftmaxOutput", "Softmax"), _labels),
    "RNN": _recurrent,
    "softmax_cross_entropy": lambda a, x: [x[:1]],
    "pick": lambda a, x: [x[:-1]],
    "SequenceMask": lambda a, x: [(x[1 - a.integer("axis", default=0)],)],
}
