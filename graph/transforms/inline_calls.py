"""Lowering to ONNX control flow: inlines `remat::Call`, and gives every If both branches.

x ──▶ call: [ a ──▶ b ] ──▶ y        becomes        x ──▶ call/a ──▶ call/b ──▶ y
"""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from graph.analysis.effects import effect_of
from graph.ir import ABSENT, Body, Effect, Graph, Node, Role, Value, walk
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_node
from graph.ops.control_flow.interface import CALL, with_else_branch


def without_calls(graph: Graph) -> Graph:
    """`graph` without remat::Call and without If nodes that have one branch only, in bodies too. Value ids are kept.

    Random draws are unchanged: streams of inlined nodes are derived from that of the call. Recursion depth is that of
    the bodies.
    """
    if not any(_is_nonstandard(node) for nested in walk(graph) for node in nested.nodes):
        return graph
    return _Inlining(graph).inlined()


def _is_nonstandard(node: Node) -> bool:
    return node.op == CALL or (node.op == "If" and "else_branch" not in node.bodies)


class _Inlining:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.values, self.nodes = list(graph.values), list[Node]()
        self.value_names = {value.name for value in graph.values}
        self.node_names = {node.name for node in graph.nodes}

    def inlined(self) -> Graph:
        last: dict[int, int] = {}  # node -> the last node that replaces it
        for n, node in enumerate(self.graph.nodes):
            if node.op == "If":
                node = with_else_branch(node, self.graph.types_of(node.inputs))
            bodies = {key: replace(body, graph=without_calls(body.graph)) for key, body in node.bodies.items()}
            after = tuple(last[before] for before in node.after if before in last)
            if node.op == CALL:
                self._inline(replace(node, after=after), bodies["body"])
            else:
                self.nodes.append(
                    replace(node, after=after, bodies=MappingProxyType(bodies) if bodies else node.bodies)
                )
            if self.nodes:
                last[n] = len(self.nodes) - 1
        return replace(self.graph, values=tuple(self.values), nodes=tuple(self.nodes))

    def _inline(self, call: Node, body: Body) -> None:
        """Add the nodes of the body of a call, with names derived from the call."""
        graph, first = body.graph, len(self.nodes)
        place = {ABSENT: ABSENT, **dict(zip(graph.inputs, call.inputs, strict=True)), **dict(body.captures)}
        written = {v for node in graph.nodes for v in node.writes}
        copies = []
        for v, outer in zip(graph.outputs, call.outputs, strict=False):
            if outer != ABSENT and v in written and v not in place:
                place[v] = outer
            elif outer != ABSENT:
                copies.append((v, outer))
        for v, value in enumerate(graph.values):
            if v not in place:
                place[v] = len(self.values)
                self.values.append(self._inlined_value(call, value))
        for inner in graph.nodes:
            self._node(call, inner, place, first)
        for v, outer in copies:
            name = reserve_name(f"{call.name}/{self.values[outer].name}", self.node_names)
            self.nodes.append(
                Node(name, "Identity", (place[v],), (outer,), phase=call.phase, annotations=call.annotations)
            )

    def _inlined_value(self, call: Node, value: Value) -> Value:
        """A value of the body renamed for the graph; a formal input becomes an activation."""
        role = Role.ACTIVATION if value.role is Role.INPUT else value.role
        return replace(value, name=reserve_name(f"{call.name}/{value.name}", self.value_names), role=role)

    def _node(self, call: Node, node: Node, place: dict[int, int], first: int) -> None:
        graph = call.bodies["body"].graph
        stream = f"{call.stream or call.name}#0/{node.stream or node.name}"
        after = tuple(first + before for before in node.after) if node.after else call.after
        self.nodes.append(
            remap_node(
                node,
                place.__getitem__,
                name=reserve_name(f"{call.name}/{node.name}", self.node_names),
                phase=call.phase,
                after=after,
                stream=stream if effect_of(graph, node) is Effect.RANDOM else node.stream,
                annotations=MappingProxyType({**call.annotations, **node.annotations}),
            )
        )
