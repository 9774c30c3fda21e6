"""Cases with numbers: their ops as ops of ours, differentiated, evaluated and held against what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.ir import Graph, TensorType
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array
from tests.graph.evaluate import evaluate
from tests.seeds.harness import Case
from tests.seeds.programs import SHAPE, given_names, ours

STEP = 1e-2


@dataclass(frozen=True)
class Numbers:
    """A case with content for everything given."""

    case: Case
    contents: Mapping[str, np.ndarray]
    targets: Mapping[str, str | None]
    wanted: Sequence[str]

    @cached_property
    def forward(self) -> Graph:
        outputs = [*self.targets, *(name for name in self.case["given"].get("graph_outputs", ()))]
        return ours(self.case, _types(self.contents), outputs, self.case.get("left_opaque", {}))

    @cached_property
    def graph(self) -> Graph:
        return differentiate(self.forward, dict(self.targets), list(self.wanted), unreachable="zeros")

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        return evaluate(self.graph, self.contents)

    @cached_property
    def gradients(self) -> dict[str, np.ndarray]:
        graph = self.graph
        return {graph.values[v].name: self.values[graph.values[dv].name] for v, dv in graph.gradients}

    def asked_for(self, wanted: Sequence[str]) -> Numbers:
        return replace(self, wanted=wanted)


def numbers_of(case: Case, *, random: bool = False) -> Numbers:
    """The case with the content it gives, or where it gives none, or `random` says so, with random content."""
    given, asked = case["given"], case["wanted_gradients"]
    chance = np.random.default_rng(3)
    contents = {} if random else {name: as_array(content) for name, content in given.get("values", {}).items()}
    names = given_names(case["ops"])
    shapes = {**dict.fromkeys(names if "shape" in given else (), given.get("shape")), **given.get("shapes", {})}
    inferred = ours(
        case,
        {**_types(contents), **_declared(names, shapes, given, bool(contents or shapes))},
        (),
        case.get("left_opaque", {}),
    )
    types = {value.name: value.type for value in inferred.values}
    targets = dict(asked["targets"])
    needed = {**{name: types[name] for name in names}, **{head: types[t] for t, head in targets.items() if head}}
    for name, type in needed.items():
        if name not in contents and type is not None:
            draw = chance.uniform(0.5, 1.5, type.shape)
            contents[name] = draw.astype(numpy_dtype(type.dtype))
    return Numbers(case, contents, targets, asked.get("wrt", names))


def as_array(content: Any) -> np.ndarray:
    return np.asarray(content, np.float32)


def _types(contents: Mapping[str, np.ndarray]) -> dict[str, TensorType]:
    return {name: type_of_array(array) for name, array in contents.items()}


def _declared(
    names: Sequence[str], shapes: Mapping[str, Any], given: Mapping[str, Any], some: bool
) -> dict[str, TensorType]:
    """Types of what the case says a shape of; where it says nothing at all, everything given is a matrix."""
    dtypes = given.get("dtypes", {})
    everything = given.get("dtype", "float32")
    if not some:
        shapes = dict.fromkeys(names, SHAPE)
    return {name: TensorType(dtypes.get(name, everything), tuple(shape)) for name, shape in shapes.items()}


def agree_with_differences(case: Case) -> None:
    """Every gradient of the targets agrees with central differences along a direction of each input alone."""
    found = numbers_of(case, random=True)
    chance = np.random.default_rng(7)
    assert set(found.gradients) == set(found.wanted)

    def total(given: Mapping[str, np.ndarray]) -> float:
        values = evaluate(found.forward, given)
        return sum(
            float((values[target].astype(np.float64) * (1 if head is None else found.contents[head])).sum())
            for target, head in found.targets.items()
        )

    for name in found.wanted:
        content = found.contents[name]
        direction = chance.uniform(-1, 1, content.shape).astype(content.dtype)
        up, down = (total({**found.contents, name: content + sign * STEP * direction}) for sign in (1, -1))
        slope = (found.gradients[name] * direction).sum()
        np.testing.assert_allclose(slope, (up - down) / (2 * STEP), rtol=1e-2, atol=1e-3)
