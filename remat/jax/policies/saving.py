"""What a traced step saves under a policy of names: chosen by a minimum cut, and judged by the planner's evaluator.

    forward    a ── b ── c ── d         save {b}:  a b c d | D  c' C  B  a' A        every value is recomputed once,
    backward        reads of a, b, c                                                 just before its first reader

A value with a name is saved where it is named: an op that reads it before (the gradient of `tanh` reads its result)
recomputes it all the same. So a name counts if all of its values are read under that name only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.formats.readers import load
from planner.bounds.solvers.max_flow import UNCUTTABLE, FlowNetwork
from planner.formulation.formulate import formulate
from planner.problem import BACKWARD, TO_LAST_READ, Csr, Problem, liveness
from planner.problem.plan import Order
from planner.problem.recompute import backward_start, base_order, can_recompute, is_first_run, order_keeping
from planner.request.plan_request import parse_request
from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.costs import size_of
from remat.jax.step.document import document, results_of
from remat.jax.step.program import Equation, Program, Value
from remat.jax.step.tasks import Task, kind_of, tasks_of

#: Fixed-point digits of capacities in the cut.
SCALE = 1 << 10
#: Price of a byte of values that end a region, beside others.
FAVOR = 0.95


@dataclass(frozen=True)
class Judged:
    """A step that saves some names and offloads others: bytes at its peak, with arguments and results, and time."""

    names: frozenset[str]
    offloaded: frozenset[str]
    peak_bytes: int
    seconds: float


class NamedStep:
    """A step whose forward values have names (`checkpoint_name`), and what it costs to save some of them.

    Parameters:
        program: The step.
        fields: Fields of a request: the device.
        forced: Names of values that are saved whatever the policy says. So are results of scans.
        workspaces: Bytes that tasks take beside their values, by name.
    """

    def __init__(
        self,
        program: Program,
        fields: dict[str, Any],
        forced: Collection[str] = (),
        workspaces: Callable[[Sequence[Task]], dict[str, int]] = lambda tasks: {},
    ):
        self.program = program
        self.tasks = tasks_of(program)
        self.results = results_of(program)
        made = document(program, self.tasks, workspaces=workspaces(self.tasks))
        lowered = formulate(load(json.dumps(made).encode()), parse_request({**fields, "layout": "none"})).lowered
        named = [value.name for value in lowered.graph.values]
        self.buffers = dict(zip(named, lowered.value_buffer, strict=True))
        self.values = {value.name: value for task in self.tasks for value in task.root.writes}
        self.problem = self._with_all_bytes(lowered.problem)
        self.base = base_order(self.problem)
        self.turn = backward_start(self.problem, self.base)
        self.candidates, self.useless = self._candidates()
        scans = [b for task in self.tasks if task.root.primitive == "scan" for b in map(self._buffer, task.root.writes)]
        self.forced = [*scans, *(b for name in forced for b in self.candidates.get(name, ()))]

    def _buffer(self, value: Value) -> int:
        return self.buffers[value.name]

    @property
    def seconds_per_byte(self) -> float:
        """Seconds of the step by the bytes of all its values."""
        return int(self.problem.cost.sum()) * self.problem.tick / max(1, int(self.problem.size.sum()))

    def _with_all_bytes(self, problem: Problem) -> Problem:
        """The problem with the bytes of values that the document lays into buffers of results."""
        size = problem.size.copy()
        for name, value in self.values.items():
            if value not in self.results:
                size[self.buffers[name]] = size_of(value.aval)
        return replace(problem, size=size)

    def _candidates(self) -> tuple[dict[str, list[int]], list[str]]:
        """Names with the buffers that they save, and names that save no recomputation."""
        made_by = {value: equation for equation in self.program.equations for value in equation.writes}
        readers: dict[Value, list[Equation]] = {}
        for equation in self.program.equations:
            for value in equation.reads:
                readers.setdefault(value, []).append(equation)
        droppable = self._droppable()
        found: dict[str, list[int]] = {}
        useless: dict[str, None] = {}
        for equation in self.program.equations:
            if equation.primitive != "name" or equation not in self.program.forward:
                continue
            name, value = str(equation.source.params["name"]), equation.inputs[0]
            while (
                isinstance(value, Value)
                and value in made_by
                and len(readers[value]) == 1
                and value.name not in self.values
            ):
                if kind_of(made_by[value].source) != "view":
                    break
                value = made_by[value].inputs[0]
            buffer = self.buffers.get(value.name) if isinstance(value, Value) else None
            if buffer is None or not droppable[buffer] or len(readers[value]) > 1:
                useless[name] = None
            else:
                found.setdefault(name, []).append(buffer)
        return {name: buffers for name, buffers in found.items() if name not in useless}, list(useless)

    def _droppable(self) -> np.ndarray:
        """bool[m]: forward buffers that may be dropped and recomputed."""
        early = np.zeros(self.problem.tasks + 1, bool)
        early[self.base[: self.turn]] = can_recompute(self.problem)[self.base[: self.turn]]
        return np.asarray(early[self.problem.producer()] & (self.problem.hold == TO_LAST_READ))

    def cut(
        self, seconds_per_byte: float, transfer: float = math.inf, preferred: Collection[str] = ()
    ) -> frozenset[str]:
        """The names to save if a byte held costs so many seconds: a minimum cut, exact for names of one value each.

            source ──∞──▶ needed b ──bytes──▶ recompute the task of b ──seconds──▶ sink
                                                  ╰──∞──▶ needed a, which it reads

        `transfer`: seconds to offload a byte and fetch it, which then holds it for no more than that.
        """
        problem, producer, droppable = self.problem, self.problem.producer(), self._droppable()
        droppable[self.forced] = False
        own = {buffer: name for name, buffers in self.candidates.items() for buffer in buffers}
        reads, first_task = problem.reads.lists(), 2 + problem.buffers
        price = min(seconds_per_byte, transfer) / problem.tick * SCALE
        network = FlowNetwork(first_task + problem.tasks)
        for task in self.base[: self.turn].tolist():
            network.arc(first_task + task, 1, int(problem.cost[task]) * SCALE)
            for b in reads[task]:
                if droppable[b]:
                    network.arc(first_task + task, 2 + b, UNCUTTABLE)
        for b in np.flatnonzero(droppable).tolist():
            favor = FAVOR if own.get(b) in preferred else 1.0
            held = round(price * favor * int(problem.size[b])) if b in own else UNCUTTABLE
            network.arc(2 + b, first_task + int(producer[b]), held)
        for b in set(problem.reads.gather(self.base[self.turn :]).tolist()):
            if droppable[b]:
                network.arc(0, 2 + b, UNCUTTABLE)
        side = network.source_side()
        return frozenset(name for b, name in own.items() if side[2 + b] and not side[first_task + int(producer[b])])

    def judged(self, names: Collection[str], offloaded: Collection[str] = (), transfer: float = 0.0) -> Judged:
        """The step that saves these names and offloads those, as the planner's evaluator sees it."""
        kept = [buffer for name in sorted(set(names) - set(offloaded)) for buffer in self.candidates.get(name, ())]
        away = np.array([buffer for name in sorted(offloaded) for buffer in self.candidates.get(name, ())], np.int64)
        problem, order = self._ordered(np.array([*kept, *self.forced], np.int64), away, transfer)
        own = [self.tasks[task] for task in order.tolist() if task < len(self.tasks)]
        size = problem.size.copy()
        for value in in_buffers_of_results(self.tasks, self.results, own):
            size[self.buffers[value.name]] = 0
        placed = replace(problem, size=size)
        return Judged(
            frozenset(names),
            frozenset(offloaded),
            liveness.peak(placed, order),
            liveness.cost(placed, order) * problem.tick,
        )

    def _ordered(self, kept: np.ndarray, away: np.ndarray, transfer: float) -> tuple[Problem, Order]:
        """The order that keeps some buffers, and fetches those that are away where it would recompute them."""
        if not len(away):
            return self.problem, order_keeping(self.problem, kept)
        fetched = dict(zip(self.problem.producer()[away].tolist(), away.tolist(), strict=True))
        alone = [[] if task in fetched else row for task, row in enumerate(self.problem.reads.lists())]
        order = order_keeping(replace(self.problem, reads=Csr.of(alone)), kept)
        number = {task: self.problem.tasks + i for i, task in enumerate(fetched)}
        again = ~is_first_run(self.problem, order)
        order = np.array([number.get(t, t) if more else t for t, more in zip(order.tolist(), again, strict=True)])
        return with_fetches(self.problem, list(fetched.values()), transfer), order


def with_fetches(problem: Problem, buffers: Sequence[int], transfer: float) -> Problem:
    """The problem with a task for each buffer that brings it back from the host; `transfer`: seconds for a byte."""
    count = len(buffers)
    changed: dict[str, Any] = {}
    for name in ("cost", "workspace", "phase", "engine", "repeat", "optional", "heavy", "recompute"):
        column = getattr(problem, name)
        changed[name] = np.append(column, np.zeros(count, column.dtype))
    changed["phase"][problem.tasks :] = BACKWARD
    changed["cost"][problem.tasks :] = [round(transfer * int(problem.size[b]) / problem.tick) for b in buffers]
    for name in ("reads", "shape_reads", "after_every", "after_first"):
        changed[name] = Csr.of([*getattr(problem, name).lists(), *([] for _ in buffers)])
    changed["writes"] = Csr.of([*problem.writes.lists(), *([b] for b in buffers)])
    return replace(problem, **changed)
