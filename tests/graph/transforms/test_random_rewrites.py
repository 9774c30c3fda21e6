"""Chunked losses and fused attention on random graphs: equal results, and their plans execute without changes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution import compare_outputs
from graph.formats.native.writer import document
from graph.ir import Graph, Role, TensorType
from graph.training.chunk_interleaving import interleave_chunks
from graph.training.chunked_loss import with_chunked_loss
from graph.training.step import training_step
from graph.transforms.attention_fusion import with_fused_attention
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

FEW, MANY = range(40), range(40, 120)


class Drawn:
    """Builder of a random graph."""

    def __init__(self, seed: int, dtype: str = ""):
        self.rng, self.b = random.Random(seed), Builder("drawn")
        drawn = self.rng.choice(["float32", "float64"])
        self.dtype = dtype or drawn

    def given(self, name: str, shape: tuple[int, ...], dtype: str = "") -> int:
        role = Role.INPUT if dtype else self.rng.choice([Role.INPUT, Role.PARAMETER])
        return self.b.value(name, TensorType(dtype or self.dtype, shape), role)

    def number(self, *choices: float) -> int:
        shape = self.rng.choice([(), (1,)])
        return self.b.constant(np.full(shape, self.rng.choice(choices), self.dtype))

    def part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        return tuple(n if self.rng.random() < 0.6 else 1 for n in shape[self.rng.randint(0, len(shape)) :])

    def op(self, op: str, *inputs: int, **attributes: object) -> int:
        return self.b.node(op, inputs, attributes=attributes)[0]

    def either(self, op: str, x: int, y: int) -> int:
        return self.op(op, x, y) if self.rng.random() < 0.5 else self.op(op, y, x)

    def reshaped(self, x: int, *shape: int) -> int:
        return self.op("Reshape", x, self.b.constant(np.array(shape)))


def head(seed: int, dtype: str = "") -> tuple[Graph, int]:
    """(graph of a product, optional row-wise ops and a cross-entropy; number of chunks)."""
    g = Drawn(seed, dtype)
    rng = g.rng
    batch, length, width, classes = rng.choice([2, 3, 4]), rng.choice([1, 2, 6]), rng.choice([1, 3]), rng.choice([2, 7])
    rows = batch * length
    h, labels = g.op("Tanh", g.given("x", (batch, length, width))), g.given("labels", (rows,), "int64")
    w = g.b.value("w", TensorType(g.dtype, (classes, width)), Role.PARAMETER)
    form = rng.choice(["plain", "tied", "gemm", "none"])
    if form == "tied":
        s = g.op("Transpose", g.op("MatMul", w, g.op("Transpose", h, perm=[0, 2, 1])), perm=[0, 2, 1])
    elif form == "gemm":
        c = [g.given("c", rng.choice([(classes,), (1, classes), (rows, classes), (1,), ()]))] * rng.randint(0, 1)
        s = g.op("Gemm", g.reshaped(h, rows, width), w, *c, transB=1)
    else:
        s = g.op("MatMul", h, g.op("Transpose", w))
        s = s if form == "plain" else g.op("Sin", s)
    for i in range(rng.randint(0, 3)):
        step = rng.choice(["shared", "whole", "scaled", "Tanh", "Identity"])
        shape = g.b.values[s].type.shape  # type: ignore[union-attr]
        if step in ("shared", "whole"):
            s = g.either(
                "Add", s, g.given(f"b{i}", shape if step == "whole" else rng.choice([(classes,), (1, classes)]))
            )
        else:
            s = g.either("Sub", s, g.number(2.0, 0.5)) if step == "scaled" else g.op(step, s)
    s = g.reshaped(s, rows, classes)
    outputs = [s] * (rng.random() < 0.2)
    attributes: dict[str, object] = {"reduction": rng.choice(["mean", "sum", "none"])}
    if rng.random() < 0.5:
        attributes["ignore_index"] = rng.choice([0, 1, -100])
    weights = [g.given("weights", (classes,))] * rng.randint(0, 1)
    if rng.random() < 0.5:
        loss = g.op("SoftmaxCrossEntropyLoss", s, labels, *weights, **attributes)
    else:
        loss = g.op("NegativeLogLikelihoodLoss", g.op("LogSoftmax", s, axis=1), labels, *weights, **attributes)
    if attributes["reduction"] == "none":
        loss = loss if rng.random() < 0.5 else g.op("Mul", loss, g.op("Sin", loss))
        loss = g.op("ReduceSum", loss, keepdims=0)
    loss = g.op("Mul", loss, g.number(3.0)) if rng.random() < 0.3 else loss
    (loss,) = g.b.node("ReduceSum", [loss], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return g.b.build([loss, *outputs]), rng.choice([k for k in (2, 3, 4, 6, 8, 12) if rows % k == 0])


def attention(seed: int) -> Graph:
    """A softmax of scores between two products, with steps in any order before it."""
    g = Drawn(seed)
    stack, queries, keys = g.rng.choice([(), (2,), (2, 3), (1, 1)]), g.rng.choice([1, 3, 130]), g.rng.choice([1, 2, 5])
    s = g.op("MatMul", g.given("q", (*stack, queries, 4)), g.given("kt", (*stack, 4, keys)))
    for step in g.rng.sample(["Mul", "Div", "Add", "Where", "Unless"], g.rng.randint(0, 4)):
        shape = (*stack, queries, keys)
        if step == "Mul":
            s = g.either("Mul", s, g.number(0.5, -2.0))
        elif step == "Div":
            s = g.op("Div", s, g.number(1.5, -3.0))
        elif step == "Add":
            s = g.either("Add", s, g.given("bias", g.part(shape)))
        else:
            seen, fill = g.given(step, g.part(shape), "bool"), g.number(-1e9, -np.inf, -5.0, 0.0)
            s = g.op("Where", seen, *((s, fill) if step == "Where" else (fill, s)))
    p = g.op("Softmax", s, axis=-1)
    y = g.op("Sin", g.op("MatMul", p, g.b.value("v", TensorType(g.dtype, (*stack, keys, 3)), Role.PARAMETER)))
    (loss,) = g.b.node("ReduceSum", [y], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return g.b.build([loss])


def assert_agree(plain: Graph, changed: Graph, seed: int, without: str = "") -> None:
    """Assert that both graphs have the same results, but for the one called `without`."""
    fed = compare_outputs.sample_feeds(plain, seed)
    with np.errstate(all="ignore"):
        expected, found = (compare_outputs.run_results(graph, fed) for graph in (plain, changed))
    assert set(found) == set(expected)
    found.pop(without, None)
    worst = compare_outputs.worst_discrepancy(found, expected)
    assert worst.agrees, worst


def assert_plans_run(graph: Graph, **fields: object) -> None:
    """The lowest plan of its step is executed in its arena and equal."""
    asked = {"loss": "loss", "budget": 0, "iterations": 5, "execute": "yes", "recipe": {"optimizer": "sgd"}, **fields}
    with np.errstate(all="ignore"):
        executed = solve(json.dumps(document(graph)).encode(), parse_request(asked)).report["executed"]
    assert executed["status"] == "equal", executed


def steps(graph: Graph, chunks: int) -> tuple[Graph, Graph]:
    """(training step, training step with an interleaved chunked loss)."""
    plain, _ = training_step(graph, loss="loss")
    cut, _ = training_step(graph, loss="loss", rewrite=lambda graph: with_chunked_loss(graph, chunks))
    return plain, interleave_chunks(cut)


def check_head(seed: int) -> None:
    graph, chunks = head(seed)
    # The gradient of class weights is a difference of losses: where those are nearly equal, float32 has rounding only.
    assert_agree(*steps(graph, chunks), seed, without="gradient of weights")
    if any(value.name == "weights" for value in graph.values):
        assert_agree(*steps(head(seed, "float64")[0], chunks), seed)
    if seed % 4 == 0:
        assert_plans_run(graph, loss_chunks=chunks)


def check_attention(seed: int) -> bool:
    """True when the graph has an attention to fuse."""
    graph = attention(seed)
    try:
        with_fused_attention(graph)
    except BadGraph:
        return False
    plain, _ = training_step(graph, loss="loss")
    assert_agree(plain, training_step(graph, loss="loss", rewrite=with_fused_attention)[0], seed)
    if seed % 4 == 0:
        assert_plans_run(graph, fuse_attention=True)
    return True


def test_chunked_random_losses_agree() -> None:
    for seed in FEW:
        check_head(seed)


def test_fused_random_attentions_agree() -> None:
    assert sum(check_attention(seed) for seed in FEW) > len(FEW) // 3


@pytest.mark.heavy
def test_many_random_rewrites_agree() -> None:
    for seed in MANY:
        check_head(seed)
        check_attention(seed)
