"""Declared gradients: gradient ops that a request or document declares for its own ops.

    {"acme::Attention": {"op": "acme::AttentionGrad", "reads": ["incoming", "inputs", "outputs[1]"],
                         "writes": ["inputs[0]", "inputs[2]"], "needs_all_incoming": true},
     "acme::Lookup": {"reads": ["incoming", "inputs[0]"], "writes": [{"rows_of": "inputs[1]", "count": 64}]},
     "acme::Print": "none", "acme::Sort": "refused", "acme::Later": "missing"}

`reads` are the inputs of the gradient op in order (default: the incoming gradients), `writes` its outputs in order
(default: one gradient per input). `none`, `refused` and `missing` are the other states of `GradientStatus`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.autodiff.gradients.accumulation import SYMBOLIC_ZERO, Cotangent, IndexedSlices, add_value_like
from graph.autodiff.gradients.opaque import gradient_node
from graph.autodiff.gradients.registry import GradientRule, GradientStatus
from graph.builder.builder import Builder
from graph.errors import CannotDifferentiate, Findings, quoted
from graph.ir import ABSENT, Node, TensorType

_PLACE = re.compile(r"(inputs|outputs|incoming)(?:\[(\d{1,6})\])?\Z")
_INPUT = re.compile(r"inputs\[(\d{1,6})\]\Z")
_FIELDS = ("op", "reads", "writes", "needs_all_incoming")
_MAX_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """The gradient of one input, dense or row-sparse."""

    position: int  # of the input
    rows: int | None = None  # number of rows of a row-sparse gradient; None: dense


@dataclass(frozen=True, slots=True)
class DeclaredGradient:
    """Name, inputs and outputs of the gradient op of an op."""

    op: str = ""  # "": the name of the op with the suffix Grad
    reads: tuple[tuple[str, int | None], ...] = (("incoming", None),)  # (list, index in it; None: all of it)
    writes: tuple[DeclaredOutput, ...] | None = None  # None: one per input
    needs_all_incoming: bool = False  # True: a missing output gradient is an error; False: an absent input


AnyGradientRule = DeclaredGradient | GradientRule | GradientStatus


def parse_rules(given: Any, field: str, findings: Findings) -> dict[str, AnyGradientRule]:
    """Rules by op type; adds a finding for a malformed declaration. Functions are rules as in `registry`."""
    if not isinstance(given, Mapping):
        findings.add("bad_request", field, repr(given)[:80], "an object from op to rule", "send an object")
        return {}
    rules: dict[str, AnyGradientRule] = {}
    for op, rule in given.items():
        path = f"{field}.{op!s:.80}"
        if isinstance(rule, DeclaredGradient | GradientRule):
            rules[op] = rule
        elif callable(rule):
            rules[op] = GradientRule(rule, zeros=False)
        elif isinstance(rule, Mapping):
            rules[str(op)] = _declared(rule, path, findings)
        elif isinstance(rule, str) and rule in (
            GradientStatus.NOT_NEEDED,
            GradientStatus.REFUSED,
            GradientStatus.MISSING,
        ):
            rules[str(op)] = GradientStatus(rule)
        else:
            findings.add(
                "bad_request",
                path,
                repr(rule)[:80],
                '"none", "refused", "missing" or an object with ' + ", ".join(_FIELDS),
                "declare what the gradient op reads and writes",
            )
    return rules


def _declared(rule: Mapping[str, Any], path: str, findings: Findings) -> DeclaredGradient:
    for name in rule:
        if name not in _FIELDS:
            findings.add(
                "unknown_field",
                f"{path}.{name!s:.80}",
                quoted(str(name)),
                "one of " + ", ".join(_FIELDS),
                "leave it out or correct it",
            )
    op, needs_all = rule.get("op", ""), rule.get("needs_all_incoming", False)
    for name, value, kind, expected in (
        ("op", op, str, "a string"),
        ("needs_all_incoming", needs_all, bool, "true or false"),
    ):
        if not isinstance(value, kind):
            findings.add("bad_request", f"{path}.{name}", repr(value)[:80], expected, "correct the value")
    reads = [_read(place, path, findings) for place in _listed(rule, "reads", ["incoming"], path, findings)]
    writes = None
    if rule.get("writes", "inputs") != "inputs":
        writes = tuple(_written(place, path, findings) for place in _listed(rule, "writes", [], path, findings))
    return DeclaredGradient(str(op), tuple(reads), writes, bool(needs_all))


def _listed(rule: Mapping[str, Any], name: str, default: list[Any], path: str, findings: Findings) -> Sequence[Any]:
    given = rule.get(name, default)
    if isinstance(given, list | tuple):
        return given
    findings.add("bad_request", f"{path}.{name}", repr(given)[:80], "a list", "send a list")
    return []


def _read(place: Any, path: str, findings: Findings) -> tuple[str, int | None]:
    match = _PLACE.match(place) if isinstance(place, str) else None
    if match is None:
        findings.add(
            "foreign_gradient_read",
            f"{path}.reads",
            repr(place)[:80],
            "inputs, outputs or incoming, or an element such as inputs[0]",
            "read inputs and outputs of the op, and incoming gradients",
        )
        return "incoming", None
    return match[1], None if match[2] is None else int(match[2])


def _written(place: Any, path: str, findings: Findings) -> DeclaredOutput:
    rows = None
    if isinstance(place, Mapping):
        rows, place = place.get("count"), place.get("rows_of")
        if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= _MAX_ROWS:
            findings.add(
                "bad_request", f"{path}.writes", repr(rows)[:80], "a count of rows", "set count to the number of rows"
            )
            rows = 0
    match = _INPUT.match(place) if isinstance(place, str) else None
    if match is None:
        findings.add(
            "bad_request",
            f"{path}.writes",
            repr(place)[:80],
            'an input such as inputs[0], or {"rows_of": "inputs[0]", "count": 64}',
            "name an input of the op",
        )
        return DeclaredOutput(0)
    return DeclaredOutput(int(match[1]), rows)


def declared_gradients(
    builder: Builder,
    node: Node,
    rule: DeclaredGradient,
    slots: Sequence[int],
    incoming: Sequence[int | None],
    needs: Sequence[bool],
    zeros: Callable[[int], int],
) -> list[Cotangent | None]:
    """Per slot the gradient; adds the gradient node. `zeros(v)` is a value of zeros like `v`.

    Raises CannotDifferentiate for a missing incoming gradient, an index out of range, or rows of an untyped value.
    """
    given = [_given(builder, node, rule, i, gradient, zeros) for i, gradient in enumerate(incoming)]
    lists = {"inputs": node.inputs, "outputs": node.outputs, "incoming": tuple(given)}
    reads: list[int] = []
    for name, place in rule.reads:
        reads += lists[name] if place is None else (_at(lists[name], place, name, node.op),)
    outputs: list[int] = []
    gradients: list[Cotangent | None] = [None] * len(slots)
    for written in rule.writes or [DeclaredOutput(i) for i in range(len(node.inputs))]:
        v = _at(slots, written.position, "inputs", node.op)
        if not needs[written.position]:
            outputs.append(ABSENT)
        elif written.rows is None:
            outputs.append(add_value_like(builder, builder.values[v], f"grad/{node.name}:{written.position}"))
            gradients[written.position] = outputs[-1]
        else:
            rows = _rows(builder, node, v, written)
            outputs += (rows.indices, rows.values)
            gradients[written.position] = rows
    gradient_node(builder, node, rule.op, reads, outputs)
    return gradients


def _given(
    builder: Builder, node: Node, rule: DeclaredGradient, i: int, gradient: int | None, zeros: Callable[[int], int]
) -> int:
    """The operand of the gradient op for the gradient of output `i`."""
    if gradient is None or gradient == SYMBOLIC_ZERO:
        v = node.outputs[i]
        if gradient == SYMBOLIC_ZERO and rule.needs_all_incoming:
            return zeros(v)
        if rule.needs_all_incoming:
            name = "" if v == ABSENT else builder.values[v].name
            raise CannotDifferentiate(
                f"its gradient needs the gradient of every output, and output {i}, {quoted(name)}, has none",
                "use the output, or add a remat::ZeroGradient that reads it",
                "missing_output_gradient",
            )
        return ABSENT
    return gradient


def _rows(builder: Builder, node: Node, v: int, written: DeclaredOutput) -> IndexedSlices:
    value = builder.values[v]
    if value.type is None or not value.type.shape:
        raise CannotDifferentiate(f"{quoted(value.name)} has no rows", "declare its shape and dtype")
    prefix, count = f"grad/{node.name}:{written.position}", int(written.rows or 0)
    return IndexedSlices(
        builder.value(f"{prefix}/indices", TensorType("int64", (count,))),
        builder.value(f"{prefix}/values", TensorType(value.type.dtype, (count, *value.type.shape[1:]))),
    )


def _at(ids: Sequence[int], place: int, name: str, op: str) -> int:
    if place >= len(ids):
        raise CannotDifferentiate(
            f"the declared gradient of {op} reads or writes {name}[{place}], of {len(ids)}",
            "correct the index in the declaration",
            "foreign_gradient_read",
        )
    return ids[place]
