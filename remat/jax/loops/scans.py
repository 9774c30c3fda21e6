"""Scans of the forward pass and the scans of the backward pass that read what they save, with their bodies as tasks.

F  scan   x, h ─▶ a ─▶ s ─▶ h'        the stack of all s is read by G alone
G  scan, the other way   s, dh' ─▶ dx, dh
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from remat.jax.step.program import Atom, Equation, Flat, Program, Value, ordered
from remat.jax.step.tasks import Task, tasks_of

#: Primitives that no body of a pair has: the planner would have to repeat or move them.
UNREPEATABLE = {"shard_map", "rng_uniform"}


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan of a step whose body is planned; pairs are (value of the body, value of the step).

    body: One iteration; `inputs` are captures, carries and elements.
    gradient_of: Name of the forward scan; empty for that one itself.
    """

    equation: Equation
    body: Program
    tasks: list[Task]
    captures: list[tuple[Value, Value]]
    carries: list[tuple[Value, Value]]
    sequences: list[tuple[Value, Value]]
    gradient_of: str

    @property
    def is_reversed(self) -> bool:
        """Whether it runs from the last row to the first."""
        return bool(self.equation.source.params["reverse"])


def with_scans(program: Program) -> tuple[Program, dict[Equation, Scan]]:
    """The scans of a program that form pairs, and the program with constants for the literals that they read."""
    constants = list(program.constants)
    found: dict[Equation, Scan] = {}
    for forward, backward in _pairs(program):
        both = _scan(forward, "", constants), _scan(backward, forward.name, constants)
        if both[0] is not None and both[1] is not None:
            found |= {forward: both[0], backward: both[1]}
    return replace(program, constants=constants), found


def _pairs(program: Program) -> Iterator[tuple[Equation, Equation]]:
    """A forward scan, and the backward scan of as many iterations that reads it; the only one, each of the other."""
    made_by = {value: equation for equation in program.equations for value in equation.writes}
    readers: dict[Equation, list[Equation]] = {}
    sources: dict[Equation, list[Equation]] = {}
    for equation in program.equations:
        if equation.primitive != "scan" or equation in program.forward:
            continue
        for forward in dict.fromkeys(made_by[value] for value in equation.reads if value in made_by):
            if forward in program.forward and _are_opposite(forward, equation):
                readers.setdefault(forward, []).append(equation)
                sources.setdefault(equation, []).append(forward)
    for forward, backwards in readers.items():
        if len(backwards) == 1 and len(sources[backwards[0]]) == 1:
            yield forward, backwards[0]


def _are_opposite(one: Equation, other: Equation) -> bool:
    """Whether both are scans with as many iterations in opposite order."""
    if one.primitive != "scan":
        return False
    first, second = one.source.params, other.source.params
    return first["length"] == second["length"] > 1 and first["reverse"] is not second["reverse"]


def _scan(equation: Equation, gradient_of: str, constants: list[tuple[Value, Any]]) -> Scan | None:
    """The body of a scan as tasks; None for one that cannot be planned. Adds to `constants`."""
    params, closed = equation.source.params, equation.source.params["jaxpr"]
    flat = Flat()
    inside = flat.named_constants(closed)
    inputs: list[Atom] = []
    outside: list[tuple[Value, Value]] = []  # of every input but literals
    for i, (variable, atom) in enumerate(zip(closed.jaxpr.invars, equation.inputs, strict=True)):
        if i < params["num_consts"] and not isinstance(atom, Value):
            inputs.append(atom)
            continue
        inputs.append(Value(f"argument.{i}", variable.aval))
        if not isinstance(atom, Value):
            constants.append((Value(f"{equation.name}.argument.{i}", variable.aval), np.asarray(atom.val)))
            atom = constants[-1][0]
        outside.append((inputs[-1], atom))
    results = flat.add(closed.jaxpr, [*inside, *inputs])
    if inside or not all(isinstance(atom, Value) for atom in results) or _is_unrepeatable(flat.equations):
        return None
    equations, forward = ordered(flat.equations, results, results)
    captured = len(outside) - len(inputs) + params["num_consts"]
    carried = captured + params["num_carry"]
    sequences = outside[carried:]
    if not sequences:  # one gives the number of iterations
        trips = jax.core.ShapedArray((params["length"],), np.dtype(bool))
        constants.append((Value(f"{equation.name}.trips", trips), np.zeros(trips.shape, bool)))
        sequences = [(Value("trip", jax.core.ShapedArray((), trips.dtype)), constants[-1][0])]
    body = Program(
        inputs=[value for value, _ in (*outside[:carried], *sequences)],
        parameters=frozenset(),
        constants=[],
        equations=equations,
        forward=forward,
        results=results,
        gradients=[],
        in_tree=None,
        out_tree=None,
    )
    return Scan(equation, body, tasks_of(body), outside[:captured], outside[captured:carried], sequences, gradient_of)


def _is_unrepeatable(equations: list[Equation]) -> bool:
    return any(equation.primitive in UNREPEATABLE for equation in equations)
