"""Validation of a graph: single definition, definition before use, closed bodies, known sizes.

The Builder compares types with ops, node by node; all rules of a complete graph are here.
O(nodes + reads) time.

    x ──▶ a ──▶ h ──▶ b ──▶ y       h is written once, by a, which precedes its reader b
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain

from graph.errors import Findings, quoted
from graph.ir import ABSENT, Graph, Node, Role
from graph.ir.id_columns import writers_of_sound_graph
from graph.ir.text import format_node_context
from graph.limits import Limits
from graph.validate.aliasing_rules import check_storage
from graph.validate.control_flow_rules import check_control_flow
from graph.validate.value_rules import check_values

LIMITS = Limits()


def check(graph: Graph) -> None:
    """Raise BadGraph with up to ten findings if the graph is invalid."""
    findings = Findings()
    _check(graph, "", (), findings)
    if findings:
        place = re.match(r"nodes\[(\d+)\]", findings.kept[0].path)
        unsound = any(finding.code == "unknown_id" for finding in findings.kept)  # such an id cannot be formatted
        findings.settle("" if place is None or unsound else format_node_context(graph, int(place[1])))


def _check(graph: Graph, where: str, captured: Collection[int], findings: Findings, depth: int = 0) -> None:
    """Collect the findings of one graph; `where` is its path, `captured` its captured values."""
    faults = len(findings)
    _ids(graph, where, findings)
    if len(findings) > faults:
        return  # the other rules index values by id
    _names(graph, where, findings)
    writer = writers_of_sound_graph(graph, captured)
    if writer is None:
        writer = _definitions(graph, where, captured, findings)
        _order(graph, where, writer, captured, findings)
    if len(findings) > faults:
        return  # sizes and storages of an unsound graph would repeat the findings
    check_values(graph, where, writer, findings)
    check_storage(graph, where, writer, captured, findings)
    _bodies(graph, where, findings, depth + 1)
    if not any(finding.code == "unknown_id" for finding in findings.kept):
        check_control_flow(graph, where, findings)


def _ids(graph: Graph, where: str, findings: Findings) -> None:
    """Collect value and node ids that are out of range."""
    values = len(graph.values)
    for field, ids in (("outputs", graph.outputs), ("inputs", graph.inputs)):
        for i, v in enumerate(ids):
            if not 0 <= v < values:
                _unknown_id(f"{where}{field}[{i}]", v, values, "values", findings)
    for i, pair in enumerate(graph.gradients):
        for v in pair:
            if not 0 <= v < values:
                _unknown_id(f"{where}gradients[{i}]", v, values, "values", findings)
    if not _are_inside(graph):
        for n, node in enumerate(graph.nodes):
            _node_ids(graph, node, f"{where}nodes[{n}]", findings)


def _node_ids(graph: Graph, node: Node, path: str, findings: Findings) -> None:
    """Collect ids of one node that are out of range."""
    values, nodes = len(graph.values), len(graph.nodes)
    for field, ids in (
        ("inputs", node.inputs),
        ("outputs", node.outputs),
        ("gradient_reads", node.gradient_reads or ()),
    ):
        for i, v in enumerate(ids):
            if not ABSENT <= v < values:
                _unknown_id(f"{path}.{field}[{i}]", v, values, "values", findings)
    for i, before in enumerate(node.after):
        if not 0 <= before < nodes:
            _unknown_id(f"{path}.after[{i}]", before, nodes, "nodes", findings)
    for name, body in node.bodies.items():
        inner_values = len(body.graph.values)
        for inner, outer in body.captures:
            if not 0 <= outer < values:
                _unknown_id(f"{path}.bodies.{name}.captures", outer, values, "values", findings)
            if not 0 <= inner < inner_values:
                _unknown_id(f"{path}.bodies.{name}.captures", inner, inner_values, "values of the body", findings)


def _unknown_id(path: str, number: int, count: int, kind: str, findings: Findings) -> None:
    findings.add(
        "unknown_id",
        path,
        str(number),
        f"the id of one of the {count} {kind}",
        "build the graph with graph.builder.builder.Builder, which assigns ids",
    )


def _are_inside(graph: Graph) -> bool:
    """True if all ids of all nodes are in range: a fast test for the common case."""
    used = list(chain.from_iterable([node.inputs for node in graph.nodes]))
    used += chain.from_iterable([node.outputs for node in graph.nodes])
    after: list[int] = []
    for node in graph.nodes:
        if node.after:
            after += node.after
        if node.gradient_reads:
            used += node.gradient_reads
        for body in node.bodies.values() if node.bodies else ():
            inner = [v for v, _ in body.captures]
            if inner and not (min(inner) >= 0 and max(inner) < len(body.graph.values)):
                return False
            if any(v == ABSENT for _, v in body.captures):
                return False
            used += [outer for _, outer in body.captures]
    fits = not used or (min(used) >= ABSENT and max(used) < len(graph.values))
    return fits and (not after or (min(after) >= 0 and max(after) < len(graph.nodes)))


def _names(graph: Graph, where: str, findings: Findings) -> None:
    """Collect empty and duplicate names of values and of nodes."""
    for field, names in (("values", [v.name for v in graph.values]), ("nodes", [n.name for n in graph.nodes])):
        if len(set(names)) == len(names) and "" not in names:
            continue
        first: dict[str, int] = {}
        for i, name in enumerate(names):
            if not name:
                findings.add("empty_name", f"{where}{field}[{i}].name", "an empty name", "a name", "name it")
            elif name in first:
                findings.add(
                    "duplicate_name",
                    f"{where}{field}[{i}].name",
                    f"{quoted(name)}, the name of {field}[{first[name]}]",
                    "a unique name",
                    "rename one of them",
                )
            first.setdefault(name, i)


def _definitions(graph: Graph, where: str, captured: Collection[int], findings: Findings) -> list[int]:
    """Per value the node that writes it, or -1. Collects second writers and writes to inputs and captures."""
    writer = [-1] * len(graph.values)
    activation = Role.ACTIVATION
    for n, node in enumerate(graph.nodes):
        for i, v in enumerate(node.outputs):
            if v == ABSENT:
                continue
            if writer[v] >= 0:
                findings.add(
                    "two_writers",
                    f"{where}nodes[{n}].outputs[{i}]",
                    f"{quoted(graph.values[v].name)}, which node {quoted(graph.nodes[writer[v]].name)} also writes",
                    "one writer per value",
                    'rename one, or set "naming": "mutable" if names are overwritten',
                )
            elif graph.values[v].role is not activation or v in captured:
                findings.add(
                    "written_input",
                    f"{where}nodes[{n}].outputs[{i}]",
                    f"{quoted(graph.values[v].name)}, which is given from outside with role {graph.values[v].role}",
                    "a value of role activation",
                    "write a new value, with `in_place` if it overwrites the old one's bytes",
                )
            writer[v] = n
    wrong = {v for v, value in enumerate(graph.values) if value.role is Role.INPUT} - set(captured)
    for v in sorted(wrong.symmetric_difference(graph.inputs)):
        findings.add(
            "wrong_inputs",
            f"{where}inputs",
            f"{quoted(graph.values[v].name)}, of role {graph.values[v].role}",
            "exactly the values of role input that are not captured",
            "add values through Builder.value",
        )
    return writer


def _order(graph: Graph, where: str, writer: list[int], captured: Collection[int], findings: Findings) -> None:
    """Collect reads before their write, undefined and unwritten values, and violations of `after`."""
    given = [value.role is not Role.ACTIVATION for value in graph.values]
    for v in captured:
        given[v] = True
    late: list[tuple[int, str, int]] = []  # (node, what it needs, node it must follow)
    undefined: set[int] = set()
    for n, node in enumerate(graph.nodes):
        for v in node.reads if node.bodies else node.inputs:
            if v == ABSENT or given[v] or 0 <= writer[v] < n:
                continue
            if writer[v] >= 0:
                late.append((n, quoted(graph.values[v].name), writer[v]))
                continue
            undefined.add(v)
            _undefined(graph, f"{where}{_place_of_read(n, node, v)}", v, findings)
        late.extend((n, "the run", before) for before in node.after if before >= n)
    unwritten = dict.fromkeys(v for v, n in enumerate(writer) if n < 0 and not given[v])
    for i, v in enumerate(graph.outputs):
        if v in unwritten:
            undefined.add(v)
            _undefined(graph, f"{where}outputs[{i}]", v, findings)
    for v in unwritten:
        if v not in undefined:
            findings.add(
                "unwritten_value",
                f"{where}values[{v}]",
                f"activation {quoted(graph.values[v].name)}, which no node writes",
                "a node that writes it, or another role",
                "remove it, or give it the role input, parameter or constant",
            )
    if late:
        _late(graph, where, writer, late, findings)


def _place_of_read(n: int, node: Node, v: int) -> str:
    if v in node.inputs:
        return f"nodes[{n}].inputs[{node.inputs.index(v)}]"
    name = next(name for name, body in node.bodies.items() if v in [outer for _, outer in body.captures])
    return f"nodes[{n}].bodies.{name}.captures"


def _undefined(graph: Graph, path: str, v: int, findings: Findings) -> None:
    findings.add(
        "undefined_value",
        path,
        f"{quoted(graph.values[v].name)}, which nothing defines",
        "the output of a node or a value of role input, parameter, constant or state",
        "declare it with a role, or add the node that writes it",
    )


def _late(graph: Graph, where: str, writer: list[int], late: list[tuple[int, str, int]], findings: Findings) -> None:
    """Collect reads before their write: one finding for a cycle, and one for each node outside it."""
    cycle = _cycle(graph, writer)
    if cycle:
        names = " -> ".join(quoted(graph.nodes[n].name) for n in cycle[:8])
        names += " -> ..." if len(cycle) > 8 else f" -> {quoted(graph.nodes[cycle[0]].name)}"
        findings.add(
            "cycle",
            f"{where}nodes[{cycle[0]}]",
            f"a cycle of {len(cycle)} nodes: {names}",
            "an acyclic graph",
            "break the cycle: one of these must read another value",
        )
    inside = set(cycle)
    for n, needed, producer in late:
        if n in inside and producer in inside:
            continue
        findings.add(
            "use_before_definition",
            f"{where}nodes[{n}]",
            f"{quoted(graph.nodes[n].name)} needs {needed} of nodes[{producer}] ({quoted(graph.nodes[producer].name)})",
            "nodes in topological order",
            f"move nodes[{producer}] before nodes[{n}]",
        )


def _cycle(graph: Graph, writer: list[int]) -> list[int]:
    """Nodes of one cycle in execution order, or []: a backward walk over nodes that can never run."""
    before = [[*(writer[v] for v in node.reads if writer[v] >= 0), *node.after] for node in graph.nodes]
    waiting = _unmet_counts(before)
    n = next((n for n, count in enumerate(waiting) if count > 0), -1)
    if n < 0:
        return []
    seen: dict[int, int] = {}
    while n not in seen:
        seen[n] = len(seen)
        n = next(b for b in before[n] if waiting[b] > 0)
    cycle = [m for m, at in seen.items() if at >= seen[n]][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def _unmet_counts(before: list[list[int]]) -> list[int]:
    """Per node the number of nodes in `before[n]` that can never run (Kahn's algorithm)."""
    waiting = [len(nodes) for nodes in before]
    followers: list[list[int]] = [[] for _ in before]
    for n, nodes in enumerate(before):
        for b in nodes:
            followers[b].append(n)
    ready = [n for n, count in enumerate(waiting) if count == 0]
    while ready:
        for f in followers[ready.pop()]:
            waiting[f] -= 1
            if waiting[f] == 0:
                ready.append(f)
    return waiting


def _bodies(graph: Graph, where: str, findings: Findings, depth: int) -> None:
    """Collect the findings of bodies, and captures whose types differ from the captured values."""
    for n, node in enumerate(graph.nodes):
        if not node.bodies:
            continue
        if depth > LIMITS.depth:
            findings.add(
                "too_deep",
                f"{where}nodes[{n}]",
                f"bodies nested {depth} deep",
                f"at most {LIMITS.depth}",
                "flatten the bodies",
            )
            return
        for name, body in node.bodies.items():
            path = f"{where}nodes[{n}].bodies.{name}."
            inner_ids = [inner for inner, _ in body.captures]
            for inner, outer in body.captures:
                a, b = body.graph.values[inner], graph.values[outer]
                if a.type is not None and b.type is not None and a.type != b.type:
                    findings.add(
                        "type_conflict",
                        f"{path}captures",
                        f"{quoted(a.name)} of type {a.type} in the body",
                        f"{b.type}, the type of {quoted(b.name)} outside",
                        "declare the captured value with its outer type",
                    )
            for inner in sorted({i for i in inner_ids if inner_ids.count(i) > 1}):
                findings.add(
                    "duplicate_name",
                    f"{path}captures",
                    f"{quoted(body.graph.values[inner].name)} captured twice",
                    "one capture per inner value",
                    "capture it under two inner names",
                )
            _check(body.graph, path, frozenset(inner_ids), findings, depth)
