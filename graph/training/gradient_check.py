"""Gradients of a whole training step beside central differences of its forward pass in float64.

    (L(p + e·d) - L(p - e·d)) / 2e    beside    Σ g · d          for a few random sign directions d over all variables

A direction weighs each variable by its gradient's norm, so that one wrong gradient among many small ones shows. The
error is relative to the 2-norm of g · d, the size that Σ g · d has for random signs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graph.autodiff.gradients.events import ROW_SPARSE
from graph.autodiff.gradients.spec import HeadGradient
from graph.autodiff.objective import NotCompared, Objective, held_values
from graph.errors import CannotExecute, quoted
from graph.execution.float64 import in_float64
from graph.execution.interpreter import execute
from graph.ir import DTYPE_BITS, EMPTY, Graph, producers
from graph.ir.reachability import nodes_computing
from graph.ops.registry.onnx_fallback import numpy_dtype
from graph.transforms.dead_code import keep_nodes

AGREE, DIFFERENT, NOT_COMPARED = "agree", "different", "not compared"

#: Largest relative error explained by rounding, by the bits of the narrowest float of forward pass and gradients.
TOLERANCE: Mapping[int, float] = {64: 1e-3, 32: 1e-2, 16: 5e-2}
STEP = 1e-7  # e; kinks between the two points are few, and the loss still has nine digits
NORM_FLOOR = 1e-2  # a variable with a smaller share of the largest norm is not weighed up
SLOPE_FLOOR = 1e-5  # of the absolute values that the loss sums: slopes below are rounding of the loss

#: Steps at points beside p, as far away as rounding moves values: their slopes are measured for an error above the
#: tolerance. A long step shows curvature, a short one how few digits the loss has.
NEAR_STEPS = (1e-6, 1e-7, 1e-8)
SPREADS = 5  # an error of so many times the spread of these slopes is a difference
MAX_SPREAD = 0.1  # where rounding moves the slope further, nothing can be compared

_SUMS = ("ReduceSum", "ReduceMean", "Reshape", "Identity", "Cast")

#: Bits of the significand.
_DIGITS: Mapping[str, int] = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """Result of a comparison; `why` says what differs, or why nothing was compared."""

    status: str  # AGREE, DIFFERENT or NOT_COMPARED
    directions: int = 0
    error: float | None = None  # largest relative error over the directions
    tolerance: float | None = None
    why: str = ""


class GradientProbe:
    """Collects gradients from a run of the step (`watch`), then compares them (`compare`)."""

    def __init__(self, step: Graph, objective: Objective, seed: int, directions: int):
        """Raises NotCompared."""
        if objective.is_accumulated:
            raise NotCompared("gradients are sums over micro-batches")
        self.step, self.objective, self.seed, self.directions = step, objective, seed, directions
        self.loss = _Loss(objective, seed)
        rows = step.annotations.get(ROW_SPARSE, EMPTY)
        names = (objective.forward.values[v].name for v in objective.variables())
        self.variables = [name for name in names if name in self.loss.inputs and name not in rows]
        if not self.variables:
            raise NotCompared("no dense gradient of a value that no node writes")
        self.variables_of: dict[int, list[str]] = {}  # gradient in the step -> its variables
        for v, gradient in step.gradients:
            self.variables_of.setdefault(gradient, []).append(step.values[v].name)
        self.taken: dict[str, np.ndarray] = {}  # values of the step that the loss reads
        self.norms = dict.fromkeys(self.variables, 0.0)
        self.slopes: dict[str, np.ndarray] = {}  # variable -> Σ g · d per direction; without a gradient none

    @property
    def nodes(self) -> int:
        """Nodes that `compare` runs, unless it meets kinks."""
        return 2 * self.directions * len(self.loss.graph.nodes)

    def watch(self, n: int, i: int, array: np.ndarray) -> None:
        """Take an output of the step's run."""
        self._take(self.step.nodes[n].outputs[i], array)

    def _take(self, v: int, array: np.ndarray) -> None:
        name = self.step.values[v].name
        if name in self.loss.taken:
            self.taken[name] = array
        for variable in self.variables_of.get(v, ()):
            if variable in self.norms:
                gradient = array.astype(np.float64).reshape(-1)
                self.norms[variable] = float(np.linalg.norm(gradient))
                signs = (self._signs(variable, k, gradient.size) for k in range(self.directions))
                self.slopes[variable] = np.array([gradient @ each for each in signs])

    def compare(self, feeds: Feeds) -> GradientCheck:
        """Compare, given all arrays that no node of the step writes, by name. Raises NotCompared."""
        for v, value in enumerate(self.step.values):
            if value.name in feeds:
                self._take(v, feeds[value.name])
        feeds, weights = {**feeds, **self.taken}, self._weights()
        norm = math.sqrt(sum((weight * self.norms[name]) ** 2 for name, weight in weights.items()))
        dtype = self._narrowest()
        tolerance, worst = TOLERANCE[DTYPE_BITS[dtype]], 0.0
        for k in range(self.directions):
            slope = self._slope(weights, k)
            difference, size = self._difference(feeds, weights, k)
            scale = max(norm, SLOPE_FLOOR * size) or 1.0
            error = abs(difference - slope) / scale
            if error > tolerance:
                near = [
                    self._difference(self._neighbour(feeds, dtype, i), weights, k, step)[0]
                    for i, step in enumerate(NEAR_STEPS)
                ]
                spread = math.sqrt(sum((each - difference) ** 2 for each in near) / len(near)) / scale
                if spread > MAX_SPREAD:
                    raise NotCompared("rounding moves the loss over kinks or jumps at the sampled point")
                tolerance = max(tolerance, SPREADS * spread)
            if error > tolerance:
                most = quoted(self._furthest(feeds, weights, k))
                why = f"gradients and finite differences differ by {error:.0e} of their size, most for {most}"
                return GradientCheck(DIFFERENT, k + 1, _rounded(error), _rounded(tolerance), why)
            worst = max(worst, error)
        return GradientCheck(AGREE, self.directions, _rounded(worst), _rounded(tolerance))

    def _slope(self, weights: Mapping[str, float], k: int) -> float:
        """Σ g · d of the variables of `weights`."""
        return sum(weight * float(self.slopes[name][k]) for name, weight in weights.items() if name in self.slopes)

    def _difference(
        self, feeds: Feeds, weights: Mapping[str, float], k: int, step: float = STEP
    ) -> tuple[float, float]:
        """(central difference of the loss along direction `k`, size of what it sums) for the variables of `weights`.

        Raises NotCompared.
        """
        above, below = dict(feeds), dict(feeds)
        for name, weight in weights.items():
            array = feeds[name].astype(np.float64)
            change = (step * weight) * self._signs(name, k, array.size).reshape(array.shape)
            above[name], below[name] = array + change, array - change
        # Terms are subtracted before they are summed, which loses fewer digits.
        (highs, size), (lows, _) = self.loss.terms_at(above), self.loss.terms_at(below)
        difference = sum(float((high - low).sum()) for high, low in zip(highs, lows, strict=True)) / (2 * step)
        if not math.isfinite(difference + sum(self.norms.values())):
            raise NotCompared("the loss or a gradient is not finite")
        return difference, size

    def _neighbour(self, feeds: Feeds, dtype: str, i: int) -> Feeds:
        """A point as far from `feeds` as a few roundings to `dtype` move each variable."""
        draws = np.random.Generator(np.random.SFC64([self.seed, i]))
        epsilon = 4 * 2.0 ** -_DIGITS[dtype]
        moved = {name: feeds[name] * (1 + epsilon * draws.standard_normal(feeds[name].shape)) for name in self.norms}
        return {**feeds, **moved}

    def _furthest(self, feeds: Feeds, weights: Mapping[str, float], k: int) -> str:
        """The variable with the largest part in the error, by halving."""
        names = list(weights)
        while len(names) > 1:
            halves = names[: len(names) // 2], names[len(names) // 2 :]
            errors = []
            for half in halves:
                part = {name: weights[name] for name in half}
                errors.append(abs(self._difference(feeds, part, k)[0] - self._slope(part, k)))
            names = halves[errors[1] > errors[0]]
        return names[0]

    def _signs(self, name: str, k: int, count: int) -> np.ndarray:
        """Direction `k` of a variable: a flat array of -1 and 1."""
        key = hashlib.blake2b(f"{self.seed}\0direction {k}\0{name}".encode(), digest_size=16).digest()
        draws = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
        bits = np.unpackbits(draws.integers(0, 256, -(-count // 8), np.uint8), count=count)
        return 1.0 - 2.0 * bits

    def _weights(self) -> dict[str, float]:
        """Weight of each variable in a direction: at most 1, less for those with a large gradient."""
        floor = NORM_FLOOR * max(self.norms.values())
        if not floor or not math.isfinite(sum(self.norms.values())):
            return dict.fromkeys(self.norms, 1.0)
        return {name: floor / max(norm, floor) for name, norm in self.norms.items()}

    def _narrowest(self) -> str:
        """The floating type with the fewest digits in the forward pass and among the gradients."""
        forward, step = self.objective.forward, self.step
        types = [forward.values[v].type for node in forward.nodes for v in node.writes]
        types += [step.values[gradient].type for _, gradient in step.gradients]
        found = {type.dtype for type in types if type is not None and type.dtype in _DIGITS}
        return min(found, key=_DIGITS.__getitem__, default="float64")


class _Loss:
    """The objective in float64, as a function of arrays by name."""

    def __init__(self, objective: Objective, seed: int):
        """Raises NotCompared."""
        forward, spec = objective.forward, objective.spec
        targets = list(dict.fromkeys(target for target, _ in spec.targets))
        held = held_values(objective)
        nodes = nodes_computing(forward.nodes, targets, held)
        read = {*targets, *(v for n in nodes for v in forward.nodes[n].reads)}
        cut = [v for v in held if v in read]
        self.graph, self.seed = in_float64(keep_nodes(forward, nodes, targets, new_inputs=cut)), seed
        written, values = producers(self.graph), self.graph.values
        used = dict.fromkeys((*self.graph.outputs, *(v for node in self.graph.nodes for v in node.reads)))
        self.inputs = {values[v].name: values[v] for v in used if written[v] < 0}
        self.terms = [(forward.values[target].name, _named(forward, head)) for target, head in spec.targets]
        #: target -> (value that it sums, weight of each of its elements)
        self.summands = {values[v].name: _summands(self.graph, v) for v in self.graph.outputs}
        self.taken = {forward.values[v].name for v in cut} | {head for _, head in self.terms if isinstance(head, str)}

    def terms_at(self, feeds: Feeds) -> tuple[list[np.ndarray], float]:
        """(head · target of each target, sum of the absolute values that these sum).

        Raises NotCompared for ops without a kernel, and values not fed.
        """
        given = {}
        for name, value in self.inputs.items():
            if name in feeds and value.type is not None:
                given[name] = feeds[name].astype(numpy_dtype(value.type.dtype), copy=False)
            elif value.data is None:
                raise NotCompared("the forward pass reads a value that the step does not have")
        if not all(head in feeds for _, head in self.terms if isinstance(head, str)):
            raise NotCompared("the step does not have a head gradient")
        done = [-1]

        def watch(n: int, i: int, array: np.ndarray) -> None:
            done[0] = n

        try:
            keep = {name for name, _ in self.summands.values()}
            run = execute(self.graph, given, seed=self.seed, keep=keep, watch=watch, bounded=self.taken)
        except CannotExecute:
            raise NotCompared(f"{self.graph.nodes[done[0] + 1].op} cannot run in float64") from None
        heads = [feeds[head].astype(np.float64) if isinstance(head, str) else head for _, head in self.terms]
        terms, size = [], 0.0
        for (target, _), head in zip(self.terms, heads, strict=True):
            terms.append(run.outputs[target] * head)
            name, weight = self.summands[target]
            size += float(np.abs(run.values[name] * (weight * head)).sum())
        return terms, size


def _summands(graph: Graph, target: int) -> tuple[str, float]:
    """(value whose elements a target of one element sums, weight of each), looking through sums and means.

    Terms that cancel, such as those of a normalized value, round as their sizes do, not as their sum does.
    """
    written, values, v, weight = producers(graph), graph.values, target, 1.0
    while written[v] >= 0 and graph.nodes[written[v]].op in _SUMS:
        node, total, terms = graph.nodes[written[v]], values[v].type, values[graph.nodes[written[v]].inputs[0]].type
        if total is None or terms is None or total.elements != 1 or written[node.inputs[0]] < 0:
            break
        weight /= terms.elements if node.op == "ReduceMean" else 1
        v = node.inputs[0]
    return values[v].name, weight


def _named(graph: Graph, head: HeadGradient) -> str | np.ndarray:
    """The name or the content of a head gradient."""
    if isinstance(head, int):
        return graph.values[head].name
    return np.ones(()) if head is None else np.asarray(head.content, np.float64)


def _rounded(error: float) -> float:
    """One digit: the others depend on the order of sums."""
    return float(f"{error:.0e}")
