"""Expansion of the ONNX ops LSTM, GRU and RNN to Scans, so that the memory of their steps can be planned.

    x ═══▶ Scan(h, c; x_t) ═══▶ y        body: x_t · Wᵀ + b + h · Rᵀ, gates, activations

The input product is computed step by step as well: computed for all steps at once, its result would have to
be kept, and is wider than the states in most nets.
A backward direction reverses its sequences and its results (ReverseSequence).
After the end of a shorter sequence, its states are constant and y is zero.
Source: ONNX operator specification, LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ir import ABSENT, Body, Graph, Node, Phase, Role, TensorType, Val
from graph.ops.rnn.cells import Activation
from graph.ops.rnn.rnn import GATES, activations_of, text

#: Activations that are an op with other parameters than none: alpha, or alpha and beta.
_ACTIVATION_OPS = {
    "leakyrelu": ("LeakyRelu", 1),
    "thresholdedrelu": ("ThresholdedRelu", 1),
    "hardsigmoid": ("HardSigmoid", 2),
    "elu": ("Elu", 1),
}


def expand_rnns(graph: Graph) -> Graph:
    """`graph` with every LSTM, GRU and RNN as a Scan, except untyped and already differentiated ones."""
    named = {node.annotations.get("gradient_of") for node in graph.nodes}
    gone = {n for n, node in enumerate(graph.nodes) if node.name not in named and _can_be_expanded(graph, node)}
    if not gone:
        return graph
    builder = Builder.from_graph(replace(graph, nodes=()))
    place: list[int] = []  # node of the graph -> its last node in the result
    for n, node in enumerate(graph.nodes):
        if n in gone:
            _Expansion(builder, node).add()
        else:
            builder.append(replace(node, after=tuple(place[a] for a in node.after)))
        place.append(len(builder.nodes) - 1)
    return builder.build(graph.outputs)


def _can_be_expanded(graph: Graph, node: Node) -> bool:
    if node.op not in GATES or node.after or node.phase is not Phase.FORWARD:
        return False
    types = graph.types_of(node.inputs)
    if any(t is None for v, t in zip(node.inputs, types, strict=True) if v != ABSENT) or min(node.inputs[:3]) == ABSENT:
        return False
    try:
        return types[1] is not None and bool(activations_of(node.op, node.attributes, types[1].shape[0]))
    except ValueError:
        return False


def _activate(e: Emit, act: Activation, x: Val) -> Val:
    if act.clip:
        x = e.op("Clip", x, e.scalar_like(-act.clip, x), e.scalar_like(act.clip, x))
    if act.name == "affine":
        return e.add(e.mul(x, e.scalar_like(act.alpha, x)), e.scalar_like(act.beta, x))
    if act.name == "scaledtanh":
        return e.mul(e.op("Tanh", e.mul(x, e.scalar_like(act.beta, x))), e.scalar_like(act.alpha, x))
    op, count = _ACTIVATION_OPS.get(act.name, (act.name.capitalize(), 0))
    attributes: dict[str, Any] = dict(zip(("alpha", "beta"), (act.alpha, act.beta)[:count], strict=False))
    return e.op(op, x, **attributes)  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Step:
    """Body of one direction under construction."""

    builder: Builder
    emit: Emit
    captures: list[tuple[int, int]] = field(default_factory=list)

    def formal(self, name: str, type: TensorType) -> Val:
        return self.emit.val(self.builder.value(name, type, Role.INPUT))

    def captured(self, name: str, outside: Val) -> Val:
        inner = self.formal(name, outside.type)
        self.captures.append((inner.id, outside.id))
        return inner


class _Expansion:
    """Expansion of one node to Scans."""

    def __init__(self, builder: Builder, node: Node):
        self.builder, self.node = builder, node
        self.emit = Emit(builder, f"{node.name}/around", Phase.FORWARD, annotations=node.annotations)
        inputs = [self.emit.val(v) if v != ABSENT else None for v in node.inputs]
        inputs += [None] * (8 - len(inputs))
        x, w, r, self.b, self.lengths, self.h, self.c, self.p = inputs
        assert x is not None and w is not None and r is not None
        self.w, self.r = w, r
        self.batch_first = bool(node.attributes.get("layout", 0))
        self.x = self.emit.transpose(x, (1, 0, 2)) if self.batch_first else x  # [steps, rows, width]
        self.directions, self.hidden = w.shape[0], r.shape[2]
        self.steps, self.rows = self.x.shape[:2]
        self.activations = activations_of(node.op, node.attributes, self.directions)
        self.resets_after = node.op == "GRU" and bool(node.attributes.get("linear_before_reset", 0))

    def add(self) -> None:
        """Add the Scans, and bind their results to the node's outputs."""
        e, hidden, rows = self.emit, self.hidden, self.rows
        found = [self._direction(d) for d in range(self.directions)]
        results: list[Val | None] = [None]
        ys = [e.reshape(y, (self.steps, 1, rows, hidden)) for y, _ in found if y is not None]
        if ys:
            y = ys[0] if len(ys) == 1 else e.op("Concat", *ys, axis=1)
            results = [e.transpose(y, (2, 0, 1, 3)) if self.batch_first else y]
        for k in range(2 if self.node.op == "LSTM" else 1):
            parts = [e.reshape(states[k], (1, rows, hidden)) for _, states in found]
            state = parts[0] if len(parts) == 1 else e.op("Concat", *parts, axis=0)
            results.append(e.transpose(state, (1, 0, 2)) if self.batch_first else state)
        for v, result in zip(self.node.outputs, results, strict=False):
            if v != ABSENT and result is not None:
                self.builder.node("Identity", [result.id], name=f"{self.node.name}/show", outputs=[v])

    def _direction(self, d: int) -> tuple[Val | None, list[Val]]:
        """(y in time order, None if unused; last states) of one direction."""
        turned = text(self.node.attributes.get("direction", "forward")).lower() == "reverse" or d == 1
        x = self._turned(self.x) if turned else self.x
        states = [self._start(self.h, d)] + ([self._start(self.c, d)] if self.node.op == "LSTM" else [])
        y, last = self._scan(d, x, states)
        return (self._turned(y) if turned and y is not None else y), last

    def _scan(self, d: int, x: Val, states: Sequence[Val]) -> tuple[Val | None, list[Val]]:
        name = self.node.name if self.directions == 1 else f"{self.node.name}/{d}"
        body = Builder(f"{name}/step", self.builder.opset)
        step = _Step(body, Emit(body, f"{name}/step", Phase.FORWARD))
        before = [step.formal(word, state.type) for word, state in zip(("h", "c"), states, strict=False)]
        element = step.formal("x", TensorType(x.dtype, x.shape[1:]))
        there = self._there()
        going = None if there is None else step.formal("there", TensorType("bool", (self.rows, 1)))
        inputs = [*before, element, *([going] if going is not None else [])]
        act = self.activations[d * len(self.activations) // self.directions :]
        bias, inner_bias = self._biases(d, GATES[self.node.op] * self.hidden)
        weights = step.captured("w", self._of(self.w, d))
        added = [] if bias is None else [step.captured("b", bias)]
        zx = step.emit.op("Gemm", element, weights, *added, transB=1)
        cells = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}
        after = cells[self.node.op](step, d, zx, before, act, inner_bias)
        y = after[0]
        if going is not None:
            y = step.emit.where(going, y, step.emit.scalar_like(0, y))
            after = [step.emit.where(going, new, old) for new, old in zip(after, before, strict=True)]
        shown = [y] if self.node.outputs[0] != ABSENT else []
        graph = Graph(
            body.name,
            tuple(body.values),
            tuple(body.nodes),
            tuple(v.id for v in (*after, *shown)),
            tuple(v.id for v in inputs),
            body.opset,
        )
        sequences = [x, *([there] if there is not None else [])]
        made = self.builder.node(
            "Scan",
            [v.id for v in (*states, *sequences)],
            name=name,
            outputs=[f"{name}/{word}" for word in (*("h", "c")[: len(states)], *["y"] * len(shown))],
            types=[*(s.type for s in states), *(TensorType(v.dtype, (self.steps, *v.shape)) for v in shown)],
            attributes={"num_scan_inputs": len(sequences)},
            annotations=self.node.annotations,
            bodies=MappingProxyType({"body": Body(graph, tuple(step.captures))}),
        )
        vals = [self.emit.val(v) for v in made]
        return vals[-1] if shown else None, vals[: len(states)]

    def _rnn(
        self, step: _Step, d: int, zx: Val, states: Sequence[Val], act: Sequence[Activation], _: Val | None
    ) -> list[Val]:
        e, (h,) = step.emit, states
        return [_activate(e, act[0], e.op("Gemm", h, step.captured("r", self._of(self.r, d)), zx, transB=1))]

    def _gru(
        self, step: _Step, d: int, zx: Val, states: Sequence[Val], act: Sequence[Activation], inner_bias: Val | None
    ) -> list[Val]:
        e, (h,), n = step.emit, states, self.hidden
        gates_r, new_r = self.emit.op("Split", self._of(self.r, d), self.emit.ints([2 * n, n]), outputs=2, axis=0)
        gates_x, new_x = e.op("Split", zx, e.ints([2 * n, n]), outputs=2, axis=1)
        gates = e.op("Gemm", h, step.captured("r_gates", gates_r), gates_x, transB=1)
        z, r = (_activate(e, act[0], gate) for gate in e.op("Split", gates, e.ints([n, n]), outputs=2, axis=1))
        inner_r = step.captured("r_new", new_r)
        if self.resets_after:
            bias = [] if inner_bias is None else [step.captured("b_new", inner_bias)]
            new = e.add(new_x, e.mul(r, e.op("Gemm", h, inner_r, *bias, transB=1)))
        else:
            new = e.op("Gemm", e.mul(r, h), inner_r, new_x, transB=1)
        one = e.scalar_like(1, z)
        return [e.add(e.mul(e.sub(one, z), _activate(e, act[1], new)), e.mul(z, h))]

    def _lstm(
        self, step: _Step, d: int, zx: Val, states: Sequence[Val], act: Sequence[Activation], _: Val | None
    ) -> list[Val]:
        e, (h, c), n = step.emit, states, self.hidden
        gates = e.op("Gemm", h, step.captured("r", self._of(self.r, d)), zx, transB=1)
        i, o, f, g = e.op("Split", gates, e.ints([n] * 4), outputs=4, axis=1)
        seen: Sequence[Val] = ()
        if self.p is not None:
            whole = self._of(self.p, d)
            parts = self.emit.op("Split", whole, self.emit.ints([n] * 3), outputs=3, axis=0)
            seen = [step.captured(word, part) for word, part in zip(("p_i", "p_o", "p_f"), parts, strict=True)]
            i, f = e.add(i, e.mul(seen[0], c)), e.add(f, e.mul(seen[2], c))
        i = _activate(e, act[0], i)
        f = e.sub(e.scalar_like(1, i), i) if self.node.attributes.get("input_forget", 0) else _activate(e, act[0], f)
        cell = e.add(e.mul(f, c), e.mul(i, _activate(e, act[1], g)))
        o = _activate(e, act[0], e.add(o, e.mul(seen[1], cell)) if seen else o)
        return [e.mul(o, _activate(e, act[2], cell)), cell]

    def _of(self, x: Val, d: int) -> Val:
        """Row `d` of an input with one row per direction."""
        e, rest = self.emit, x.shape[1:]
        if x.shape[0] == 1:
            return e.reshape(x, rest)
        part = e.op("Slice", x, e.ints([d]), e.ints([d + 1]), e.ints([0]))
        return e.reshape(part, rest)

    def _biases(self, d: int, rows: int) -> tuple[Val | None, Val | None]:
        """(bias of the input product, bias of the recurrent product of a GRU with linear_before_reset)."""
        if self.b is None:
            return None, None
        e, n = self.emit, self.hidden
        outer, inner = e.op("Split", self._of(self.b, d), e.ints([rows, rows]), outputs=2, axis=0)
        if not self.resets_after:
            return e.add(outer, inner), None
        gates, new = e.op("Split", inner, e.ints([2 * n, n]), outputs=2, axis=0)
        return e.add(outer, e.op("Concat", gates, e.zeros(new.type), axis=0)), new

    def _start(self, given: Val | None, d: int) -> Val:
        """Initial state of a direction; zeros if absent."""
        e, shape = self.emit, (self.rows, self.hidden)
        if given is None:
            return e.zeros(TensorType(self.x.dtype, shape))
        return self._of(e.transpose(given, (1, 0, 2)) if self.batch_first else given, d)

    def _ends(self) -> Val:
        if self.lengths is not None:
            return self.emit.cast(self.lengths, "int64")
        return self.emit.ints([self.steps] * self.rows)

    def _turned(self, x: Val) -> Val:
        """`x` with the valid steps of every row reversed."""
        return self.emit.op("ReverseSequence", x, self._ends(), batch_axis=1, time_axis=0)  # type: ignore[no-any-return]

    def _there(self) -> Val | None:
        """bool[steps, rows, 1]: True while the sequence of the row lasts; None: all rows have full length."""
        if self.lengths is None:
            return None
        e = self.emit
        times = e.constant(np.arange(self.steps, dtype=np.int64).reshape(-1, 1))
        there: Val = e.op("Less", times, e.reshape(self._ends(), (1, self.rows)))
        return e.reshape(there, (self.steps, self.rows, 1))
