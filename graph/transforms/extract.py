"""The part of a graph that computes some values from others, as a graph of its own.

a ──▶ b ──▶ c ──▶ out        extract(graph, ["out"], given=["b"]):  b (an input) ──▶ c ──▶ out
       ╰──▶ d
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graph.errors import Findings, quoted
from graph.ir import Graph, Role, Value
from graph.ssa.lookup import find_values
from graph.ssa.naming import base_name, own_annotations, with_name_order, without_name_order
from graph.ssa.to_ssa import VERSION_OF
from graph.transforms.dead_code import keep_nodes, required_nodes


def extract(
    graph: Graph, outputs: Sequence[str], given: Sequence[str] | Mapping[str, str] = (), prefix: str = ""
) -> Graph:
    """What computes `outputs` from the `given` values and what is there from the start; values as `reference` names.

    Given values become inputs, under the names a mapping gives them. `prefix` goes in front of everything
    that is computed, so that several parts fit into one program. Nodes that act on something outside are left
    out unless an output needs them. Raises BadGraph for unknown names, and where a node that is needed is
    needed as well to make a given value: running it would make that value again.
    """
    findings = Findings()
    wanted = find_values(graph, outputs, "outputs", findings)
    stops = find_values(graph, list(given), "given", findings)
    findings.settle()
    graph = without_name_order(graph)
    chosen = required_nodes(graph, wanted, set(stops))
    _check_not_made_again(graph, chosen, stops, findings)
    findings.settle()
    names = (
        {graph.values[v].name: name for v, name in zip(stops, given.values(), strict=True)}
        if isinstance(given, Mapping)
        else {}
    )
    new_inputs = [v for v in dict.fromkeys(stops) if graph.values[v].role is Role.ACTIVATION]
    from_outside = {graph.values[v].name for v in new_inputs}
    part = keep_nodes(graph, chosen, wanted, new_inputs=new_inputs, unread=())
    return _renamed(part, names, from_outside, prefix)


def _check_not_made_again(graph: Graph, chosen: Sequence[int], stops: Sequence[int], findings: Findings) -> None:
    """Collect a chosen node that would make, or help to make, a given value once more."""
    again = sorted(set(chosen) & set(required_nodes(graph, stops)))
    if not again:
        return
    made = set(graph.nodes[again[0]].writes)
    for node in graph.nodes[again[0] + 1 :]:
        if not made.isdisjoint(node.reads):
            made.update(node.writes)
    name = quoted(graph.nodes[again[0]].name)
    value = next((quoted(graph.values[v].name) for v in stops if v in made), "a given value")
    findings.add(
        "given_recomputed",
        f"nodes[{again[0]}]",
        f"{name}, which must run although it helps to make the given {value}",
        "outputs that need nothing of what makes a given value",
        "give as well what the outputs need from there, or do not give this value",
    )


def _renamed(part: Graph, names: Mapping[str, str], from_outside: set[str], prefix: str) -> Graph:
    """The part under new names: inputs as asked or as they were written, what is computed with the prefix."""
    taken = {value.name for value in part.values}

    def named(value: Value) -> Value:
        if value.name in names:
            return replace(value, name=names[value.name], annotations=own_annotations(value))
        base = base_name(value)
        if value.name in from_outside:
            return replace(value, name=value.name if base in taken else base, annotations=own_annotations(value))
        if value.role is not Role.ACTIVATION or not prefix:
            return value
        notes = own_annotations(value)
        if base != value.name:
            notes = {**notes, VERSION_OF: prefix + base}
        return replace(value, name=prefix + value.name, annotations=notes)

    values = tuple(named(value) for value in part.values)
    _check_distinct(values)
    nodes = tuple(replace(node, name=prefix + node.name) for node in part.nodes) if prefix else part.nodes
    return with_name_order(replace(part, values=values, nodes=nodes))


def _check_distinct(values: Sequence[Value]) -> None:
    findings, seen = Findings(), set[str]()
    for value in values:
        if value.name in seen:
            findings.add(
                "name_taken",
                "given",
                f"{quoted(value.name)} for two values",
                "names of their own",
                "give the value another name, or another prefix",
            )
        seen.add(value.name)
    findings.settle()
