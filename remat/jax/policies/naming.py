"""A function with names on its values: `checkpoint_name` on each, checkpoints with a policy around what recomputes.

    function    a ── b ── scan ── c ── loss         regions, each in `jax.checkpoint(..., policy)`:   [a b]  [c loss]
                           │                        body of the scan, in one of its own:              [d e]
                           d ── e

A `lax.scan` is in no region: a region would recompute all of its steps before the first of their gradients, and hold
what every step saves. Its body is checkpointed instead. What a region reads is saved, named or not. It hands on what
later regions read too, so that gradients are added up in the order in which JAX adds them without regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

from remat.jax.step.costs import size_of
from remat.jax.step.program import Atom, Equation, Flat, Value, called, is_floating
from remat.jax.step.tasks import bound

#: Bytes that may cross the end of a region beside what is saved, as a share of it: masks, random keys.
SMALL = 0.05
#: Name of a value -> whether it gets that name.
IsNamed = Callable[[str], bool]


@dataclass(frozen=True, eq=False)
class Body:
    """The equations of a function, or of the body of a scan in it; `path` begins the names of its values."""

    path: str
    inputs: list[Value]
    constants: list[tuple[Value, Any]]
    equations: list[Equation]
    results: list[Atom]
    scans: dict[Equation, Body]
    calls: dict[Equation, Body]  # of nested `jit`

    def name_of(self, value: Value) -> str:
        """Name of a value, unique in the function."""
        return self.path + value.name

    def within(self) -> list[Body]:
        """This body and those of scans in it, outermost first."""
        scans = [body for outer in self.calls_within() for body in outer.scans.values()]
        return [self, *(inner for body in scans for inner in body.within())]

    def calls_within(self) -> list[Body]:
        """This body and those of `jit` in it, at every depth."""
        return [self, *(inner for body in self.calls.values() for inner in body.calls_within())]


def body_of(closed: Any, path: str = "") -> Body:
    """The body of a closed jaxpr; a nested `jit` is inlined where that changes no sum of gradients."""
    flat = Flat(is_inlined=_keeps_sums)
    inputs = [Value(f"argument.{i}", variable.aval) for i, variable in enumerate(closed.jaxpr.invars)]
    results = flat.add(closed.jaxpr, [*flat.named_constants(closed), *inputs])
    scans, calls = {}, {}
    for equation in flat.equations:
        if equation.primitive == "scan":
            scans[equation] = body_of(equation.source.params["jaxpr"], f"{path}{equation.name}/")
        elif called(equation.source) is not None:
            calls[equation] = body_of(called(equation.source), f"{path}{equation.name}/")
    return Body(path, inputs, flat.constants, flat.equations, results, scans, calls)


def _keeps_sums(jaxpr: Any, place: int) -> bool:
    """Whether inlining the call at a place leaves the order in which the gradients of its operands are summed.

    JAX sums the parts of a gradient from the last reader of a value to the first, and those inside a call apart. That
    is the same if the call is the last reader, or reads the value once.
    """
    source = jaxpr.eqns[place]
    later = {v for equation in jaxpr.eqns[place + 1 :] for v in equation.invars if not isinstance(v, Literal)}
    later |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for variable in {v for v in source.invars if not isinstance(v, Literal)} & later:
        inner = called(source).jaxpr
        formal = [one for one, given in zip(inner.invars, source.invars, strict=True) if given is variable]
        if is_floating(variable.aval) and sum(_reads(inner, one) for one in formal) > 1:
            return False
    return True


def _reads(jaxpr: Any, variable: Any) -> int:
    """How often equations read a variable, those of calls counted."""
    count = sum(given is variable for given in jaxpr.outvars)
    for source in jaxpr.eqns:
        nested = called(source)
        for i, given in enumerate(source.invars):
            if given is variable:
                count += 1 if nested is None else _reads(nested.jaxpr, nested.jaxpr.invars[i])
    return count


@dataclass(frozen=True)
class Naming:
    """How a body is computed: which values are named, and the policy of its checkpoints, None for no checkpoints.

    `scans` has the policy of the bodies of scans, by path; one that is not in it is not checkpointed.
    """

    is_named: IsNamed
    policy: Any = None
    is_saved: IsNamed = lambda name: False
    scans: dict[str, Any] = field(default_factory=dict)

    def computed(self, body: Body, operands: Sequence[Any]) -> list[Any]:
        """The results of a body."""
        arrays: dict[Value, Any] = dict(body.constants) | dict(zip(body.inputs, operands, strict=True))
        for region in regions_of(body, self.is_saved):
            if region[0] in body.scans:
                arrays |= self._scan(body, region[0], arrays)
            else:
                arrays |= self._region(body, region, arrays)
        return [arrays[atom] if isinstance(atom, Value) else atom.val for atom in body.results]

    def _region(self, body: Body, region: list[Equation], arrays: dict[Value, Any]) -> dict[Value, Any]:
        inside = dict.fromkeys(value for equation in region for value in equation.writes)
        reads = list(dict.fromkeys(value for equation in region for value in equation.reads if value not in inside))
        results = {atom for atom in body.results if isinstance(atom, Value)}
        last = body.equations.index(region[-1])
        later = {value for equation in body.equations[last + 1 :] for value in equation.reads} | results
        passed = [value for value in reads if value in later and is_floating(value.aval)]
        writes = [value for value in inside if value in later] + passed

        def run(operands: Sequence[Any]) -> list[Any]:
            if self.policy is not None:  # its gradients are computed before those of the region before it
                operands = jax.lax.optimization_barrier(operands)
            local = dict(zip(reads, operands, strict=True))
            for equation in region:
                found = self._call(body, equation, local) if equation in body.calls else bound(equation, local)
                local |= {value: self._named(body, value, array) for value, array in found.items()}
            return [local[value] for value in writes]

        checkpointed = run if self.policy is None else jax.checkpoint(run, policy=self.policy)
        return dict(zip(writes, checkpointed([arrays[value] for value in reads]), strict=True))

    def _call(self, body: Body, equation: Equation, arrays: dict[Value, Any]) -> dict[Value, Any]:
        inner = Naming(self.is_named, scans=self.scans)
        operands = [arrays[atom] if isinstance(atom, Value) else atom.val for atom in equation.inputs]
        found = jax.jit(partial(inner.computed, body.calls[equation]))(operands)
        return {value: array for value, array in zip(equation.outputs, found, strict=True) if value is not None}

    def _scan(self, body: Body, equation: Equation, arrays: dict[Value, Any]) -> dict[Value, Any]:
        params, inner = equation.source.params, body.scans[equation]
        consts, carries = params["num_consts"], params["num_carry"]
        operands = [arrays[atom] if isinstance(atom, Value) else atom.val for atom in equation.inputs]
        run: Callable[..., Any] = partial(Naming(self.is_named, scans=self.scans).computed, inner)
        if inner.path in self.scans:
            run = jax.checkpoint(run, policy=self.scans[inner.path], prevent_cse=False)

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            found = run([*operands[:consts], *carry, *slices])
            return found[:carries], found[carries:]

        carry, stacked = jax.lax.scan(
            step,
            operands[consts : consts + carries],
            operands[consts + carries :],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        found = {v: array for v, array in zip(equation.outputs, [*carry, *stacked], strict=True) if v is not None}
        return {value: self._named(body, value, array) for value, array in found.items()}

    def _named(self, body: Body, value: Value, array: Any) -> Any:
        name = body.name_of(value)
        return checkpoint_name(array, name) if self.is_named(name) else array


def regions_of(body: Body, is_saved: IsNamed = lambda name: False) -> list[list[Equation]]:
    """Runs of equations between scans, and each scan alone; runs end too where all that crosses their end is saved."""
    crossing = crossing_after(body)
    regions: list[list[Equation]] = []
    for place, equation in enumerate(body.equations):
        before = crossing[place - 1] if place else {}
        saved = sum(size for value, size in before.items() if is_saved(body.name_of(value)))
        is_cut = saved * (1 + SMALL) >= sum(before.values()) > 0
        if equation in body.scans or not regions or regions[-1][-1] in body.scans or is_cut:
            regions.append([])
        regions[-1].append(equation)
    return regions


def crossing_after(body: Body) -> list[dict[Value, int]]:
    """For each equation the values that are computed up to it and read after it, with their bytes."""
    last = {value: place for place, equation in enumerate(body.equations) for value in equation.reads}
    last |= {atom: len(body.equations) for atom in body.results if isinstance(atom, Value)}
    found: list[dict[Value, int]] = []
    alive: dict[Value, int] = {}
    for place, equation in enumerate(body.equations):
        alive |= {value: size_of(value.aval) for value in equation.writes}
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > place}
        found.append(alive)
    return found


def narrow_places(body: Body) -> set[str]:
    """Names of values that are nearly all that crosses some place of the body."""
    found = set()
    for crossing in crossing_after(body):
        value = max(crossing, key=crossing.__getitem__, default=None)
        if value is not None and crossing[value] * (1 + SMALL) >= sum(crossing.values()):
            found.add(body.name_of(value))
    return found
