"""Chunked cross-entropy: the loss is computed in chunks of rows, so that logits of one chunk at a time are live.

    x [N, d] ──▶ MatMul ──▶ scores [N, V] ──▶ loss                                becomes

    x ──▶ Split ─┬▶ x₀ ──▶ MatMul ──▶ [n, V] ──▶ losses of rows [n] ─┬▶ Concat ──▶ [N] ──▶ loss
                 ╰▶ x₁ ──▶ MatMul ──▶ [n, V] ──▶ losses of rows [n] ─╯

`with_chunked_loss` rewrites a forward graph. In its training step `chunk_interleaving.py` runs the backward pass of
each chunk directly after its forward pass; gradients of weights are summed over chunks, gradients of rows concatenated.
Source: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Graph, Node, TensorType, Val, producers
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.onnx_fallback import onnx_dtype
from graph.transforms.boundary import ValueUses, replaceable_nodes
from graph.transforms.dead_code import replace_nodes

CHUNK_ANNOTATION = "loss_chunk"  # annotation of the nodes of a chunk: its number
LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
#: Row-wise ops between product and loss: unary ones, and binary ones with an operand shared by all rows.
_UNARY, _BINARY = frozenset({"Identity", "Cast", "Tanh", "Neg"}), frozenset({"Add", "Sub", "Mul", "Div"})
_SHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_MIN_OPSET = 13  # first opset in which Split takes lengths as an input


@dataclass(frozen=True, slots=True)
class _Head:
    """A loss and the nodes before it that are chunked with it."""

    loss: int  # node id
    rows: int  # value of shape [..., d] that is split; its leading dimensions are the rows
    steps: tuple[tuple[Node, int], ...]  # from the rows to the loss: (node, input position that carries the rows)
    replaced: frozenset[int]  # nodes replaced by the chunks, the loss included


def with_chunked_loss(graph: Graph, chunks: int) -> Graph:
    """`graph` with every eligible cross-entropy computed in `chunks` equal chunks of rows. O(nodes + reads).

    The product that computes the scores is chunked too, with the nodes between it and the loss, if the scores have no
    other reader. Raises BadGraph with the reason when no loss is eligible.
    """
    if chunks < 2:
        return graph
    matches = [_LossHeadFinder(graph, chunks).head(n) for n, node in enumerate(graph.nodes) if node.op in LOSSES]
    heads = [head for head in matches if isinstance(head, _Head)]
    if not heads:
        reason = next((head for head in matches if isinstance(head, str)), "no cross-entropy of scores")
        raise BadGraph.one(
            "cannot_chunk",
            "loss_chunks",
            reason,
            f"a cross-entropy of [rows, classes] in {chunks} equal chunks",
            "choose a number of chunks that divides the rows, or remove loss_chunks",
        )
    replaced = {n for head in heads for n in head.replaced}
    return replace_nodes(graph, replaced, {head.loss: partial(_write_chunks, graph, head, chunks) for head in heads})


class _LossHeadFinder:
    """Matches a loss and its inputs back to the product that computes the scores."""

    def __init__(self, graph: Graph, chunks: int):
        self.graph, self.chunks = graph, chunks
        self.producer = producers(graph)
        self.uses, self.replaceable = ValueUses.of(graph), replaceable_nodes(graph)

    def head(self, n: int) -> _Head | str:
        """The part to chunk, or the reason against it."""
        graph, loss = self.graph, self.graph.nodes[n]
        scores, labels = graph.types_of(loss.inputs[:2])
        if scores is None or labels is None or len(scores.shape) != 2:
            return f"scores of {quoted(loss.name)} of {scores}"
        if graph.opset.get("", 21) < _MIN_OPSET:
            return f"opset {graph.opset.get('', 21)}, older than {_MIN_OPSET}"
        if not scores.shape[0] or scores.shape[0] % self.chunks:
            return f"{scores.shape[0]} rows of {quoted(loss.name)}"
        if any(v != ABSENT for v in loss.outputs[1:]) or n not in self.replaceable:
            return f"{quoted(loss.name)}, which outputs log-probabilities, has `after` edges or a declared cost"
        replaced, steps, v, reader = {n}, list[tuple[Node, int]](), loss.inputs[0], n
        while (step := self._step(v, reader)) is not None:
            nodes, node, position = step
            replaced.update(nodes)
            reader, v = nodes[-1], node.inputs[position]
            if node.op not in _SHAPING:
                steps.append((node, position))
            if node.op in ("MatMul", "Gemm"):
                break
        return _Head(n, v, tuple(reversed(steps)), frozenset(replaced))

    def _step(self, v: int, reader: int) -> tuple[tuple[int, ...], Node, int] | None:
        """One node further back: (replaced nodes, node to chunk, input that carries the rows); None: no match."""
        n = self.producer[v]
        if n not in self.replaceable or not self.uses.is_only_read_by(v, reader):
            return None
        node = self.graph.nodes[n]
        if node.op == "Transpose":
            return self._transposed_product(n, node)
        position = self._row_input(node, self.graph.values[v].type)
        return None if position is None else ((n,), node, position)

    def _row_input(self, node: Node, type: TensorType | None) -> int | None:
        """Position of the input that carries the rows of an output of `type`; None if a row depends on others."""
        types = self.graph.types_of(node.inputs)
        if type is None or not types or types[0] is None:
            return None
        if node.op in _BINARY:
            return _row_operand(types, type)
        return 0 if _is_row_wise(node, types[0].shape, types[1:], type.shape) else None

    def _transposed_product(self, n: int, node: Node) -> tuple[tuple[int, ...], Node, int] | None:
        """(E · xᵀ)ᵀ as x · Eᵀ: the form that exporters write for scores with tied embeddings."""
        source = node.inputs[0]
        p = self.producer[source]
        if p not in self.replaceable or not self.uses.is_only_read_by(source, n):
            return None
        product = self.graph.nodes[p]
        types = self.graph.types_of(product.inputs)
        if product.op != "MatMul":
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
        alone = turn in self.replaceable and self.uses.is_only_read_by(product.inputs[1], p)
        replaced = (n, p, turn) if alone else (n, p)
        inputs = (before.inputs[0], product.inputs[0])
        return replaced, replace(product, op="Gemm", inputs=inputs, attributes=MappingProxyType({"transB": 1})), 0


def _is_row_wise(
    node: Node, rows: tuple[int, ...], others: Sequence[TensorType | None], result: tuple[int, ...]
) -> bool:
    """True if each row of the result is computed from the same row of the first input, of shape `rows`."""
    if node.op in _SHAPING:
        return bool(rows) and rows[-1:] == result[-1:]
    if node.op == "LogSoftmax":
        return int(node.attributes.get("axis", -1)) % max(1, len(result)) == len(result) - 1
    if node.op == "MatMul":
        return len(rows) > 1 and others[0] is not None and len(others[0].shape) == 2
    if node.op == "Gemm":
        bias = others[1] if len(others) > 1 else None
        return not node.attributes.get("transA", 0) and (bias is None or len(bias.shape) < 2 or bias.shape[0] == 1)
    return node.op in _UNARY


def _row_operand(types: Sequence[TensorType | None], result: TensorType) -> int | None:
    """Position of the operand of a binary op that has the shape of the result; the other is shared by all rows."""
    for position, (operand, other) in enumerate(zip(types, types[::-1], strict=True)):
        shared = other is not None and all(length == 1 for length in other.shape[:-1])
        if operand is not None and operand.shape == result.shape and shared:
            return position
    return None


def _swaps_last_two(node: Node, rank: int) -> bool:
    given = node.attributes.get("perm")
    return list(given if given is not None else range(rank)[::-1]) == [*range(rank - 2), rank - 1, rank - 2]


def _write_chunks(graph: Graph, head: _Head, chunks: int, builder: Builder) -> None:
    _ChunkedLossWriter(builder, graph, head, chunks).write()


class _ChunkedLossWriter:
    """Writes one loss in chunks."""

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
        shared = {v: self._row_operand(v) for v in self._operands()}
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
        """The other operands of the binary elementwise steps."""
        return [step.inputs[1 - position] for step, position in self.head.steps if step.op in _BINARY]

    def _row_operand(self, v: int) -> Val:
        x = self.emit.val(v)
        return self.emit.reshape(x, x.shape[-1:])

    def _total_weight(self, labels: Val) -> Val | None:
        """Divisor of a mean: Σ weight of each label that is not ignored; None: the number of labels."""
        emit, ignore = self.emit, self.node.attributes.get("ignore_index")
        if self.weights is None and ignore is None:
            return None
        dtype = statistics_dtype(self.scores.dtype)
        ignored = None if ignore is None else emit.op("Equal", labels, emit.scalar_like(ignore, labels))
        each: Val = emit.constant(1, dtype)
        if self.weights is not None:
            safe = labels if ignored is None else emit.where(ignored, emit.scalar_like(0, labels), labels)
            each = emit.cast(emit.op("Gather", self.weights, safe), dtype)
        if ignored is not None:
            each = emit.where(ignored, emit.constant(0, dtype), each)
        total: Val = emit.op("ReduceSum", each, keepdims=0)
        return total

    def _reduce(self, losses: list[Val], total: Val | None) -> None:
        """Add the nodes that reduce the chunk losses to the loss, under its name and type."""
        emit, loss = self.emit, self.node.outputs[0]
        reduction = str(self.node.attributes.get("reduction", "mean"))
        if reduction == "none":
            self._last("Concat", losses, axis=0)
            return
        rows: Val = emit.op("Concat", *losses, axis=0)
        if total is None:
            self._last("ReduceSum" if reduction == "sum" else "ReduceMean", [rows], keepdims=0)
            return
        total_loss = emit.op("ReduceSum", emit.cast(rows, total.dtype), keepdims=0)
        if emit.val(loss).dtype == total.dtype:
            self._last("Div", [total_loss, total])
        else:
            self._last("Cast", [emit.div(total_loss, total)], to=onnx_dtype(emit.val(loss).dtype))

    def _last(self, op: str, inputs: list[Val], **attributes: Any) -> None:
        """Add the node that writes the loss."""
        self.builder.node(
            op,
            [x.id for x in inputs],
            name=f"{self.node.name}/rows",
            outputs=[self.node.outputs[0]],
            attributes=attributes,
            phase=self.node.phase,
            annotations=self.node.annotations,
        )
