"""Equations that XLA computes in one kernel, as `graph.formats.stablehlo.fusion` groups them, are one task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from graph.formats.stablehlo.fusion import Fusion, Kind
from remat.jax.step.costs import flops_of
from remat.jax.step.program import Equation, Program, Value

CALLS = ("custom_jvp_call", "custom_vjp_call", "jit")
_NAMES: tuple[tuple[Kind, str], ...] = (
    ("view", "name reshape squeeze expand_dims transpose stop_gradient"),
    (
        "cheap",
        "abs add add_any and bitcast_convert_type broadcast_in_dim ceil clamp copy convert_element_type eq floor ge gt "
        "imag integer_pow iota is_finite le lt max min mul ne neg not or pad real reduce_precision rev round select_n "
        "shift_left shift_right_arithmetic shift_right_logical sign slice square sub xor",
    ),
    (
        "expensive",
        "acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp exp2 expm1 log log1p logistic "
        "nextafter pow rem rsqrt sin sinh sqrt tan tanh",
    ),
    ("reduction", "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum"),
)
#: Ops of XLA whose result lies in the bytes of their first operand.
IN_PLACE = ("scatter", "dynamic_update_slice")
RESHAPES = {"reshape", "squeeze", "expand_dims"}
KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES for name in names.split()}


@dataclass(frozen=True, eq=False)
class Task:
    """Equations that one kernel computes, `root` last; named after it."""

    root: Equation
    equations: tuple[Equation, ...]

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def reads(self) -> list[Value]:
        """Values that the task takes from memory."""
        inside = {value for equation in self.equations for value in equation.writes}
        read = (value for equation in self.equations for value in equation.reads)
        return [value for value in dict.fromkeys(read) if value not in inside]

    @property
    def writes(self) -> list[Value]:
        """Values that the task leaves in memory."""
        return self.root.writes

    @property
    def flops(self) -> int:
        """Floating-point operations of a run."""
        return sum(flops_of(equation.source) for equation in self.equations)

    @property
    def is_reshape(self) -> bool:
        """Whether the result has the bytes of the operand."""
        return len(self.equations) == 1 and self.root.primitive in RESHAPES and len(self.reads) == 1

    def computed(self, arrays: Mapping[Value, Any]) -> dict[Value, Any]:
        """The results from arrays that hold what the task reads."""
        inside = dict(arrays)
        for equation in self.equations:
            inside |= bound(equation, inside)
        return {value: inside[value] for value in self.writes}


def bound(equation: Equation, arrays: Mapping[Value, Any]) -> dict[Value, Any]:
    """The results of an equation from arrays that hold its operands."""
    source = equation.source
    operands = [arrays[atom] if isinstance(atom, Value) else atom.val for atom in equation.inputs]
    with jax.named_scope(equation.name):
        found = source.primitive.bind(*operands, **source.primitive.get_bind_params(source.params))
    results = found if source.primitive.multiple_results else [found]
    return {value: result for value, result in zip(equation.outputs, results, strict=True) if value is not None}


def tasks_of(program: Program, fused: bool = True, whole: Collection[Equation] = ()) -> list[Task]:
    """The tasks of a program, in an order that can run; without `fused` one for each equation.

    Equations that are `whole` are tasks of their own, whose operands are in memory.
    """
    if not fused:
        return [Task(equation, (equation,)) for equation in program.equations]
    filled = _overwritten_fills(program)
    fusion = Fusion(
        program.equations,
        [
            *(atom for atom in program.results if isinstance(atom, Value)),
            *(value for equation in whole for value in equation.reads),
        ],
        kind_of=lambda equation: "view" if equation in filled else kind_of(equation.source),
        elements_of=lambda value: prod(value.aval.shape),
        is_broadcast=lambda equation: equation.primitive in ("broadcast_in_dim", "iota"),
    )
    return [Task(root, tuple(members)) for root, members in fusion.members().items()]


def _overwritten_fills(program: Program) -> set[Equation]:
    """Filled arrays that scatters and updates of slices write over, and nothing else reads: XLA has no other copy."""
    read_otherwise: set[Value] = set()
    for equation in program.equations:
        rest = equation.inputs[1:] if equation.primitive.startswith(IN_PLACE) else equation.inputs
        read_otherwise.update(atom for atom in rest if isinstance(atom, Value))
    fills = (each for each in program.equations if each.primitive == "broadcast_in_dim" and not each.reads)
    return {fill for fill in fills if read_otherwise.isdisjoint(fill.writes)}


def kind_of(source: Any) -> Kind:
    """How XLA treats an equation of a jaxpr; calls with custom derivatives as the hardest of what they call."""
    name = source.primitive.name
    if name in KINDS or not name.startswith(CALLS):
        return KINDS.get(name, "other")
    body = source.params.get("call_jaxpr", source.params.get("jaxpr"))
    kinds = {kind_of(equation) for equation in getattr(body, "jaxpr", body).eqns}
    if kinds <= {"view", "cheap"}:
        return "cheap"
    return "expensive" if kinds <= {"view", "cheap", "expensive"} else "other"
