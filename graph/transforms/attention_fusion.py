"""Attention fusion: a decomposed attention becomes one node that does not materialize the scores.

    q ──▶ MatMul ──▶ Mul ──▶ Add ──▶ Where ──▶ Softmax ──▶ MatMul ──▶ y
    kt ──▶╯          scale   bias    mask                  v ──▶╯              becomes

    q, kt, v, bias, mask ──▶ remat::FusedAttention ──▶ y

Scale (Mul or Div by a constant), bias and mask are optional. Each intermediate value has one reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Graph, Node, producers
from graph.transforms.boundary import ValueUses, replaceable_nodes
from graph.transforms.dead_code import replace_nodes

FUSED_ATTENTION = "remat::FusedAttention"
FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(slots=True)
class _Match:
    """Operands of a fused node; filled in from the softmax back to the first product."""

    last: int  # node id of the product with the values
    replaced: list[int]  # nodes replaced
    scale: float = 1.0
    fill: float = -np.inf
    bias: int = ABSENT
    keep: int = ABSENT
    is_inverted: bool = False  # True: `keep` marks masked scores
    q: int = ABSENT
    kt: int = ABSENT


def with_fused_attention(graph: Graph) -> Graph:
    """`graph` with every matching attention fused. O(nodes + reads). Raises BadGraph when there is none."""
    finder = _AttentionFinder(graph)
    matches = [match for match in map(finder.match, finder.softmaxes()) if match is not None]
    if not matches:
        names = [quoted(graph.nodes[n].name) for n in finder.softmaxes()]
        found = f"{names[0]}, whose scores do not match or have another reader" if names else "no Softmax"
        raise BadGraph.one(
            "cannot_fuse",
            "fuse_attention",
            found,
            "a Softmax of masked scores between two products with equal batch dimensions",
            "remove fuse_attention",
        )
    replaced = {n for match in matches for n in match.replaced}
    return replace_nodes(graph, replaced, {match.last: partial(_fuse, graph, match) for match in matches})


class _AttentionFinder:
    def __init__(self, graph: Graph):
        self.graph, self.producer = graph, producers(graph)
        self.uses, self.replaceable = ValueUses.of(graph), replaceable_nodes(graph)

    def softmaxes(self) -> list[int]:
        return [n for n, node in enumerate(self.graph.nodes) if node.op == "Softmax" and self._is_plain(n)]

    def _is_plain(self, n: int) -> bool:
        """True for a replaceable node without a recompute hint, which fusion would lose."""
        return n in self.replaceable and self.graph.nodes[n].recompute is None

    def match(self, n: int) -> _Match | None:
        """The attention around a Softmax; None when the pattern does not match."""
        nodes, softmax = self.graph.nodes, self.graph.nodes[n]
        p, scores = softmax.outputs[0], self.graph.values[softmax.inputs[0]].type
        if scores is None or len(scores.shape) < 2 or not scores.elements or len(self.uses.readers[p]) != 1:
            return None
        default = -1 if self.graph.opset.get("", 21) >= 13 else 1
        m, rank = self.uses.readers[p][0], len(scores.shape)
        last = nodes[m]
        if int(softmax.attributes.get("axis", default)) % rank != rank - 1 or not self.uses.is_only_read_by(p, m):
            return None
        if last.op != "MatMul" or last.inputs[0] != p or last.inputs[1] == p or not self._is_plain(m):
            return None
        match, v, reader = _Match(m, [n, m]), softmax.inputs[0], n
        while match.q == ABSENT:
            step = self.producer[v]
            if step < 0 or not self._is_plain(step) or not self.uses.is_only_read_by(v, reader):
                return None
            following = self._extend(match, nodes[step], scores.shape)
            if following == ABSENT:
                return None
            match.replaced.append(step)
            v, reader = following, step
        return match if self._fits(match, last.inputs[1], scores.shape) else None

    def _extend(self, match: _Match, node: Node, shape: tuple[int, ...]) -> int:
        """Add one node to the match; returns the value to continue from, ABSENT for a node outside the pattern."""
        if node.op == "MatMul":
            match.q, match.kt = node.inputs
            return node.inputs[0]
        if node.op in ("Mul", "Div"):
            return self._scale(match, node, shape)
        if match.scale != 1.0:
            return ABSENT  # the scale is applied to the scores only, before bias and mask
        if node.op == "Where" and match.keep == match.bias == ABSENT:
            return self._mask(match, node, shape)
        if node.op == "Add" and match.bias == ABSENT:
            return self._bias(match, node, shape)
        return ABSENT

    def _scale(self, match: _Match, node: Node, shape: tuple[int, ...]) -> int:
        for v, other in (node.inputs, node.inputs[::-1]):
            number = self._number(other)
            if number and self._shape(v) == shape and (v == node.inputs[0] or node.op == "Mul"):
                match.scale *= number if node.op == "Mul" else 1 / number
                return v
        return ABSENT

    def _bias(self, match: _Match, node: Node, shape: tuple[int, ...]) -> int:
        for v, other in (node.inputs, node.inputs[::-1]):
            if self._shape(v) == shape and self._producer_is_score(v) and self._broadcasts(other, shape):
                match.bias = other
                return v
        return ABSENT

    def _mask(self, match: _Match, node: Node, shape: tuple[int, ...]) -> int:
        condition, one, other = node.inputs
        for v, filler, inverted in ((one, other, False), (other, one, True)):
            number = self._number(filler)
            if (
                number is not None
                and number < np.inf
                and self._shape(v) == shape
                and self._broadcasts(condition, shape)
            ):
                match.keep, match.fill, match.is_inverted = condition, number, inverted
                return v
        return ABSENT

    def _producer_is_score(self, v: int) -> bool:
        """True for the operand of an addition that carries the scores, not the bias."""
        n = self.producer[v]
        return n >= 0 and self.graph.nodes[n].op in ("MatMul", "Mul", "Div")

    def _shape(self, v: int) -> tuple[int, ...] | None:
        type = self.graph.values[v].type
        return None if type is None else type.shape

    def _number(self, v: int) -> float | None:
        data = self.graph.values[v].data
        return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None

    def _broadcasts(self, v: int, shape: tuple[int, ...]) -> bool:
        """True when the value broadcasts to the shape."""
        own = self._shape(v)
        return (
            own is not None
            and len(own) <= len(shape)
            and all(n in (1, length) for n, length in zip(own[::-1], shape[::-1], strict=False))
        )

    def _fits(self, match: _Match, v: int, scores: tuple[int, ...]) -> bool:
        """True for types that the fused op accepts: equal batch dimensions, one floating dtype."""
        types = self.graph.types_of((match.q, match.kt, v))
        bias = self.graph.types_of([x for x in (match.bias,) if x != ABSENT])
        if any(type is None or len(type.shape) != len(scores) for type in types):
            return False
        batches, dtypes = {t.shape[:-2] for t in types if t}, {t.dtype for t in (*types, *bias) if t}
        return batches == {scores[:-2]} and len(dtypes) == 1 and dtypes <= FLOAT_DTYPES


def _fuse(graph: Graph, match: _Match, builder: Builder) -> None:
    """Add the fused node in place of the last product, named after it."""
    node, keep = graph.nodes[match.last], match.keep
    if match.is_inverted:
        emit = Emit(builder, f"{node.name}/keep", node.phase, annotations=node.annotations)
        keep = emit.op("Not", emit.val(keep)).id
    inputs = [match.q, match.kt, node.inputs[1], match.bias, keep]
    while inputs[-1] == ABSENT:
        inputs.pop()
    attributes = {"scale": match.scale}
    if keep != ABSENT and np.isfinite(match.fill):
        attributes["fill"] = match.fill
    builder.node(
        FUSED_ATTENTION,
        inputs,
        name=f"{node.name}/fused",
        outputs=[node.outputs[0]],
        attributes=attributes,
        phase=node.phase,
        annotations=node.annotations,
    )
