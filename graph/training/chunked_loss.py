"""A cross-entropy taken in chunks of rows, so that scores over all classes are there for one chunk at a time.

    x [N, d] ──▶ MatMul ──▶ scores [N, V] ──▶ loss                                becomes

    x ──▶ Split ─┬▶ x₀ ──▶ MatMul ──▶ [n, V] ──▶ losses of rows [n] ─┬▶ Concat ──▶ [N] ──▶ loss
                 ╰▶ x₁ ──▶ MatMul ──▶ [n, V] ──▶ losses of rows [n] ─╯

`with_chunked_loss` does this to a forward graph. In its training step `chunks_in_turn.py` lets each chunk go back right
after it came forward; gradients of weights are added up chunk after chunk, those of rows are put together.
Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, UNKNOWN_COST, Graph, Node, Val, consumers, producers
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.onnx_fallback import onnx_dtype
from graph.ssa.naming import without_name_order
from graph.transforms.dead_code import keep_nodes

CHUNK_ANNOTATION = "loss_chunk"  # annotation of the nodes of one chunk: its number
LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
#: Ops between product and loss that treat every row alike; the second kind with an operand that all rows share.
_ALONE, _BESIDE = frozenset({"Identity", "Cast", "Tanh", "Neg"}), frozenset({"Add", "Sub", "Mul", "Div"})
_SHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_OLDEST_OPSET = 13  # the first whose Split takes lengths as an input


@dataclass(frozen=True, slots=True)
class _Head:
    """A loss and the nodes before it that go with a chunk."""

    loss: int  # node
    rows: int  # value of shape [..., d] that is cut; its leading lengths are the rows
    steps: tuple[tuple[Node, int], ...]  # from the rows to the loss, each with the input that comes from before
    gone: frozenset[int]  # nodes these stand for, the loss among them


def with_chunked_loss(graph: Graph, chunks: int) -> Graph:
    """`graph` with every cross-entropy that allows it in so many equal chunks. O(nodes + reads).

    A product the scores come from is cut too, and what stands between it and the loss, as long as nobody else reads
    the scores. Raises BadGraph saying why not when no loss can be cut.
    """
    if chunks < 2:
        return graph
    graph = without_name_order(graph)
    found = [_LossHeadFinder(graph, chunks).head(n) for n, node in enumerate(graph.nodes) if node.op in LOSSES]
    heads = [head for head in found if isinstance(head, _Head)]
    if not heads:
        why = next((head for head in found if isinstance(head, str)), "no cross-entropy of scores")
        raise BadGraph.one(
            "cannot_chunk",
            "loss_chunks",
            why,
            f"a cross-entropy of [rows, classes] in {chunks} equal chunks",
            "ask for a number of chunks that divides the rows, or leave loss_chunks out",
        )
    return _written(graph, heads, chunks)


class _LossHeadFinder:
    """Looks from a loss back to the product its scores come from."""

    def __init__(self, graph: Graph, chunks: int):
        self.graph, self.chunks = graph, chunks
        self.producer, self.readers = producers(graph), consumers(graph)
        self.outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
        self.waiting = {m for node in graph.nodes for m in node.after} | {
            n for n, node in enumerate(graph.nodes) if node.after
        }

    def head(self, n: int) -> _Head | str:
        """What can be cut, or why nothing can."""
        graph, loss = self.graph, self.graph.nodes[n]
        scores, labels = graph.types_of(loss.inputs[:2])
        if scores is None or labels is None or len(scores.shape) != 2:
            return f"scores of {quoted(loss.name)} of {scores}"
        if graph.opset.get("", 21) < _OLDEST_OPSET:
            return f"opset {graph.opset.get('', 21)}, older than {_OLDEST_OPSET}"
        if not scores.shape[0] or scores.shape[0] % self.chunks:
            return f"{scores.shape[0]} rows of {quoted(loss.name)}"
        if any(v != ABSENT for v in loss.outputs[1:]) or n in self.waiting or loss.cost is not UNKNOWN_COST:
            return f"{quoted(loss.name)}, which hands out log-probabilities, waits for nodes or has a cost of its own"
        gone, steps, v, reader = {n}, list[tuple[Node, int]](), loss.inputs[0], n
        while (step := self._step(v, reader)) is not None:
            nodes, node, position = step
            gone.update(nodes)
            reader, v = nodes[-1], node.inputs[position]
            if node.op not in _SHAPING:
                steps.append((node, position))
            if node.op in ("MatMul", "Gemm"):
                break
        return _Head(n, v, tuple(reversed(steps)), frozenset(gone))

    def _step(self, v: int, reader: int) -> tuple[tuple[int, ...], Node, int] | None:
        """(nodes that go, what stands for them, input that carries the rows) one node further back; None to stop."""
        n = self.producer[v]
        if n < 0 or v in self.outputs or self.readers[v] != [reader]:
            return None
        node = self.graph.nodes[n]
        made = self.graph.values[v].type
        given = self.graph.types_of(node.inputs)
        if made is None or not given or given[0] is None or n in self.waiting or node.cost is not UNKNOWN_COST:
            return None
        if node.op in _SHAPING and given[0].shape and given[0].shape[-1:] == made.shape[-1:]:
            return (n,), node, 0
        last = int(node.attributes.get("axis", -1)) % max(1, len(made.shape)) == len(made.shape) - 1
        if node.op in _ALONE or (node.op == "LogSoftmax" and last):
            return (n,), node, 0
        if node.op in _BESIDE:
            for position, (mine, other) in enumerate(zip(given, given[::-1], strict=True)):
                shared = other is not None and all(length == 1 for length in other.shape[:-1])
                if mine is not None and mine.shape == made.shape and shared:
                    return (n,), node, position
        if node.op == "MatMul" and len(given[0].shape) > 1 and given[1] is not None and len(given[1].shape) == 2:
            return (n,), node, 0
        if node.op == "Gemm" and not node.attributes.get("transA", 0):
            c = given[2] if len(given) > 2 else None
            return ((n,), node, 0) if c is None or len(c.shape) < 2 or c.shape[0] == 1 else None
        return self._turned(n, node) if node.op == "Transpose" else None

    def _turned(self, n: int, node: Node) -> tuple[tuple[int, ...], Node, int] | None:
        """(E · xᵀ)ᵀ as x · Eᵀ, as exporters write scores by the embedding itself."""
        source = node.inputs[0]
        p = self.producer[source]
        if p < 0 or self.readers[source] != [n] or source in self.outputs or p in self.waiting:
            return None
        product = self.graph.nodes[p]
        types = self.graph.types_of(product.inputs)
        if product.op != "MatMul" or product.cost is not UNKNOWN_COST or None in types:
            return None
        matrix, columns = types
        if matrix is None or columns is None or len(matrix.shape) != 2 or len(columns.shape) < 2:
            return None
        turn = self.producer[product.inputs[1]]
        if turn < 0 or not _swaps_last_two(node, len(columns.shape)):
            return None
        before = self.graph.nodes[turn]
        if before.op != "Transpose" or not _swaps_last_two(before, len(columns.shape)):
            return None
        alone = self.readers[product.inputs[1]] == [p] and product.inputs[1] not in self.outputs
        gone = (n, p, turn) if alone and turn not in self.waiting else (n, p)
        inputs = (before.inputs[0], product.inputs[0])
        return gone, replace(product, op="Gemm", inputs=inputs, attributes=MappingProxyType({"transB": 1})), 0


def _swaps_last_two(node: Node, rank: int) -> bool:
    given = node.attributes.get("perm")
    return list(given if given is not None else range(rank)[::-1]) == [*range(rank - 2), rank - 1, rank - 2]


def _written(graph: Graph, heads: list[_Head], chunks: int) -> Graph:
    builder = Builder.from_graph(graph)
    builder.nodes.clear()
    gone = {n for head in heads for n in head.gone}
    by_loss = {head.loss: head for head in heads}
    place: dict[int, int] = {}
    for n, node in enumerate(graph.nodes):
        if n in by_loss:
            _ChunkedLossWriter(builder, graph, by_loss[n], chunks).write()
        elif n not in gone:
            place[n] = len(builder.nodes)
            builder.nodes.append(replace(node, after=tuple(place[m] for m in node.after)))
    made = replace(graph, values=tuple(builder.values), nodes=tuple(builder.nodes))
    return keep_nodes(made, range(len(made.nodes)), made.outputs)


class _ChunkedLossWriter:
    """One loss being written in chunks."""

    def __init__(self, builder: Builder, graph: Graph, head: _Head, chunks: int):
        self.builder, self.head, self.chunks = builder, head, chunks
        self.node = graph.nodes[head.loss]
        self.constants: dict[Any, Val] = {}
        self.emit = self._emit(f"{self.node.name}/rows", self.node.annotations)
        self.scores = self.emit.val(self.node.inputs[0])
        self.weights = self.emit.val(self.node.inputs[2]) if len(self.node.inputs) > 2 else None

    def _emit(self, name: str, annotations: Mapping[str, Any], **fields: Any) -> Emit:
        return Emit(self.builder, name, self.node.phase, self.constants, annotations=annotations, **fields)

    def write(self) -> None:
        emit, count = self.emit, self.scores.shape[0]
        x, labels = emit.val(self.head.rows), emit.val(self.node.inputs[1])
        lengths = emit.ints([count // self.chunks] * self.chunks)
        total = self._total_weight(labels) if self._is_mean() else None
        parts = emit.op("Split", emit.reshape(x, (count, x.shape[-1])), lengths, outputs=self.chunks, axis=0)
        of_labels = emit.op("Split", labels, lengths, outputs=self.chunks, axis=0)
        shared = {v: self._of_a_row(v) for v in self._operands()}
        attributes = {**self.node.attributes, "reduction": "none"}
        losses = []
        for i in range(self.chunks):
            scores = parts[i]
            for step, position in self.head.steps:
                inputs = [shared.get(v) or (None if v == ABSENT else emit.val(v)) for v in step.inputs]
                inputs[position] = scores
                notes = {**step.annotations, CHUNK_ANNOTATION: i}
                one = self._emit(f"{step.name}/chunk{i}", notes, recompute=step.recompute, heavy=step.heavy)
                scores = one.op(step.op, *inputs, **step.attributes)
            last = self._emit(f"{self.node.name}/chunk{i}", {**self.node.annotations, CHUNK_ANNOTATION: i})
            weights = [] if self.weights is None else [self.weights]
            losses.append(last.op(self.node.op, scores, of_labels[i], *weights, **attributes))
        self._reduce(losses, total)

    def _is_mean(self) -> bool:
        return str(self.node.attributes.get("reduction", "mean")) == "mean"

    def _operands(self) -> list[int]:
        """Values that stand beside the scores in an elementwise step."""
        return [step.inputs[1 - position] for step, position in self.head.steps if step.op in _BESIDE]

    def _of_a_row(self, v: int) -> Val:
        x = self.emit.val(v)
        return self.emit.reshape(x, x.shape[-1:])

    def _total_weight(self, labels: Val) -> Val | None:
        """Σ weight of each label, ignored ones left out, which a mean divides by; None: it is the number of labels."""
        emit, ignore = self.emit, self.node.attributes.get("ignore_index")
        if self.weights is None and ignore is None:
            return None
        dtype = statistics_dtype(self.scores.dtype)
        ignored = None if ignore is None else emit.op("Equal", labels, emit.scalar_like(ignore, labels))
        each: Val = emit.constant(1, dtype)
        if self.weights is not None:  # a label's weight is no path of the gradient in the loss itself
            safe = labels if ignored is None else emit.where(ignored, emit.scalar_like(0, labels), labels)
            each = emit.cast(emit.op("Gather", emit.op("remat::StopGradient", self.weights), safe), dtype)
        if ignored is not None:
            each = emit.where(ignored, emit.constant(0, dtype), each)
        total: Val = emit.op("ReduceSum", each, keepdims=0)
        return total

    def _reduce(self, losses: list[Val], total: Val | None) -> None:
        """The loss of all rows, under its own name and type."""
        emit, loss = self.emit, self.node.outputs[0]
        reduction = str(self.node.attributes.get("reduction", "mean"))
        if reduction == "none":
            self._last("Concat", losses, axis=0)
            return
        rows: Val = emit.op("Concat", *losses, axis=0)
        if total is None:
            self._last("ReduceSum" if reduction == "sum" else "ReduceMean", [rows], keepdims=0)
            return
        whole = emit.op("ReduceSum", emit.cast(rows, total.dtype), keepdims=0)
        if emit.val(loss).dtype == total.dtype:
            self._last("Div", [whole, total])
        else:
            self._last("Cast", [emit.div(whole, total)], to=onnx_dtype(emit.val(loss).dtype))

    def _last(self, op: str, inputs: list[Val], **attributes: Any) -> None:
        """The node that writes the loss."""
        self.builder.node(
            op,
            [x.id for x in inputs],
            name=f"{self.node.name}/rows",
            outputs=[self.node.outputs[0]],
            attributes=attributes,
            phase=self.node.phase,
            annotations=self.node.annotations,
        )
