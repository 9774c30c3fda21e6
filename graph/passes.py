"""Passes from graph to graph: dead nodes, extraction, identities. None changes its argument.

a ──▶ b ──▶ c ──▶ out        extract(graph, ["out"], given=["b"]):  b (an input) ──▶ c ──▶ out
       ╰──▶ d                 without_dead_nodes(graph): d goes
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from graph.check import check
from graph.errors import Findings, quoted
from graph.ir import ABSENT, Body, Effect, Graph, Node, Role, producers
from graph.ops import known
from graph.storage import views_of


def without_dead_nodes(graph: Graph) -> Graph:
    """`graph` without nodes that no output, gradient, effect or overwritten state depends on. O(nodes + reads)."""
    producer = producers(graph)
    alive = bytearray(len(graph.nodes))
    wanted = [*graph.outputs, *(gradient for _, gradient in graph.gradients)]
    pending = [producer[v] for v in wanted if producer[v] >= 0]
    pending += [n for n, node in enumerate(graph.nodes) if _acts(graph, node)]
    _mark(graph, producer, alive, pending)
    return kept(graph, [n for n in range(len(graph.nodes)) if alive[n]], graph.outputs)


def extract(graph: Graph, outputs: Sequence[str], given: Sequence[str] = ()) -> Graph:
    """The part of `graph` that computes `outputs` from `given` and what is there from the start.

    Given activations become inputs. Nodes that act on something outside are left out unless an output
    needs them. Raises BadGraph for unknown names.
    """
    ids = {value.name: v for v, value in enumerate(graph.values)}
    findings = Findings()
    for field, names in (("outputs", outputs), ("given", given)):
        for i, name in enumerate(names):
            if name not in ids:
                findings.add(
                    "undefined_value", f"{field}[{i}]", quoted(name), "the name of a value", "name a value of the graph"
                )
    findings.settle()
    roots, stops = [ids[name] for name in outputs], {ids[name] for name in given}
    producer = [-1 if v in stops else n for v, n in enumerate(producers(graph))]
    alive = bytearray(len(graph.nodes))
    _mark(graph, producer, alive, [producer[v] for v in roots if producer[v] >= 0])
    new_inputs = [v for v in dict.fromkeys(ids[name] for name in given) if graph.values[v].role is Role.ACTIVATION]
    return kept(graph, [n for n in range(len(graph.nodes)) if alive[n]], roots, new_inputs=new_inputs, all_inputs=False)


def without_identities(graph: Graph) -> Graph:
    """`graph` without nodes that show an input under its own type; readers read the input itself.

    One that makes an output of the graph stays: outputs keep their names.
    """
    instead: dict[int, int] = {}
    outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
    stay = []
    for n, node in enumerate(graph.nodes):
        shown = views_of(graph, node)
        pairs = [(node.outputs[output], node.inputs[source]) for output, source in shown]
        same = all(graph.values[new].type == graph.values[old].type is not None for new, old in pairs)
        if pairs and len(pairs) == len(node.writes) and same and not outputs.intersection(node.writes):
            instead.update((new, instead.get(old, old)) for new, old in pairs)
        else:
            stay.append(n)
    return kept(graph, stay, graph.outputs, instead=instead)


def kept(
    graph: Graph,
    nodes: Iterable[int],
    outputs: Iterable[int],
    *,
    new_inputs: Collection[int] = (),
    all_inputs: bool = True,
    instead: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """The given nodes of `graph` in their order, under dense ids; `instead` says which value is read for another.

    `new_inputs` are activations that become inputs and are written no more. What is there from the start
    stays when it is read, inputs also when not if `all_inputs`. Raises BadGraph when a read loses its producer.
    """
    chosen, cut = list(nodes), frozenset(new_inputs)
    outputs = [instead.get(v, v) for v in outputs]
    used = set(outputs) | (set(graph.inputs) if all_inputs else set())
    for n in chosen:
        node = graph.nodes[n]
        used.update(instead.get(v, v) for v in node.reads)
        used.update(set(node.writes) - cut)
    for parameter, gradient in graph.gradients:
        if instead.get(gradient, gradient) in used:
            used.add(parameter)
    place = {v: i for i, v in enumerate(sorted(used))}
    number = {n: i for i, n in enumerate(chosen)}

    def new(v: int) -> int:
        return ABSENT if v == ABSENT else place[instead.get(v, v)]

    def moved(node: Node) -> Node:
        reads = node.gradient_reads
        return replace(
            node,
            inputs=tuple(map(new, node.inputs)),
            outputs=tuple(ABSENT if v in cut else new(v) for v in node.outputs),
            after=tuple(number[n] for n in node.after if n in number),
            gradient_reads=None if reads is None else tuple(new(v) for v in reads),
            bodies={
                name: Body(body.graph, tuple((inner, new(outer)) for inner, outer in body.captures))
                for name, body in node.bodies.items()
            },
        )

    result = Graph(
        graph.name,
        tuple(replace(graph.values[v], role=Role.INPUT) if v in cut else graph.values[v] for v in place),
        tuple(moved(graph.nodes[n]) for n in chosen),
        tuple(place[v] for v in outputs),
        tuple(place[v] for v in (*graph.inputs, *new_inputs) if v in place),
        graph.opset,
        graph.order_is_given,
        tuple((place[p], new(g)) for p, g in graph.gradients if instead.get(g, g) in place),
        graph.annotations,
    )
    check(result)
    return result


def _acts(graph: Graph, node: Node) -> bool:
    """True for a node that is run for more than the values it writes."""
    record = known(node.op)
    effect = node.effect or (record.effect if record is not None else Effect.PURE)
    overwrites = any(graph.values[node.inputs[source]].role is not Role.ACTIVATION for _, source in node.in_place)
    return effect in (Effect.ONCE, Effect.COLLECTIVE) or overwrites


def _mark(graph: Graph, producer: Sequence[int], alive: bytearray, pending: list[int]) -> None:
    """Set `alive` for the pending nodes and all they need: what they read, overwrite and come after."""
    while pending:
        n = pending.pop()
        if alive[n]:
            continue
        alive[n] = 1
        node = graph.nodes[n]
        pending.extend(producer[v] for v in node.reads if producer[v] >= 0)
        pending.extend(node.after)
