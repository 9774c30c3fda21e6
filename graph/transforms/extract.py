"""Subgraph extraction: the part of a graph that computes some values from others, as a graph.

a ──▶ b ──▶ c ──▶ out        extract(graph, ["out"], given=["b"]):  b (an input) ──▶ c ──▶ out
       ╰──▶ d
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.ir import Graph, Role, Value
from graph.ir.reachability import required_nodes
from graph.ssa.lookup import find_values
from graph.ssa.naming import base_name, own_annotations
from graph.ssa.to_ssa import VERSION_OF
from graph.transforms.dead_code import keep_nodes


def extract(
    graph: Graph, outputs: Sequence[str], given: Sequence[str] | Mapping[str, str] = (), prefix: str = ""
) -> Graph:
    """The subgraph that computes `outputs` from the `given` values, inputs and parameters.

    Values are referred to as in `graph.ssa.lookup`. Given values become inputs; a mapping renames them. `prefix` is
    prepended to all computed names, so that several parts fit into one program. Nodes with side effects are omitted
    unless an output needs them. Raises BadGraph for unknown names, and for a required node that a given value depends
    on too: running it would recompute that value.
    """
    findings = Findings()
    wanted = find_values(graph, outputs, "outputs", findings)
    given_values = find_values(graph, list(given), "given", findings)
    findings.settle()
    chosen = required_nodes(graph, wanted, set(given_values))
    _check_not_recomputed(graph, chosen, given_values, findings)
    findings.settle()
    names = (
        {graph.values[v].name: name for v, name in zip(given_values, given.values(), strict=True)}
        if isinstance(given, Mapping)
        else {}
    )
    new_inputs = [v for v in dict.fromkeys(given_values) if graph.values[v].role is Role.ACTIVATION]
    from_outside = {graph.values[v].name for v in new_inputs}
    part = keep_nodes(graph, chosen, wanted, new_inputs=new_inputs, unread=())
    return _renamed(part, names, from_outside, prefix)


def _check_not_recomputed(graph: Graph, chosen: Sequence[int], given_values: Sequence[int], findings: Findings) -> None:
    """Add a finding for a chosen node on which a given value depends."""
    recomputed = sorted(set(chosen) & set(required_nodes(graph, given_values)))
    if not recomputed:
        return
    affected = set(graph.nodes[recomputed[0]].writes)
    for node in graph.nodes[recomputed[0] + 1 :]:
        if not affected.isdisjoint(node.reads):
            affected.update(node.writes)
    name = quoted(graph.nodes[recomputed[0]].name)
    value = next((quoted(graph.values[v].name) for v in given_values if v in affected), "a given value")
    findings.add(
        "given_recomputed",
        f"nodes[{recomputed[0]}]",
        f"{name}, which is required although the given {value} depends on it",
        "outputs that do not depend on the nodes that compute a given value",
        "add the values that the outputs need from there to given, or remove this value from given",
    )


def _renamed(part: Graph, names: Mapping[str, str], from_outside: set[str], prefix: str) -> Graph:
    """The part with new names: inputs by `names` or their base names, computed values with the prefix."""
    names_in_use = {value.name for value in part.values}

    def named(value: Value) -> Value:
        if value.name in names:
            return replace(value, name=names[value.name], annotations=own_annotations(value))
        base = base_name(value)
        if value.name in from_outside:
            return replace(value, name=value.name if base in names_in_use else base, annotations=own_annotations(value))
        if value.role is not Role.ACTIVATION or not prefix:
            return value
        notes = own_annotations(value)
        if base != value.name:
            notes = {**notes, VERSION_OF: prefix + base}
        return replace(value, name=prefix + value.name, annotations=notes)

    values = tuple(named(value) for value in part.values)
    _check_distinct(values)
    nodes = tuple(replace(node, name=prefix + node.name) for node in part.nodes) if prefix else part.nodes
    return replace(part, values=values, nodes=nodes)


def _check_distinct(values: Sequence[Value]) -> None:
    findings, seen = Findings(), set[str]()
    for value in values:
        if value.name in seen:
            findings.add(
                "name_taken",
                "given",
                f"{quoted(value.name)} for two values",
                "unique names",
                "choose another name for the value, or another prefix",
            )
        seen.add(value.name)
    findings.settle()
