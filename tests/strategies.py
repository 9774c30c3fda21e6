"""Random graphs that run: views, several outputs, takeover, workspaces, draws, states overwritten in place."""

from __future__ import annotations

import random

import numpy as np

from graph.builder.builder import Builder
from graph.ir import Cost, Graph, Phase, Role, TensorType

SHAPE = (3, 4)
KINDS = ("unary", "binary", "product", "view", "computed_view", "split", "draw", "shape_only", "overwrite")


def random_graph(rng: random.Random, nodes: int = 12) -> Graph:
    """A graph of up to `nodes` nodes on float32[3,4] and its views; every op of it has a kernel."""
    return _Growing(rng).grown(rng.randint(1, nodes))


class _Growing:
    """A graph being made: values that may still be read, all of shape 3x4 or a view of it."""

    def __init__(self, rng: random.Random):
        self.rng, self.builder = rng, Builder("random")
        type = TensorType("float32", SHAPE)
        self.ready = [self.builder.value("x", type, Role.INPUT)]
        self.ready += [self.builder.value(f"w{i}", type, Role.PARAMETER) for i in range(rng.randint(0, 2))]
        self.square = self.builder.value("square", TensorType("float32", (4, 4)), Role.PARAMETER)
        self.shapes = {shape: self.builder.constant(np.array(shape), f"to{shape}") for shape in (SHAPE, (2, 6), (12,))}
        self.states = 0
        self.readable = list(self.ready)

    def grown(self, count: int) -> Graph:
        for _ in range(count):
            getattr(self, f"_{self.rng.choice(KINDS)}")()
        made = [v for node in self.builder.nodes for v in node.writes if v in self.readable]
        outputs = self.rng.sample(made, min(len(made), self.rng.randint(1, 2)))
        return self.builder.build(outputs)

    def _pick(self) -> int:
        """A value of shape 3x4: an old one or one under another shape, seen as 3x4 again."""
        v = self.rng.choice(self.readable)
        type = self.builder.values[v].type
        if type is not None and type.shape != SHAPE:
            (v,) = self.builder.node("Reshape", [v, self.shapes[SHAPE]])
        return v

    def _add(self, op: str, inputs: list[int], outputs: int = 1, **rest: object) -> None:
        if self.rng.random() < 0.3:
            rest["cost"] = Cost(workspace_bytes=self.rng.randint(0, 100))
        self.readable += self.builder.node(op, inputs, outputs=outputs, **rest)  # type: ignore[arg-type]

    def _unary(self) -> None:
        self._add(self.rng.choice(["Relu", "Tanh", "Neg", "Sigmoid", "Softmax"]), [self._pick()])

    def _binary(self) -> None:
        self._add(self.rng.choice(["Add", "Mul", "Sub", "Max"]), [self._pick(), self._pick()])

    def _product(self) -> None:
        self._add("MatMul", [self._pick(), self.square])

    def _view(self) -> None:
        shape = self.rng.choice([(2, 6), (12,)])
        self.readable += self.builder.node("Reshape", [self._pick(), self.shapes[shape]])

    def _computed_view(self) -> None:
        """A view whose shape a node computes."""
        other = self.rng.choice(self.readable)
        (shape,) = self.builder.node("Shape", [other])
        type = self.builder.values[other].type
        assert type is not None
        self.readable += self.builder.node("Reshape", [self._pick(), shape], types=[TensorType("float32", type.shape)])

    def _split(self) -> None:
        v = self._pick()
        left, right = self.builder.node("Split", [v], outputs=2, attributes={"num_outputs": 2, "axis": 1})
        self.readable += self.builder.node("Concat", [left, right][:: self.rng.choice([1, -1])], attributes={"axis": 1})

    def _draw(self) -> None:
        ratio, training = self.builder.constant(np.float32(0.3), "ratio"), self.builder.constant(np.array(True), "on")
        stream = self.rng.choice([None, "draws"])
        self._add("Dropout", [self._pick(), ratio, training], 2, stream=stream)
        self.readable.pop()  # the mask is no float

    def _shape_only(self) -> None:
        self._add("CastLike", [self._pick(), self._pick()])

    def _overwrite(self) -> None:
        """A state overwritten by an update; nobody reads its old content afterwards."""
        self.states += 1
        state = self.builder.value(f"state{self.states}", TensorType("float32", SHAPE), Role.STATE)
        self._add("Add", [state, self._pick()], in_place=((0, 0),), phase=Phase.FORWARD)
