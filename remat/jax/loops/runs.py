"""Scans as a plan chose them: what each iteration saves, and what the backward pass computes again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from graph.ir import ABSENT, Graph, Node
from graph.ops.control_flow import LoopInterface
from remat.jax.loops.records import TASK
from remat.jax.loops.scans import Scan
from remat.jax.step.emission import Run, run_in_order
from remat.jax.step.program import Equation, Program, Value
from remat.jax.step.tasks import Task


@dataclass(frozen=True, eq=False)
class ScanTask(Task):
    """A scan whose body runs tasks in an order of their own; names are of values in the body."""

    inputs: tuple[Value, ...]  # carries, then sequences
    formals: tuple[str, ...]
    captures: tuple[tuple[str, Value], ...]
    body: tuple[Run, ...]
    results: tuple[str, ...]  # carries, then rows of stacks
    outputs: tuple[Value | None, ...]
    carries: int

    @property
    def reads(self) -> list[Value]:
        return list(dict.fromkeys([*self.inputs, *(outer for _, outer in self.captures)]))

    @property
    def writes(self) -> list[Value]:
        return [value for value in self.outputs if value is not None]

    @property
    def flops(self) -> int:
        return int(self.root.source.params["length"]) * sum(run.task.flops for run in self.body)

    def computed(self, arrays: Mapping[Value, Any]) -> dict[Value, Any]:
        captured: dict[Hashable, Any] = {name: arrays[outer] for name, outer in self.captures}
        given = [arrays[value] for value in self.inputs]
        carry, sequences = given[: self.carries], given[self.carries :]
        params = self.root.source.params
        length, is_reversed = int(params["length"]), bool(params["reverse"])

        def iteration(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            inside = captured | dict(zip(self.formals, [*carry, *rows], strict=True))
            run_in_order(self.body, inside)
            found = [inside[name] for name in self.results]
            return found[: self.carries], found[self.carries :]

        def step(state: Any, rows: Sequence[Any]) -> Any:
            trip, carry, stacks = state
            carry, found = iteration(carry, rows)
            place = length - 1 - trip if is_reversed else trip
            put = [
                row if stack is None else jax.lax.dynamic_update_index_in_dim(stack, row, place, 0)
                for stack, row in zip(stacks, found, strict=True)
            ]
            keys = [row for stack, row in zip(stacks, put, strict=True) if stack is None]
            rest = [None if stack is None else row for stack, row in zip(stacks, put, strict=True)]
            return (trip + 1, carry, rest), keys

        first = [jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in sequences]
        start = _empty_stacks(jax.eval_shape(iteration, carry, first)[1], length, given[0])
        (_, carry, stacks), keys = jax.lax.scan(step, (np.int32(0), carry, start), sequences, length, is_reversed)
        of_keys = iter(keys)
        stacks = [next(of_keys) if stack is None else stack for stack in stacks]
        found = zip(self.outputs, [*carry, *stacks], strict=True)
        return {value: array for value, array in found if value is not None}


def _empty_stacks(rows: Sequence[Any], length: int, behind: Any) -> list[Any]:
    """A stack for each row, of zeros that are made when the array `behind` is there; None for random keys.

    XLA holds the zeros of `lax.scan` from the first loop to the last, and copies them into each.
    """
    stacks: list[Any] = []
    for row in rows:
        if jax.numpy.issubdtype(row.dtype, jax.dtypes.prng_key):
            stacks.append(None)
            continue
        zero, _ = jax.lax.optimization_barrier((np.zeros((), row.dtype), behind))
        stacks.append(jax.lax.broadcast(zero, (length, *row.shape)))
    return stacks


def scan_tasks(program: Program, scans: Mapping[Equation, Scan], graph: Graph) -> dict[str, ScanTask]:
    """The scans of pairs by name, as their nodes are in `graph`: the step under the alternatives of a plan."""
    known = {value.name: value for value in (*program.inputs, *(value for value, _ in program.constants))}
    known |= {value.name: value for equation in program.equations for value in equation.writes}
    named = {node.name: node for node in graph.nodes}
    tasks = {f"{scan.equation.name}/{task.name}": task for scan in scans.values() for task in scan.tasks}
    return {scan.equation.name: _task(scan, named[scan.equation.name], graph, known, tasks) for scan in scans.values()}


def _task(scan: Scan, node: Node, graph: Graph, known: dict[str, Value], tasks: Mapping[str, Task]) -> ScanTask:
    """The task of a node; adds values that the alternative saves to `known`."""
    inside, interface = node.bodies["body"].graph, LoopInterface.of(node)
    names = [value.name for value in inside.values]

    def outer(v: int) -> Value:
        name, kind = graph.values[v].name, graph.values[v].type
        if name not in known:
            assert kind is not None
            known[name] = Value(name, jax.core.ShapedArray(kind.shape, jax.numpy.dtype(kind.dtype)))
        return known[name]

    return ScanTask(
        scan.equation,
        (scan.equation,),
        inputs=tuple(outer(v) for v in node.inputs),
        formals=tuple(names[v] for v in inside.inputs),
        captures=tuple((names[inner], outer(v)) for inner, v in node.bodies["body"].captures),
        body=tuple(_runs(inside, names, tasks)),
        results=tuple(names[v] for v in inside.outputs),
        outputs=tuple(None if v == ABSENT else outer(v) for v in node.outputs),
        carries=interface.states,
    )


def _runs(inside: Graph, names: Sequence[str], tasks: Mapping[str, Task]) -> Iterator[Run]:
    for node in inside.nodes:
        task = tasks[str(node.annotations[TASK])]
        written = [names[v] for v in node.outputs if v != ABSENT]
        yield Run(task, tuple(names[v] for v in node.inputs), tuple(written))
