"""Training mode: batch normalization, dropout, random and composite ops are rewritten to their training forms.

    x ──▶ BatchNormalization ──▶ y        becomes     x ──▶ remat::BatchNorm ──▶ y, mean, inv_std
              ▲ running mean, variance                     running ──▶ remat::RunningStatistics ──▶ running'

A node annotated `frozen` stays as it is: its file says that it uses running statistics, or drops nothing, in training.
The normalization can be recomputed; the update of the running statistics is a separate node that runs once.
A composite op that is expensive to recompute (Attention, GroupQueryAttention) becomes the nodes of its body, so that
the backward pass reads what these save instead of running the body again.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from graph.analysis.effects import effect_of
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import quoted
from graph.ir import ABSENT, FROZEN, Effect, Graph, Node, Role, TensorType
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.onnx_schemas import one_line
from graph.ops.registry.registry import HEAVY, find_op, make_call

_FREEZABLE = ("BatchNormalization", "Dropout")
_STORED = (Role.PARAMETER, Role.CONSTANT, Role.STATE)


def in_training_mode(graph: Graph) -> tuple[Graph, list[str]]:
    """(graph in training mode, notes on the changes). Value ids are kept; running statistics become state."""
    return _TrainingMode(graph).rewrite()


class _TrainingMode:
    def __init__(self, graph: Graph, outer: _TrainingMode | None = None):
        self.graph = graph
        self.is_body = outer is not None
        self.builder = Builder.from_graph(graph)
        self.builder.nodes.clear()
        self.emit = Emit(self.builder, "training")
        #: of notes, each as it is said of one layer and of several
        self.count: Counter[tuple[str, str]] = Counter() if outer is None else outer.count
        self.warnings: list[str] = [] if outer is None else outer.warnings  # notes on nodes that stay in inference mode
        self.latest: dict[int, int] = {}  # running statistic -> its latest version
        readers: Counter[int] = Counter()
        for node in graph.nodes:
            statistics = node.inputs[3:5] if node.op == "BatchNormalization" else ()
            readers.update(v for v in node.reads if v not in statistics)
        self.read_elsewhere = readers

    def rewrite(self) -> tuple[Graph, list[str]]:
        place: list[int] = []
        for node in self.graph.nodes:
            node = replace(node, after=tuple(place[n] for n in node.after))
            place.append(len(self.builder.nodes))
            if node.annotations.get(FROZEN) is True and node.op in _FREEZABLE:
                frozen = ("layer is frozen by the file: it stays", "layers are frozen by the file: they stay")
                one, several = (f"{node.op} {words} in inference mode" for words in frozen)
                self.count[one, several] += 1
                self.builder.nodes.append(node)
            elif node.op == "BatchNormalization":
                self._batch_normalization(node)
            elif node.op == "Dropout":
                self.builder.nodes.append(self._dropout(node))
            elif is_expanded(node.op):
                self._expand(node)
                place[-1] = len(self.builder.nodes) - 1
            else:
                self.builder.nodes.append(_with_stream(self.graph, self._with_bodies(node)))
        notes = [f"{count} {several if count > 1 else one}" for (one, several), count in self.count.items()]
        if self.is_body:  # checked with the outer graph, which has the captures
            values, nodes = tuple(self.builder.values), tuple(self.builder.nodes)
            return replace(self.graph, values=values, nodes=nodes), notes
        return self.builder.build(self.graph.outputs), notes + self.warnings

    def _with_bodies(self, node: Node) -> Node:
        """The node with its bodies in training mode."""
        if not node.bodies:
            return node
        bodies = {
            key: replace(body, graph=_TrainingMode(body.graph, self).rewrite()[0]) for key, body in node.bodies.items()
        }
        return replace(node, bodies=MappingProxyType(bodies))

    def _expand(self, node: Node) -> None:
        """Add the body of a composite op, and a view of its result for each output."""
        first, values, record = len(self.builder.nodes), len(self.builder.values), find_op(node.op)
        assert record is not None and record.body is not None
        try:
            emit = Emit(self.builder, node.name, node.phase, annotations=node.annotations)
            inputs = [None if v == ABSENT else emit.val(v) for v in node.inputs]
            results = record.body(emit, make_call(self.graph, node), *inputs)
        except ValueError as error:  # the gradient names the node, where it is needed
            del self.builder.nodes[first:], self.builder.values[values:]
            self.warnings.append(f"{quoted(node.name)} stays one node: {one_line(error)}")
            self.builder.nodes.append(node)
            return
        for v, result in zip(node.outputs, results, strict=False):
            if v != ABSENT and result is not None:
                emit.builder.node(
                    "Identity",
                    [result.id],
                    name=f"{node.name}/{self.builder.values[v].name}",
                    outputs=[v],
                    phase=node.phase,
                    annotations=node.annotations,
                )
        for n in range(first, len(self.builder.nodes)):
            self.builder.nodes[n] = replace(self.builder.nodes[n], after=node.after)

    def _batch_normalization(self, node: Node) -> None:
        x, scale, bias, mean, variance = node.inputs
        epsilon = node.attributes.get("epsilon", 1e-5)
        values = self.builder.values
        type = values[x].type
        if type is None:
            self.warnings.append(f"{quoted(node.name)} stays in inference mode: its input has no type")
            self.builder.nodes.append(node)
            return
        per_channel = TensorType(statistics_dtype(type.dtype), type.shape[1:2])
        now, inv_std = (self.builder.value(f"{node.name}:{what}", per_channel) for what in ("mean", "inv_std"))
        self.builder.nodes.append(
            replace(
                node,
                op="remat::BatchNorm",
                inputs=(x, scale, bias),
                outputs=(node.outputs[0], now, inv_std),
                attributes=MappingProxyType({"epsilon": epsilon}),
            )
        )
        mode = "in training mode (batch statistics)"
        self.count[f"BatchNorm layer runs {mode}", f"BatchNorm layers run {mode}"] += 1
        own = not self.is_body  # values of a body are new in every iteration
        stored = own and all(values[v].role in _STORED and v not in self.graph.outputs for v in (mean, variance))
        given = [v for v in node.outputs[1:] if v != ABSENT]
        if not stored or self.read_elsewhere[mean] or self.read_elsewhere[variance]:
            if given:
                self._update(node, (mean, variance), now, inv_std, in_place=False)
            reason = "other nodes use them" if own else "it runs in a nested graph, where state is not kept"
            self.warnings.append(f"running statistics of {quoted(node.name)} are not updated: {reason}")
            return
        for v in (mean, variance):
            values[v] = replace(values[v], role=Role.STATE)
        self._update(node, (mean, variance), now, inv_std, in_place=True)

    def _update(self, node: Node, running: tuple[int, int], now: int, inv_std: int, in_place: bool) -> None:
        """Add the node that updates the running statistics with the batch statistics, in place if possible."""
        builder, attributes = self.builder, node.attributes
        outputs = []
        for i, v in enumerate(running):
            wanted = node.outputs[1 + i] if len(node.outputs) > 1 + i else ABSENT
            value = builder.values[v]
            outputs.append(builder.value(f"{value.name}/updated", value.type) if wanted == ABSENT else wanted)
        name = builder.free_node_name(f"{node.name}/statistics")
        builder.node(
            "remat::RunningStatistics",
            [*(self.latest.get(v, v) for v in running), now, inv_std],
            name=name,
            outputs=outputs,
            in_place=((0, 0), (1, 1)) if in_place else (),
            phase=node.phase,
            attributes={"momentum": attributes.get("momentum", 0.9), "epsilon": attributes.get("epsilon", 1e-5)},
            annotations=node.annotations,
        )
        if in_place:
            self.latest.update(zip(running, outputs, strict=True))

    def _dropout(self, node: Node) -> Node:
        """The Dropout in training mode, with its own random stream."""
        if self.graph.opset.get("", 21) < 12:
            self.warnings.append(f"{quoted(node.name)} stays in inference mode: opset 12 or newer is needed")
            return node
        ratio = node.inputs[1] if len(node.inputs) > 1 else ABSENT
        mode = node.inputs[2] if len(node.inputs) > 2 else ABSENT
        if mode != ABSENT and self.builder.values[mode].data is None:
            self.warnings.append(f"training mode of {quoted(node.name)} is known at run time only")
        else:
            mode = self.emit.constant(True, "bool").id
            masks = "random masks; recomputation replays them"
            self.count[f"Dropout layer draws {masks}", f"Dropout layers draw {masks}"] += 1
        if ratio == ABSENT:
            ratio = self.emit.constant(np.float32(0.5)).id
        return replace(node, inputs=(node.inputs[0], ratio, mode), stream=node.stream or node.name)


@cache
def is_expanded(op: str) -> bool:
    """True for an op that trains as the nodes of its body."""
    record = None if op.startswith("remat::") else find_op(op)
    return record is not None and record.body is not None and record.recompute == HEAVY


def _with_stream(graph: Graph, node: Node) -> Node:
    """The node; a random one gets its own stream, so that recomputation draws the same numbers."""
    draws = node.stream is None and effect_of(graph, node) is Effect.RANDOM
    return replace(node, stream=node.name) if draws else node
