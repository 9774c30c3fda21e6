"""The equations of a training step: the jaxpr of `value_and_grad`, traced from shapes, with nested `jit` inlined.

    jaxpr ──▶ Value       an input, a constant, or what an equation computes; has one name
          ──▶ Equation    one primitive with its parameters; control flow and custom derivatives stay one equation

Values and equations have names of their own, since one nested jaxpr may be called several times.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import jax
from jax.extend.core import Literal

from remat.jax.step.private import is_drop, is_sharded, source_line
from remat.steps.errors import NotCaptured

INLINED = ("jit", "pjit", "closed_call", "core_call")


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An array of a step."""

    name: str
    aval: Any


Atom: TypeAlias = Value | Literal


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """One primitive with its operands; `outputs` has None for results that are thrown away."""

    name: str
    source: Any  # the equation of the jaxpr
    inputs: tuple[Atom, ...]
    outputs: tuple[Value | None, ...]

    @property
    def primitive(self) -> str:
        return str(self.source.primitive.name)

    @property
    def reads(self) -> list[Value]:
        """Operands that are no literals, each once."""
        return list(dict.fromkeys(atom for atom in self.inputs if isinstance(atom, Value)))

    @property
    def writes(self) -> list[Value]:
        """Results that are not thrown away."""
        return [value for value in self.outputs if value is not None]


@dataclass(frozen=True, eq=False)
class Program:
    """A step: `equations` stand in an order that can run, those of the forward pass first.

    `results` are loss, auxiliary results and gradients, as `out_tree` unflattens them; `gradients` pairs each
    differentiated input with its gradient.
    """

    inputs: list[Value]
    parameters: frozenset[Value]
    constants: list[tuple[Value, Any]]
    equations: list[Equation]
    forward: frozenset[Equation]
    results: list[Atom]
    gradients: list[tuple[Value, Atom]]
    in_tree: Any
    out_tree: Any


def trace(
    function: Callable[..., Any], shapes: Sequence[Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Program:
    """The program of `jax.value_and_grad(function)` for arguments with these shapes; nothing is computed.

    Raises:
        NotCaptured: The function branches on data, has shapes that depend on data, returns no scalar, or has side
            effects; the message has the line.
    """
    raised: list[Exception] = []

    @functools.wraps(function)
    def watched(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raised.append(error)
            raise

    differentiated = jax.value_and_grad(watched, argnums=argnums, has_aux=has_aux)
    try:
        closed, shape = jax.make_jaxpr(differentiated, return_shape=True)(*shapes)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise NotCaptured(_trace_text(error)) from None
    except (TypeError, ValueError) as error:
        if raised:  # by the function itself: its own error
            raise
        raise NotCaptured(_trace_text(error)) from None
    return _program(function, closed, tuple(shapes), shape, argnums)


def _program(function: Callable[..., Any], closed: Any, shapes: tuple[Any, ...], result: Any, argnums: Any) -> Program:
    paths, in_tree = jax.tree_util.tree_flatten_with_path(shapes)
    names = _argument_names(function, len(shapes))
    inputs = [
        Value(names[path[0].idx] + jax.tree_util.keystr(path[1:]), variable.aval)
        for (path, _), variable in zip(paths, closed.jaxpr.invars, strict=True)
    ]
    flat = Flat()
    results = flat.add(closed.jaxpr, [*flat.named_constants(closed), *inputs])
    of_forward = len(jax.tree.leaves(result[0]))
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    numbers = [number % len(shapes) for number in numbers]
    parameters = [value for n in numbers for value, (path, _) in zip(inputs, paths, strict=True) if path[0].idx == n]
    equations, forward = ordered(flat.equations, results[:of_forward], results)
    return Program(
        inputs=inputs,
        parameters=frozenset(parameters),
        constants=flat.constants,
        equations=equations,
        forward=forward,
        results=results,
        gradients=list(zip(parameters, results[of_forward:], strict=True)),
        in_tree=in_tree,
        out_tree=jax.tree.structure(result),
    )


def trace_pair(function: Callable[..., Any], avals: Sequence[Any]) -> Program:
    """The program of `jax.vjp(function)` and its pullback: forward and backward pass of the body of a loop.

    `function` takes a list of arrays and returns one; those of floating point have gradients.
    """
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    floating = [i for i, aval in enumerate(shapes) if is_floating(aval)]

    def outputs(differentiated: Sequence[Any], operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = list(operands)
        for i, array in zip(floating, differentiated, strict=True):
            given[i] = array
        found = function(given)
        return [array for array in found if is_floating(array)], found

    def both(operands: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = [operands[i] for i in floating]
        _, pullback, found = jax.vjp(lambda *arrays: outputs(arrays, operands), *given, has_aux=True)
        return found, list(pullback(list(cotangents)))

    cotangents, found = jax.eval_shape(lambda given: outputs([given[i] for i in floating], given), shapes)
    closed = jax.make_jaxpr(both)(shapes, cotangents)
    flat = Flat()
    inputs = [Value(f"argument.{i}", variable.aval) for i, variable in enumerate(closed.jaxpr.invars)]
    results = flat.add(closed.jaxpr, [*flat.named_constants(closed), *inputs])
    equations, forward = ordered(flat.equations, results[: len(found)], results)
    tree = jax.tree.structure(None)
    return Program(inputs, frozenset(), flat.constants, equations, forward, results, [], tree, tree)


def is_floating(array: Any) -> bool:
    """Whether an array, or the aval of one, has a gradient."""
    return bool(jax.numpy.issubdtype(array.dtype, jax.numpy.inexact))


def called(source: Any) -> Any:
    """The jaxpr that an equation calls as it is, as a nested `jit` without shardings does; else None."""
    nested = source.params.get("jaxpr", source.params.get("call_jaxpr"))
    return nested if source.primitive.name in INLINED and not is_sharded(source) else None


@dataclass
class Flat:
    """Equations of a jaxpr and of the `jit` nested in it; of those for which `is_inlined(jaxpr, place)`."""

    is_inlined: Callable[[Any, int], bool] = lambda jaxpr, place: True
    equations: list[Equation] = field(default_factory=list)
    constants: list[tuple[Value, Any]] = field(default_factory=list)

    def named_constants(self, closed: Any) -> list[Value]:
        """Values for the constants that a jaxpr closes over."""
        first = len(self.constants)
        for i, (variable, array) in enumerate(zip(closed.jaxpr.constvars, closed.consts, strict=True)):
            self.constants.append((Value(f"constant.{first + i}", variable.aval), array))
        return [value for value, _ in self.constants[first:]]

    def add(self, jaxpr: Any, operands: Sequence[Atom]) -> list[Atom]:
        """Add the equations of a jaxpr applied to operands; returns its results."""
        known: dict[Any, Atom] = dict(zip((*jaxpr.constvars, *jaxpr.invars), operands, strict=True))

        def atom(given: Any) -> Atom:
            return given if isinstance(given, Literal) else known[given]

        for place, source in enumerate(jaxpr.eqns):
            inputs = tuple(atom(given) for given in source.invars)
            nested = called(source)
            if nested is not None and self.is_inlined(jaxpr, place):
                found = self.add(nested.jaxpr, [*self.named_constants(nested), *inputs])
            else:
                found = self._add_one(source, inputs)
            known |= zip(source.outvars, found, strict=True)
        return [atom(given) for given in jaxpr.outvars]

    def _add_one(self, source: Any, inputs: tuple[Atom, ...]) -> list[Any]:
        if source.effects:
            raise NotCaptured(
                f"{source_line(source) or 'the function'}: {source.primitive.name} has a side effect, so it could "
                "neither be moved nor recomputed; take it out of the function, for example by returning what it shows "
                "(has_aux=True)"
            )
        name = f"{source.primitive.name}.{len(self.equations)}"
        single = len(source.outvars) == 1
        outputs = tuple(
            None if is_drop(variable) else Value(name if single else f"{name}.{i}", variable.aval)
            for i, variable in enumerate(source.outvars)
        )
        self.equations.append(Equation(name, source, inputs, outputs))
        return list(outputs)


def ordered(
    equations: list[Equation], forward_results: Sequence[Atom], results: Sequence[Atom]
) -> tuple[list[Equation], frozenset[Equation]]:
    """Equations that results need, the forward pass first; and those of the forward pass.

    JAX computes derivatives that it will need later beside the forward pass; here they run just before they are read.
    """
    made_by = {value: equation for equation in equations for value in equation.writes}
    needed, forward = _ancestors(made_by, results), _ancestors(made_by, forward_results)
    order = [equation for equation in equations if equation in forward]
    last = equations.index(order[-1]) if order else -1
    placed = set(order)
    for equation in [equation for equation in equations[last + 1 :] if equation in needed]:
        waiting = [equation]
        while waiting:
            missing = [made_by[value] for value in waiting[-1].reads if value in made_by]
            missing = [before for before in missing if before not in placed]
            if missing:
                waiting.append(missing[0])
                continue
            if waiting[-1] not in placed:
                placed.add(waiting[-1])
                order.append(waiting[-1])
            waiting.pop()
    placed_late = [equation for equation in equations if equation in needed and equation not in placed]
    return order + placed_late, frozenset(forward)


def _ancestors(made_by: dict[Value, Equation], atoms: Sequence[Atom]) -> set[Equation]:
    found: set[Equation] = set()
    waiting = [made_by[atom] for atom in atoms if isinstance(atom, Value) and atom in made_by]
    while waiting:
        equation = waiting.pop()
        if equation not in found:
            found.add(equation)
            waiting += [made_by[value] for value in equation.reads if value in made_by]
    return found


def _argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names of positional arguments as the function spells them, `argument0` where it does not."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return named + [f"argument{i}" for i in range(len(named), count)]


def _trace_text(error: Exception) -> str:
    """The place in the user's code, the reason, and a remedy."""
    own = (str(Path(jax.__file__).parent), str(Path(__file__).parents[1]))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    reason = " ".join(str(error).partition("\nSee https://")[0].split())
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError) or "statically specified" in reason:
        remedy = "a shape may not depend on data: mask with jnp.where instead of selecting"
    elif isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)):
        remedy = "use jax.lax.cond or jnp.where on data, and make what is no array static with functools.partial"
    else:
        remedy = "value_and_grad takes a function of floating-point arguments that returns a scalar loss"
    return f"{place}{reason} ({remedy})"
