"""Whether a graph keeps the rules: single definition, defined before use, closed bodies, sizes known.

Types against ops are compared by the Builder, node by node; everything that can be said of a whole
graph is said here. O(nodes + reads) time.

    x ──▶ a ──▶ h ──▶ b ──▶ y       h is written once, by a, which stands before its reader b
"""

from __future__ import annotations

import re
from collections.abc import Collection

from graph.errors import Findings, quoted
from graph.ir import ABSENT, Graph, Node, Role
from graph.ir.text import format_node_context
from graph.limits import Limits
from graph.validate.aliasing_rules import check_storage
from graph.validate.control_flow_rules import check_control_flow
from graph.validate.value_rules import check_values

LIMITS = Limits()


def check(graph: Graph) -> None:
    """Nothing when the graph is legal. Raises BadGraph with up to ten findings."""
    findings = Findings()
    _check(graph, "", (), findings)
    if findings:
        place = re.match(r"nodes\[(\d+)\]", findings.kept[0].path)
        unsound = any(found.code == "unknown_id" for found in findings.kept)  # there is nothing to write for such an id
        findings.settle("" if place is None or unsound else format_node_context(graph, int(place[1])))


def _check(graph: Graph, where: str, captured: Collection[int], findings: Findings, depth: int = 0) -> None:
    """Collect what is wrong with one graph; `where` is its path, `captured` the values given from outside it."""
    faults = len(findings)
    _ids(graph, where, findings)
    if len(findings) > faults:
        return  # the rest would look at values that are not there
    _names(graph, where, findings)
    writer = _definitions(graph, where, captured, findings)
    _order(graph, where, writer, captured, findings)
    if len(findings) > faults:
        return  # sizes and storages of an unsound graph would only repeat it
    check_values(graph, where, writer, findings)
    check_storage(graph, where, writer, captured, findings)
    _bodies(graph, where, findings, depth + 1)
    if not any(found.code == "unknown_id" for found in findings.kept):
        check_control_flow(graph, where, findings)


def _ids(graph: Graph, where: str, findings: Findings) -> None:
    """Every id and position names something."""
    values, nodes = len(graph.values), len(graph.nodes)

    def outside(path: str, number: int, count: int, what: str) -> None:
        findings.add(
            "unknown_id",
            f"{where}{path}",
            str(number),
            f"the id of one of the {count} {what}",
            "build the graph with graph.builder.builder.Builder, which hands out ids",
        )

    for field, ids in (("outputs", graph.outputs), ("inputs", graph.inputs)):
        for i, v in enumerate(ids):
            if not 0 <= v < values:
                outside(f"{field}[{i}]", v, values, "values")
    for i, pair in enumerate(graph.gradients):
        for v in pair:
            if not 0 <= v < values:
                outside(f"gradients[{i}]", v, values, "values")
    if _are_inside(graph):
        return
    for n, node in enumerate(graph.nodes):
        for field, ids in (
            ("inputs", node.inputs),
            ("outputs", node.outputs),
            ("gradient_reads", node.gradient_reads or ()),
        ):
            for i, v in enumerate(ids):
                if not ABSENT <= v < values:
                    outside(f"nodes[{n}].{field}[{i}]", v, values, "values")
        for i, before in enumerate(node.after):
            if not 0 <= before < nodes:
                outside(f"nodes[{n}].after[{i}]", before, nodes, "nodes")
        for name, body in node.bodies.items():
            for inner, outer in body.captures:
                if not 0 <= outer < values:
                    outside(f"nodes[{n}].bodies.{name}.captures", outer, values, "values")
                if not 0 <= inner < len(body.graph.values):
                    outside(f"nodes[{n}].bodies.{name}.captures", inner, len(body.graph.values), "values of the body")


def _are_inside(graph: Graph) -> bool:
    """True when all ids of all nodes name something; the common case, told in one sweep."""
    used: list[int] = []
    after: list[int] = []
    for node in graph.nodes:
        used += node.inputs
        used += node.outputs
        if node.after:
            after += node.after
        if node.gradient_reads:
            used += node.gradient_reads
        for body in node.bodies.values():
            inner = [v for v, _ in body.captures]
            if inner and not (min(inner) >= 0 and max(inner) < len(body.graph.values)):
                return False
            if any(v == ABSENT for _, v in body.captures):
                return False
            used += [outer for _, outer in body.captures]
    fits = not used or (min(used) >= ABSENT and max(used) < len(graph.values))
    return fits and (not after or (min(after) >= 0 and max(after) < len(graph.nodes)))


def _names(graph: Graph, where: str, findings: Findings) -> None:
    """Names of values are unique and not empty, those of nodes likewise."""
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
                    f"{quoted(name)}, which {field}[{first[name]}] has already",
                    "a name of its own",
                    "rename one of them",
                )
            first.setdefault(name, i)


def _definitions(graph: Graph, where: str, captured: Collection[int], findings: Findings) -> list[int]:
    """Per value the node that writes it, or -1; each is written once, and only if nobody gave it."""
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
                    f"{quoted(graph.values[v].name)}, which node {quoted(graph.nodes[writer[v]].name)} writes too",
                    "one writer for each value",
                    'rename one, or say "naming": "mutable" when names are overwritten',
                )
            elif graph.values[v].role is not activation or v in captured:
                findings.add(
                    "written_input",
                    f"{where}nodes[{n}].outputs[{i}]",
                    f"{quoted(graph.values[v].name)}, which is given from outside as {graph.values[v].role}",
                    "a value of role activation",
                    "write a new value, with `in_place` if it takes the old one's bytes",
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
    """Every read follows its write and every node the nodes it says it comes after."""
    given = [value.role is not Role.ACTIVATION for value in graph.values]
    for v in captured:
        given[v] = True
    late: list[tuple[int, str, int]] = []  # (node, what it names, node it must follow)
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
    for i, v in enumerate(graph.outputs):
        if writer[v] < 0 and not given[v]:
            undefined.add(v)
            _undefined(graph, f"{where}outputs[{i}]", v, findings)
    for v, node_of in enumerate(writer):
        if node_of < 0 and not given[v] and v not in undefined:
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
    """Say of reads before their write whether moving nodes would help or they run in a circle."""
    circle = _cycle(graph, writer)
    if circle:
        names = " -> ".join(quoted(graph.nodes[n].name) for n in circle[:8])
        names += " -> ..." if len(circle) > 8 else f" -> {quoted(graph.nodes[circle[0]].name)}"
        findings.add(
            "cycle",
            f"{where}nodes[{circle[0]}]",
            f"a cycle of {len(circle)} nodes: {names}",
            "nodes that can be put in an order",
            "break the cycle: one of these must read another value",
        )
    inside = set(circle)
    for n, what, producer in late:
        if n in inside and producer in inside:
            continue
        findings.add(
            "use_before_definition",
            f"{where}nodes[{n}]",
            f"{quoted(graph.nodes[n].name)} needs {what} of nodes[{producer}] ({quoted(graph.nodes[producer].name)})",
            "nodes in an order in which they can run",
            f"move nodes[{producer}] before nodes[{n}]",
        )


def _cycle(graph: Graph, writer: list[int]) -> list[int]:
    """Nodes of one cycle in running order, or none. Kahn's algorithm, then a walk backwards among what is left."""
    before: list[list[int]] = [
        [writer[v] for v in node.reads if writer[v] >= 0] + list(node.after) for node in graph.nodes
    ]
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
    n = next((n for n, count in enumerate(waiting) if count > 0), -1)
    if n < 0:
        return []
    seen: dict[int, int] = {}
    while n not in seen:
        seen[n] = len(seen)
        n = next(b for b in before[n] if waiting[b] > 0)
    circle = [m for m, at in seen.items() if at >= seen[n]][::-1]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]


def _bodies(graph: Graph, where: str, findings: Findings, depth: int) -> None:
    """Bodies are legal graphs by themselves, and captures agree with what they capture."""
    for n, node in enumerate(graph.nodes):
        if node.bodies and depth > LIMITS.depth:
            findings.add(
                "too_deep",
                f"{where}nodes[{n}]",
                f"bodies nested {depth} deep",
                f"at most {LIMITS.depth}",
                "flatten them",
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
                        f"{quoted(a.name)} is {a.type} in the body",
                        f"{b.type}, as {quoted(b.name)} is outside",
                        "declare the captured value with its type outside",
                    )
            for inner in sorted({i for i in inner_ids if inner_ids.count(i) > 1}):
                findings.add(
                    "duplicate_name",
                    f"{path}captures",
                    f"{quoted(body.graph.values[inner].name)} captured twice",
                    "each inner value captured once",
                    "capture it under two inner names",
                )
            _check(body.graph, path, frozenset(inner_ids), findings, depth)
