"""A StableHLO program with its calls inlined: values, ops and the bodies of control flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graph.ir import TensorType


@dataclass(eq=False, slots=True)
class Value:
    """An SSA value."""

    name: str
    type: TensorType | None  # None: a token, which has no bytes
    constant: int | None = None  # of a constant of one integer


@dataclass(eq=False, slots=True)
class Body:
    """A region of an op."""

    inputs: list[Value]
    ops: list[Op]
    results: list[Value]


@dataclass(eq=False, slots=True)
class Op:
    """One op with its operands; `bodies` are the regions of control flow, reductions and comparators."""

    name: str  # unique in its program
    kind: str  # "dot_general"; with its dialect if that is not `stablehlo`
    operands: list[Value]
    outputs: list[Value]
    text: str = ""  # as written, up to the first region
    location: str = ""  # name of the op in the user's program, such as "jit(step)/transpose(jvp())/mul"
    line: str = ""  # "model.py:12" of the user's program
    bodies: list[Body] = field(default_factory=list)

    @property
    def reads(self) -> list[Value]:
        """Operands and values that bodies take from outside, each once."""
        return list(dict.fromkeys((*self.operands, *(value for body in self.bodies for value in captured(body)))))

    @property
    def writes(self) -> list[Value]:
        """Results."""
        return self.outputs


@dataclass(eq=False, slots=True)
class Module:
    """The function `main` of a module with all it calls inlined."""

    name: str
    main: Body
    donated: dict[int, int]  # result -> argument whose storage it takes


def captured(body: Body) -> Iterator[Value]:
    """Values that a body reads and does not make."""
    own = {*body.inputs, *(value for op in body.ops for value in op.outputs)}
    for op in body.ops:
        yield from (value for value in op.reads if value not in own)
    yield from (value for value in body.results if value not in own)
