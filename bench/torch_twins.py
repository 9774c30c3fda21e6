"""Random graphs and nested loops written twice, as nodes and as a function of PyTorch, in float64.

    Twin(chance, loops=True).differences() == []

All values are squares of one length, so that any op takes any of them. The graph is differentiated, planned at 50% and
rewritten; outputs and gradients of the rewritten graph must be PyTorch's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import ABSENT, Role, TensorType
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.graph.ops.control_flow.building import COUNT, FLAG, bodies, body_of

TOLERANCE = 1e-8  # of the largest element
MAX_DEPTH = 3  # of nested bodies

Write = Callable[[Builder, list[int]], int]  # adds nodes that read the given values; the value they write
Compute = Callable[..., Tensor]


def _node(op: str, *constants: Any, **attributes: Any) -> Write:
    def write(b: Builder, inputs: list[int]) -> int:
        return b.node(op, [*inputs, *(b.constant(np.asarray(c)) for c in constants)], attributes=attributes)[0]

    return write


def _less_reduced(op: str, axis: int) -> Write:
    """x - op(x) along an axis."""

    def write(b: Builder, inputs: list[int]) -> int:
        reduced = _node(op, np.array([axis]))(b, inputs)
        return b.node("Sub", [inputs[0], reduced])[0]

    return write


def _rolled(b: Builder, inputs: list[int]) -> int:
    """Row 0 after the others."""
    parts = [
        b.node("Slice", [inputs[0], *(b.constant(np.array([n])) for n in bounds)])[0]
        for bounds in ((1, 99, 0), (0, 1, 0))
    ]
    return b.node("Concat", parts, attributes={"axis": 0})[0]


def _chosen(b: Builder, inputs: list[int]) -> int:
    (above,) = b.node("Greater", inputs)
    return b.node("Where", [above, *reversed(inputs)])[0]


def _divided(b: Builder, inputs: list[int]) -> int:
    (square,) = b.node("Mul", [inputs[1], inputs[1]])
    (below,) = b.node("Add", [square, b.constant(np.float64(1))])
    return b.node("Div", [inputs[0], below])[0]


ONE: Sequence[tuple[Write, Compute]] = (
    (_node("Tanh"), torch.tanh),
    (_node("Sigmoid"), torch.sigmoid),
    (_node("Sin"), torch.sin),
    (_node("Relu"), torch.relu),
    (_node("Softplus"), functional.softplus),
    (_node("Erf"), torch.erf),
    (_node("Gelu"), functional.gelu),
    (_node("Elu"), functional.elu),
    (_node("Neg"), torch.neg),
    (_node("Softmax", axis=0), lambda x: x.softmax(0)),
    (_node("LogSoftmax", axis=1), lambda x: x.log_softmax(1)),
    (_node("Transpose", perm=[1, 0]), torch.t),
    (_node("CumSum", np.array(1)), lambda x: x.cumsum(1)),
    (_node("Gather", np.array([1, 0]), axis=0), lambda x: x[[1, 0]].repeat(1, 1)),
    (_less_reduced("ReduceMean", 0), lambda x: x - x.mean(0, keepdim=True)),
    (_less_reduced("ReduceMax", 1), lambda x: x - x.amax(1, keepdim=True)),
    (_less_reduced("ReduceLogSumExp", 1), lambda x: x - x.logsumexp(1, keepdim=True)),
    (_less_reduced("ReduceL2", 0), lambda x: x - torch.linalg.vector_norm(x, dim=0, keepdim=True)),
    (_rolled, lambda x: torch.cat([x[1:], x[:1]])),
)
TWO: Sequence[tuple[Write, Compute]] = (
    (_node("Add"), torch.add),
    (_node("Sub"), torch.sub),
    (_node("Mul"), torch.mul),
    (_node("Max"), torch.maximum),
    (_node("Min"), torch.minimum),
    (_node("MatMul"), torch.matmul),
    (_node("Gemm", transB=1, alpha=0.5), lambda x, y: 0.5 * x @ y.T),
    (_node("Einsum", equation="ij,kj->ki"), lambda x, y: torch.einsum("ij,kj->ki", x, y)),
    (_chosen, lambda x, y: torch.where(x > y, y, x)),
    (_divided, lambda x, y: x / (y * y + 1)),
)


class Program:
    """A random function: values of a builder, and the same values in PyTorch."""

    def __init__(self, chance: random.Random, builder: Builder, ids: Sequence[int], size: int, depth: int):
        self.chance, self.builder, self.ids, self.size, self.depth = chance, builder, list(ids), size, depth
        self.steps: list[Callable[[list[Tensor]], Tensor]] = []

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        """All values in PyTorch, from the first ones."""
        values = list(given)
        for step in self.steps:
            values.append(step(values))
        return values

    def grow(self, count: int) -> None:
        """Add `count` random steps."""
        for _ in range(count):
            if self.depth < MAX_DEPTH and self.chance.random() < 0.35:
                self.chance.choice([self._loop, self._scan, self._branch])()
            else:
                self._op()

    def squash(self, places: Sequence[int]) -> int:
        """Place of tanh of the sum of values."""
        ids, places = [self.ids[i] for i in places], list(places)
        (total,) = self.builder.node("Sum", ids)
        return self._add(self.builder.node("Tanh", [total])[0], lambda values: sum(values[i] for i in places).tanh())

    def _add(self, v: int, step: Callable[[list[Tensor]], Tensor]) -> int:
        self.ids.append(v)
        self.steps.append(step)
        return len(self.ids) - 1

    def _pick(self, count: int) -> list[int]:
        """Places of values, late ones more often."""
        return [max(self.chance.randrange(len(self.ids)) for _ in range(2)) for _ in range(count)]

    def _op(self) -> None:
        count = self.chance.choice([1, 2, 2])
        write, compute = self.chance.choice(ONE if count == 1 else TWO)
        places = self._pick(count)
        v = write(self.builder, [self.ids[i] for i in places])
        self._add(v, lambda values: compute(*(values[i] for i in places)))

    def _inner(self, inner: Builder, ids: Sequence[int]) -> Program:
        """A grown program of a body whose last value is squashed."""
        program = Program(self.chance, inner, ids, self.size, self.depth + 1)
        program.grow(self.chance.randint(1, 4))
        program.squash([len(program.ids) - 1, 0])
        return program

    def _captured(self) -> list[int]:
        return list(dict.fromkeys(self._pick(self.chance.randint(0, 2))))

    def _loop(self) -> None:
        """A Loop with a constant count; one in three stops early, by its state."""
        (start,), seen, trips = self._pick(1), self._captured(), self.chance.randint(1, 3)
        limit = self.chance.uniform(0, self.size) if self.chance.random() < 0.33 else None
        state, going = f"state{self.depth}", f"going{self.depth}"  # other names than those of outer bodies
        found: list[Program] = []

        def make(inner: Builder, v: Any) -> list[int]:
            program = self._inner(inner, [v[state], *(v[self._name(i)] for i in seen)])
            found.append(program)
            if limit is None:
                return [inner.node("Identity", [v[going]])[0], program.ids[-1]]
            (squares,) = inner.node("ReduceSumSquare", [program.ids[-1]], attributes={"keepdims": 0})
            (below,) = inner.node("Less", [squares, inner.constant(np.float64(limit))])
            return [below, program.ids[-1]]

        b, square = self.builder, self._square()
        formals = {f"trip{self.depth}": COUNT, going: FLAG, state: square}
        body = body_of(b, formals, [self.ids[i] for i in seen], make)
        count = b.constant(np.array(trips))
        (v,) = b.node("Loop", [count, ABSENT, self.ids[start]], bodies=bodies(body=body), types=[square])

        def step(values: list[Tensor]) -> Tensor:
            h = values[start]
            for _ in range(trips):
                h = found[0].run([h, *(values[i] for i in seen)])[-1]
                if limit is not None and not (h * h).sum() < limit:
                    break
            return h

        self._add(v, step)

    def _scan(self) -> None:
        """A Scan over the rows of a square, whose stack is the result, with a state of a square."""
        (start, rows), seen = self._pick(2), self._captured()
        state, row = f"state{self.depth}", f"row{self.depth}"
        found: list[Program] = []

        def make(inner: Builder, v: Any) -> list[int]:
            (first,) = inner.node("Add", [v[state], v[row]])
            program = self._inner(inner, [first, *(v[self._name(i)] for i in seen)])
            found.append(program)
            (emitted,) = inner.node(
                "ReduceMean", [program.ids[-1], inner.constant(np.array([0]))], attributes={"keepdims": 0}
            )
            return [program.ids[-1], emitted]

        b, square = self.builder, self._square()
        formals = {state: square, row: TensorType("float64", (self.size,))}
        body = body_of(b, formals, [self.ids[i] for i in seen], make)
        inputs = [self.ids[start], self.ids[rows]]
        made = b.node("Scan", inputs, outputs=2, attributes={"num_scan_inputs": 1}, bodies=bodies(body=body))
        (v,) = b.node("Add", made)

        def step(values: list[Tensor]) -> Tensor:
            h, stack = values[start], []
            for element in values[rows]:
                h = found[0].run([h + element, *(values[i] for i in seen)])[-1]
                stack.append(h.mean(0))
            return h + torch.stack(stack)

        self._add(v, step)

    def _branch(self) -> None:
        """An If by a sum above a limit, which is not 0: a value less its mean has a sum whose sign is a rounding."""
        limit = self.chance.uniform(-self.size, self.size)
        (by,), seen = self._pick(1), list(dict.fromkeys(self._pick(2)))
        found: list[Program] = []

        def make(inner: Builder, v: Any) -> list[int]:
            found.append(self._inner(inner, [v[self._name(i)] for i in seen]))
            return [found[-1].ids[-1]]

        b = self.builder
        then, other = (body_of(b, {}, [self.ids[i] for i in seen], make) for _ in range(2))
        (total,) = b.node("ReduceSum", [self.ids[by]], attributes={"keepdims": 0})
        (positive,) = b.node("Greater", [total, b.constant(np.float64(limit))])
        made = bodies(then_branch=then, else_branch=other)
        (v,) = b.node("If", [positive], bodies=made, types=[self._square()])

        def step(values: list[Tensor]) -> Tensor:
            return found[0 if values[by].sum() > limit else 1].run([values[i] for i in seen])[-1]

        self._add(v, step)

    def _name(self, place: int) -> str:
        return self.builder.values[self.ids[place]].name

    def _square(self) -> TensorType:
        return TensorType("float64", (self.size, self.size))


class Twin:
    """A random graph with a loss, and its parameters."""

    def __init__(self, chance: random.Random, loops: bool):
        self.size = size = 2
        builder = Builder("twin")
        names = ["x", *(f"w{k}" for k in range(chance.randint(1, 3)))]
        square = TensorType("float64", (size, size))
        ids = [builder.value(name, square, Role.INPUT if name == "x" else Role.PARAMETER) for name in names]
        self.program = Program(chance, builder, ids, size, 0 if loops else MAX_DEPTH)
        self.program.grow(chance.randint(4, 12 if loops else 30))
        last = self.program.squash(range(len(ids) - 1, len(self.program.ids)))
        builder.node("ReduceSum", [self.program.ids[last]], outputs=["loss"], attributes={"keepdims": 0})
        self.graph = builder.build([builder.nodes[-1].outputs[0]])
        draws = np.random.default_rng(chance.randrange(2**32))
        self.feeds = {name: draws.standard_normal((size, size)) for name in names}

    def depends_on_parameters(self) -> bool:
        """False where no parameter leads to the loss, which is refused."""
        return self._torch()[0].requires_grad

    def _torch(self) -> tuple[Tensor, dict[str, Tensor]]:
        """PyTorch's loss, and its parameters by name."""
        tensors = {name: torch.tensor(array, requires_grad=name != "x") for name, array in self.feeds.items()}
        return self.program.run(list(tensors.values()))[-1].sum(), {n: t for n, t in tensors.items() if n != "x"}

    def differences(self) -> list[str]:
        """What is not as PyTorch says: the loss, or the gradient of a parameter. Raises BadGraph where refused."""
        request = {
            "loss": "loss",
            "budget": "50%",
            "planner": "greedy",
            "iterations": 5,
            "layout": "fast",
            "execute": "yes",
        }
        outcome = solve(self.graph, parse_request(request))
        wrong = [] if outcome.report["executed"]["status"] == "equal" else [str(outcome.report["executed"])]
        if outcome.report["executed"]["gradients"]["status"] == "different":
            wrong.append(outcome.report["executed"]["gradients"]["why"])
        loss, parameters = self._torch()
        loss.backward()
        graph = outcome.graph
        gradients = {graph.values[v].name: graph.values[g].name for v, g in graph.gradients}
        known = {value.name for value in graph.values}
        feeds = {
            name: array for name, array in self.feeds.items() if name in known
        }  # parameters that no node reads are left out
        found = execute(graph, feeds, keep={"loss", *gradients.values()}).values
        pairs = [("loss", found["loss"], loss.detach().numpy())]
        for name, tensor in parameters.items():
            expected = np.zeros_like(self.feeds[name]) if tensor.grad is None else tensor.grad.numpy()
            ours = found[gradients[name]] if name in gradients else np.zeros_like(expected)
            pairs.append((f"gradient of {name}", ours, expected))
        for name, ours, expected in pairs:
            apart, scale = np.abs(ours - expected).max(), max(1.0, np.abs(expected).max())
            if not apart <= TOLERANCE * scale:
                wrong.append(f"{name}: {apart / scale:.1e} from PyTorch's")
        return wrong
