"""Different networks in the branches of one If, nested and half nested, chosen by a selector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import Body, Graph, Role, TensorType
from tests.seeds.harness import Case

IMAGE = TensorType("float64", (4, 9))
SCALAR = TensorType("float64", ())
SELECTORS = 10


class Branches:
    """A case that names what each branch is."""

    def __init__(self, case: Case):
        self.case = case
        self.kinds: Sequence[str] = case["given"]["branches"]

    def graphs(self) -> list[Graph]:
        """The first two branches side by side; a choice in both branches; one in one branch only."""
        first, second, third = (self.kinds * 3)[:3]
        return [
            self._graph((first, second)),
            self._graph(((first, second), (second, third))),
            self._graph(((first, third), second)),
        ]

    def _graph(self, tree: object) -> Graph:
        b = Builder("branches")
        image = b.value("image", IMAGE, Role.PARAMETER)
        flags = [b.value(f"flag{i}", TensorType("bool", ()), Role.INPUT) for i in range(2)]
        weights = {
            name: b.value(name, TensorType("float64", shape), Role.INPUT)
            for name, shape in (("w", (9, 5)), ("v", (5, 3)), ("scale", (5,)), ("shift", (5,)))
        }
        (loss,) = self._choice(b, tree, image, flags, list(weights.values()))
        (out,) = b.node("Identity", [loss], outputs=["loss"])
        return b.build([out])

    def _choice(self, b: Builder, tree: object, image: int, flags: list[int], weights: list[int]) -> tuple[int, ...]:
        if isinstance(tree, str):
            return _network(b, tree, image, weights)
        then, other = (self._body(b, side, image, flags[1:], weights) for side in tree)  # type: ignore[attr-defined]
        return b.node("If", flags[:1], types=[SCALAR], bodies={"then_branch": then, "else_branch": other})

    def _body(self, outer: Builder, tree: object, image: int, flags: list[int], weights: list[int]) -> Body:
        inner = Builder("branch")
        taken = {
            v: inner.value(outer.values[v].name, outer.values[v].type, Role.INPUT) for v in (image, *flags, *weights)
        }
        made = self._choice(inner, tree, taken[image], [taken[v] for v in flags], [taken[v] for v in weights])
        graph = Graph("branch", tuple(inner.values), tuple(inner.nodes), made, (), inner.opset)
        return Body(graph, tuple((here, v) for v, here in taken.items()))

    def check_gradients(self, tolerance: float, offset: float) -> None:
        chance = np.random.default_rng(2)
        for graph in self.graphs():
            step = differentiate(graph, ["loss"], ["image"])
            ((_, gradient),) = step.gradients
            for selector in range(SELECTORS):
                at = {
                    value.name: chance.normal(0, 1, value.type.shape)
                    for value in graph.values
                    if value.type is not None
                    and value.role is not Role.ACTIVATION
                    and value.type.dtype == "float64"
                    and value.data is None
                }
                at["flag0"], at["flag1"] = np.array(selector < 5), np.array(selector % 2 == 0)
                name = step.values[gradient].name
                found = execute(step, at, keep={name}).values[name]
                slope = np.zeros_like(found)
                for place in np.ndindex(*found.shape):
                    moved = []
                    for sign in (1, -1):
                        image = at["image"].copy()
                        image[place] += sign * offset
                        moved.append(float(execute(graph, {**at, "image": image}).outputs["loss"]))
                    slope[place] = (moved[0] - moved[1]) / (2 * offset)
                assert found == pytest.approx(slope, rel=tolerance, abs=tolerance * np.abs(slope).max())


def _network(b: Builder, kind: str, image: int, weights: list[int]) -> tuple[int, ...]:
    """The mean of a net's output: dense layers, one with batch normalisation, or the mean of the image itself."""
    h = image
    w, v, scale, shift = weights
    if "dense" in kind:
        (h,) = b.node("MatMul", [h, w])
        if "batch norm" in kind:
            (h, *_) = b.node("remat::BatchNorm", [h, scale, shift], outputs=3, attributes={"epsilon": 1e-3})
        (h,) = b.node("Tanh", [h])
        if "small" not in kind:
            (h,) = b.node("Softmax", [b.node("MatMul", [h, v])[0]])
            (h,) = b.node("Mul", [h, h])
    else:
        assert "mean" in kind, kind
    return b.node("ReduceMean", [h], attributes={"keepdims": 0})
