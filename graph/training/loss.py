"""The loss that a training step minimizes: a named value, or a cross-entropy added to class scores.

... ──▶ logits ──▶ Softmax ──▶ prob        becomes        ... ──▶ logits ──▶ loss ◀── labels

`cross_entropy:OUTPUT` and `cross_entropy:OUTPUT:AXIS` name the scores, for models with several outputs or dense ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from graph.analysis.aliasing import views_of
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.ir import FLOAT_DTYPES, Graph, Node, Phase, Role, TensorType, Val, consumers, producers
from graph.transforms.dead_code import keep_nodes

_SOFTMAX_OPS = ("Softmax", "LogSoftmax")
_CROSS_ENTROPY = "cross_entropy:"


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A cross-entropy as requested: the value with the scores, and their axis of classes (None: by the shape)."""

    output: str
    axis: int | None = None

    @classmethod
    def of(cls, graph: Graph, loss: str) -> CrossEntropy | None:
        """The request in `loss`; None for the name of a value. Names may contain colons."""
        names = {value.name for value in graph.values}
        output = loss.removeprefix(_CROSS_ENTROPY)
        if loss in names or output == loss:
            return None
        before, _, axis = output.rpartition(":")
        if output in names or not before or not axis.removeprefix("-").isdecimal():
            return cls(output)
        return cls(before, int(axis))

    def __str__(self) -> str:
        return f"{_CROSS_ENTROPY}{self.output}{'' if self.axis is None else f':{self.axis}'}"


def with_named_loss(graph: Graph, name: str) -> Graph:
    """`graph` with the value `name` among its outputs. Raises BadGraph unless it is a floating value of one element."""
    loss = _value_named(graph, name)
    type = graph.values[loss].type
    if type is None or type.dtype not in FLOAT_DTYPES or type.elements != 1:
        raise BadGraph.one(
            "bad_loss",
            "loss",
            f"{quoted(name)} of {type if type is not None else 'unknown type'}",
            "a floating value of one element",
            "name a scalar, or reduce this value with a ReduceMean node",
        )
    return keep_nodes(graph, range(len(graph.nodes)), dict.fromkeys((*graph.outputs, loss)))


def _value_named(graph: Graph, name: str) -> int:
    try:
        return graph.value_named(name)
    except KeyError:
        raise BadGraph.one(
            "undefined_value",
            "loss",
            quoted(name),
            "the name of a value",
            "name the value to minimize" + _suggestion(graph),
        ) from None


def _suggestion(graph: Graph) -> str:
    scalars = [value.name for value in graph.values if value.role is Role.ACTIVATION and _is_scalar(value.type)]
    return f"; scalars: {', '.join(map(quoted, scalars[-3:]))}" if scalars else ""


def _is_scalar(type: TensorType | None) -> bool:
    return type is not None and type.dtype in FLOAT_DTYPES and type.elements == 1


@dataclass(frozen=True, slots=True)
class _Scores:
    """The logits of a classifier."""

    value: int
    axis: int | None  # axis of the softmax; None: no softmax
    dropped: tuple[int, ...]  # nodes to remove, from the softmax to the output


def with_added_loss(graph: Graph, requested: CrossEntropy | None = None) -> tuple[Graph, str, list[str]]:
    """(graph with a loss among its outputs, name of the loss, notes on what was done).

    Adds the `requested` cross-entropy. Without one a single scalar output is the loss, else a cross-entropy is added to
    the only output. Raises BadGraph `no_loss` when there is neither a scalar nor one output with the shape of class
    scores, `bad_loss` when the requested output does not have it.
    """
    if requested is not None:
        return _with_cross_entropy(graph, _value_named(graph, requested.output), requested)
    scalars = [v for v in dict.fromkeys(graph.outputs) if _is_scalar(graph.values[v].type)]
    if len(scalars) == 1:
        name = graph.values[scalars[0]].name
        return graph, name, [f"the loss is the output {quoted(name)}, the only scalar"]
    return _with_cross_entropy(graph, _only_output(graph), None)


def _with_cross_entropy(graph: Graph, output: int, requested: CrossEntropy | None) -> tuple[Graph, str, list[str]]:
    notes = []
    scores = _scores(graph, output)
    if scores.value != output:
        softmax = next(
            node for node in reversed(graph.nodes) if node.op in _SOFTMAX_OPS and scores.value in node.inputs
        )
        done = "removed" if scores.dropped else "bypassed, since other nodes read it"
        notes.append(f"the final {softmax.op} {quoted(softmax.name)} was {done}")
    dropped = frozenset(scores.dropped)
    forward = keep_nodes(graph, [n for n in range(len(graph.nodes)) if n not in dropped], [scores.value])
    builder = Builder.from_graph(forward)
    loss = _cross_entropy(builder, forward.outputs[0], scores.axis, requested, notes)
    return builder.build([loss]), builder.values[loss].name, notes


def _only_output(graph: Graph) -> int:
    outputs = list(dict.fromkeys(graph.outputs))  # one may be listed several times
    if len(outputs) == 1 and graph.values[outputs[0]].type is not None:
        return outputs[0]
    names = ", ".join(quoted(graph.values[v].name) for v in outputs[:5])
    _refuse(f"{len(outputs)} outputs ({names})" if len(outputs) != 1 else f"{names} without a type")


def _refuse(found: str) -> NoReturn:
    raise BadGraph.one(
        "no_loss",
        "loss",
        found,
        "one output of class scores, or a loss",
        "name the scalar to minimize (--loss NAME), or the class scores (--loss cross_entropy:OUTPUT:AXIS)",
    )


def _scores(graph: Graph, output: int) -> _Scores:
    """The value before a final softmax, looking through views; nodes with other readers are not dropped."""
    producer, readers = producers(graph), consumers(graph)
    dropped: list[int] = []
    v, unread = output, not readers[output]
    while producer[v] >= 0:
        n = producer[v]
        node = graph.nodes[n]
        if unread:
            dropped.append(n)
        if node.op in _SOFTMAX_OPS:
            return _Scores(node.inputs[0], _softmax_axis(graph, node), tuple(dropped))
        if not views_of(graph, node):
            break
        v = node.inputs[0]
        unread = unread and readers[v] == [n]
    return _Scores(output, None, ())


def _softmax_axis(graph: Graph, node: Node) -> int:
    type = graph.values[node.inputs[0]].type
    before_13 = graph.opset.get("", 21) < 13
    axis = int(node.attributes.get("axis", 1 if before_13 else -1))
    return axis % max(1, len(type.shape) if type is not None else 1)


def _cross_entropy(
    builder: Builder, scores: int, axis: int | None, requested: CrossEntropy | None, notes: list[str]
) -> int:
    """Id of the mean cross-entropy between the scores and a new input of labels."""
    emit = Emit(builder, "loss/rows", Phase.FORWARD)
    value = builder.values[scores]
    x = emit.val(scores)
    if x.dtype not in ("float16", "bfloat16", "float32", "float64"):
        _refuse(f"output {quoted(value.name)} of {value.type}")
    classes_at = _class_axis(x, axis) if requested is None else _requested_axis(x, axis, requested)
    if classes_at is None or x.shape[classes_at] < 2:
        _refuse(f"output {quoted(value.name)} of {value.type}")
    classes = x.shape[classes_at]
    labels_shape = tuple(n for i, n in enumerate(x.shape) if i != classes_at)
    if all(n == 1 for n in x.shape[2:]) and classes_at == 1:
        labels_shape = x.shape[:1]
    labels = builder.value("labels", TensorType("int64", labels_shape), Role.INPUT, annotations={"range": [0, classes]})
    target = emit.val(labels)
    if x.rank > 2 and labels_shape == x.shape[:1]:
        x = emit.reshape(x, x.shape[:2])
    elif classes_at != 1:
        rows = math.prod(labels_shape)
        x, target = emit.reshape(x, (rows, classes)), emit.reshape(target, (rows,))
    (loss,) = builder.node("SoftmaxCrossEntropyLoss", [x.id, target.id], name="loss", outputs=["loss"])
    notes.append(
        f"a cross-entropy {quoted(builder.values[loss].name)} of {quoted(value.name)} with an input "
        f"{quoted(builder.values[labels].name)} int64{list(labels_shape)} was added"
    )
    return loss


def _requested_axis(x: Val, axis: int | None, requested: CrossEntropy) -> int:
    """The axis of classes as requested; else from the softmax or the shape, else 1. Raises BadGraph."""
    given = _class_axis(x, axis) if requested.axis is None else requested.axis
    found = 1 if given is None else given + x.rank if given < 0 else given
    if x.rank < 2 or found not in (1, x.rank - 1):
        raise BadGraph.one(
            "bad_loss",
            "loss",
            f"{quoted(str(requested))}, an axis {found} of a tensor of rank {x.rank}",
            "classes on axis 1 or on the last axis",
            "transpose the scores, or name another output",
        )
    return found


def _class_axis(x: Val, axis: int | None) -> int | None:
    """The axis of classes, from the softmax or else from the shape; None when unknown."""
    if x.rank < 2 or axis == 0:
        return None
    if all(n == 1 for n in x.shape[2:]):
        return 1 if x.rank == 2 or axis in (None, 1) else None
    if axis is not None:
        return axis if axis in (1, x.rank - 1) else None
    return 2 if x.rank == 3 else None
