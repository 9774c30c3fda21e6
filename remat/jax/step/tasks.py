"""What XLA computes in one kernel: equations whose results never reach memory belong to the task that reads them.

    equations   dot ──▶ mul ──▶ tanh ──▶ add ──▶ reduce_sum         tasks   dot ──▶ reduce_sum
                                                                            (mul, tanh and add computed inside)

- Reshapes, transposes and names belong to each task that reads them, and one at the end of the step to the task before
  it.
- Elementwise equations belong to the only task that reads them. If they are cheap and read one array of their size,
  several tasks compute them.
- Other equations are tasks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from remat.jax.step.program import Equation, Program, Value

MAX_EQUATIONS, MAX_TASKS = 64, 8  # in a task; that compute one equation
CALLS = ("custom_jvp_call", "custom_vjp_call", "jit")
Kind = Literal["view", "cheap", "expensive", "reduction", "other"]
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


def tasks_of(program: Program, fused: bool = True) -> list[Task]:
    """The tasks of a program, in an order that can run; without `fused` one for each equation."""
    if not fused:
        return [Task(equation, (equation,)) for equation in program.equations]
    homes = _Homes(program).homes
    members: dict[Equation, list[Equation]] = {}
    for equation in program.equations:
        for home in homes[equation]:
            members.setdefault(home, []).append(equation)
    return [Task(root, tuple(members[root])) for root in program.equations if root in homes[root]]


class _Homes:
    """For each equation the roots of the tasks that compute it."""

    def __init__(self, program: Program):
        self.homes: dict[Equation, tuple[Equation, ...]] = {}
        self.sizes: dict[Equation, int] = {}
        self.generated: dict[Equation, bool] = {}  # whether kernels of XLA compute all that reads an inlined equation
        self.held = {atom for atom in program.results if isinstance(atom, Value)}
        self.readers: dict[Value, list[Equation]] = {}
        self.made_by = {value: equation for equation in program.equations for value in equation.writes}
        for equation in program.equations:
            for value in equation.reads:
                self.readers.setdefault(value, []).append(equation)
        for equation in reversed(program.equations):
            homes = self._inlined_into(equation)
            self.homes[equation] = homes or (equation,)
            is_generated = kind_of(equation.source) != "other"
            self.generated[equation] = is_generated and (not homes or self._all_generated(equation))
            for home in self.homes[equation]:
                self.sizes[home] = self.sizes.get(home, 0) + 1

    def _inlined_into(self, equation: Equation) -> tuple[Equation, ...]:
        """The roots that compute an equation; none if it is a root itself."""
        if len(equation.writes) != 1 or self.held.intersection(equation.writes):
            return ()
        readers, kind = self.readers[equation.writes[0]], kind_of(equation.source)
        homes = tuple(dict.fromkeys(home for reader in readers for home in self.homes[reader]))
        if len(homes) > MAX_TASKS or any(self.sizes[home] >= MAX_EQUATIONS for home in homes):
            return ()
        if kind == "view":
            return homes
        if kind in ("other", "reduction"):
            return homes if len(readers) == 1 and self._is_last_view(readers[0]) else ()
        if not self._all_generated(equation):
            return ()
        if len(homes) == 1 or (kind == "cheap" and self._arrays_read(equation) <= 1):
            return homes
        return ()

    def _is_last_view(self, reader: Equation) -> bool:
        return self.homes[reader] == (reader,) and kind_of(reader.source) == "view"

    def _all_generated(self, equation: Equation) -> bool:
        return all(self.generated[reader] for value in equation.writes for reader in self.readers[value])

    def _arrays_read(self, equation: Equation) -> int:
        """Operands as large as the result; what is broadcast to that size counts as small."""
        elements = prod(equation.writes[0].aval.shape)
        large = [value for value in equation.reads if prod(value.aval.shape) >= elements]
        return len([value for value in large if not self._is_broadcast(value)])

    def _is_broadcast(self, value: Value) -> bool:
        made = self.made_by.get(value)
        return made is not None and made.primitive in ("broadcast_in_dim", "iota")


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
