"""Rules of checkpointed scans and their backward nodes: bodies and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graph.errors import Findings, quoted
from graph.ir import Graph, Node
from graph.ops.control_flow.checkpointed_scan import ADVANCE, BACKWARD, SNAPSHOT_GRAD, TAIL_GRAD, CheckpointedGrad
from graph.ops.control_flow.interface import SNAPSHOT_SCAN, TAIL_SCAN

_MAX_INTEGER = 2**31 - 1
#: predicate(attribute value, node): True if the value is valid.
Predicate = Callable[[Any, Node], bool]


def _count(given: Any, node: Node) -> bool:
    return type(given) is int and 0 <= given <= _MAX_INTEGER


def _inputs(given: Any, node: Node) -> bool:
    return _count(given, node) and given <= len(node.inputs)


def _counts(given: Any, node: Node) -> bool:
    return isinstance(given, list | tuple) and all(_count(number, node) for number in given)


def _actions(given: Any, node: Node) -> bool:
    return _counts(given, node) and len(given) % 3 == 0 and all(ADVANCE <= kind <= BACKWARD for kind in given[::3])


_RULES: dict[Predicate, str] = {
    _count: f"an integer from 0 to {_MAX_INTEGER}",
    _inputs: "a number of inputs of the node",
    _counts: "a list of integers",
    _actions: "three integers per action, the first from 0 to 3",
}
#: op -> bodies, required attributes, optional attributes.
SCAN_RULES: dict[str, tuple[tuple[str, ...], dict[str, Predicate], dict[str, Predicate]]] = {
    SNAPSHOT_SCAN: (
        ("body",),
        {"snapshots": _counts, "rows": _count, "snapshot_states": _counts},
        {"num_scan_inputs": _inputs},
    ),
    TAIL_SCAN: (("body",), {"tail_trips": _count, "num_tail_stacks": _count}, {"num_scan_inputs": _inputs}),
    SNAPSHOT_GRAD: (
        ("body", "advance"),
        {"num_scan_inputs": _inputs, "num_row_inputs": _inputs, "schedule": _actions},
        {"advance_scan_inputs": _counts},
    ),
    TAIL_GRAD: (
        ("body", "tail"),
        {"num_scan_inputs": _inputs, "num_tail_inputs": _inputs, "trips": _count, "tail_trips": _count},
        {"body_scan_inputs": _counts, "tail_scan_inputs": _counts, "laid_rows": _counts},
    ),
}


def check_checkpointed_scans(graph: Graph, where: str, findings: Findings) -> None:
    """Collect the findings of checkpointed scans; types and trip counts are checked when they run."""
    for n, node in enumerate(graph.nodes):
        if node.op not in SCAN_RULES:
            continue
        for code, place, found, expected in list(_faults(node)) or _counted(node):
            findings.add(
                code, f"{where}nodes[{n}].{place}", f"{found} of {node.op} {quoted(node.name)}", expected, "correct it"
            )


Fault = tuple[str, str, str, str]  # code, place, found, expected


def _counted(node: Node) -> Iterator[Fault]:
    """Wrong numbers of formal inputs and outputs of bodies, for valid attributes."""
    if node.op in (SNAPSHOT_SCAN, TAIL_SCAN):
        given = len(node.inputs)
        expected = {"body": (given, given - int(node.attributes.get("num_scan_inputs", 1)))}
    else:
        back = CheckpointedGrad.of(node)
        made = {"advance": back.rows, "tail": back.gradients, "body": back.gradients + max(0, back.emitted)}
        expected = {
            key: (
                (0 if key == "advance" else back.gradients) + back.row_reads(key) + len(back.reads(key)),
                made[key] + len(back.refilled(key)),
            )
            for key in SCAN_RULES[node.op][0]
        }
    for key, (inputs, outputs) in expected.items():
        graph = node.bodies[key].graph
        if len(graph.inputs) != inputs:
            yield "body_inputs", f"bodies.{key}.inputs", f"{len(graph.inputs)} formal inputs", f"{inputs} formal inputs"
        if len(graph.outputs) < max(outputs, 0):
            yield (
                "body_outputs",
                f"bodies.{key}.outputs",
                f"{len(graph.outputs)} outputs",
                f"at least {outputs} outputs",
            )


def _faults(node: Node) -> Iterator[Fault]:
    """Missing or unknown bodies, missing or invalid attributes."""
    bodies, needed, possible = SCAN_RULES[node.op]
    for key in bodies:
        if key not in node.bodies:
            yield "missing_body", "bodies", f"no {key}", f"a graph as {key}"
    for key in node.bodies:
        if key not in bodies:
            yield "unknown_body", f"bodies.{key}", f"a body {quoted(key)}", " and ".join(bodies)
    for name, fits in {**needed, **possible}.items():
        given = node.attributes.get(name)
        if not (fits(given, node) if given is not None else name in possible):
            yield "bad_attribute", f"attributes.{name}", f"{given!r:.80}", _RULES[fits]
    counts = [node.attributes.get(name, 0) for name in ("num_scan_inputs", "num_row_inputs", "num_tail_inputs")]
    if sum(number for number in counts if type(number) is int) > len(node.inputs):
        yield (
            "bad_attribute",
            "attributes.num_scan_inputs",
            "more sequences and rows than inputs",
            "at most the number of inputs",
        )
