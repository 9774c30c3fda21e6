"""Calls with other weak types than those planned, as Python numbers have beside arrays, or in another mode of x64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from remat.jax.step.program import Program
from remat.steps.errors import OtherStep

WeakTypes = tuple[bool, ...]


class WeakTypeRules:
    """Weak types of the results of a program, by those of its arguments and the mode. Each combination is traced once.

    Parameters:
        program: The step as planned.
        traced: The program of the same function for other avals, flat.
    """

    def __init__(self, program: Program, traced: Callable[[Sequence[Any]], Program]):
        self._program, self._traced = program, traced
        self._known: dict[tuple[bool, WeakTypes], WeakTypes] = {}
        self._has_x64 = has_x64()

    def are_planned(self, avals: Sequence[Any]) -> bool:
        """Whether weak types and mode are those planned."""
        inputs = self._program.inputs
        return self._has_x64 == has_x64() and all(
            value.aval.weak_type == aval.weak_type for value, aval in zip(inputs, avals, strict=True)
        )

    def of_results(self, avals: Sequence[Any]) -> WeakTypes:
        """Weak types that the results of the function have for arguments with these avals.

        Raises OtherStep where the function computes with other dtypes for them.
        """
        given = has_x64(), tuple(aval.weak_type for aval in avals)
        if given not in self._known:
            self._known[given] = self._results_for(avals)
        return self._known[given]

    def _results_for(self, avals: Sequence[Any]) -> WeakTypes:
        program = self._traced(avals)
        if _dtypes(program) != _dtypes(self._program):
            raise OtherStep(self._difference(avals))
        return tuple(getattr(atom.aval, "weak_type", False) for atom in program.results)

    def _difference(self, avals: Sequence[Any]) -> str:
        """What a call has other than planned, and the remedy."""
        if self._has_x64 != has_x64():
            return (
                f"the plan was made with jax_enable_x64={self._has_x64}, this is a call with {has_x64()}, in which the "
                "function computes in other dtypes; set it before optimize as in training"
            )
        pairs = zip(self._program.inputs, avals, strict=True)
        name, found = next((v.name, found) for v, found in pairs if v.aval.weak_type != found.weak_type)
        array, number = f"an array of {found.dtype}", "a Python number (or another value of a weak type)"
        called, planned = (number, array) if found.weak_type else (array, number)
        return (
            f"the plan is for {name} as {planned}, this is {called}: the function computes in other dtypes with it; "
            f"pass {planned}, or call optimize with {called}"
        )


def has_x64() -> bool:
    """Whether JAX computes with 64-bit types now."""
    return bool(jax.config.jax_enable_x64)


def _dtypes(program: Program) -> tuple[list[Any], Counter[Any]]:
    """Dtypes of the results; primitives with dtypes of operands and results, but for changes of weak types alone.

    Equations of a loop may stand in another order, and captures be passed otherwise, so no more is compared.
    """
    found = _of_equations(equation.source for equation in program.equations)
    return _each(program.results), Counter(found)


def _of_equations(equations: Iterable[Any]) -> Iterator[Any]:
    for equation in equations:
        operands, results = _each(equation.invars), _each(equation.outvars)
        nested = list(_nested(equation.params))
        for jaxpr in nested:
            yield from _of_equations(jaxpr.eqns)
        name = equation.primitive.name
        if not nested and not (name == "convert_element_type" and operands == results):
            yield name, tuple(operands), tuple(results)


def _each(atoms: Iterable[Any]) -> list[Any]:
    return [getattr(atom.aval, "dtype", None) for atom in atoms]


def _nested(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for leaf in jax.tree.leaves(list(params.values())):
        jaxpr = getattr(leaf, "jaxpr", leaf)
        if hasattr(jaxpr, "eqns"):
            yield jaxpr
