"""Construction of a body from a sequence of nodes of a joint graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from graph.ir import ABSENT, Body, Graph, Node, Role, Value
from graph.ir.names import reserve_name
from graph.ir.reachability import required_nodes
from graph.ir.renumber import remap_captures
from graph.loop_remat.joint_body import BACKWARD_SUFFIX, JointGraph, is_unrepeatable


def backward_needs(joint: JointGraph, sequence: Sequence[int]) -> tuple[int, ...]:
    """Joint values that the backward sequence reads before it computes them, in order; its own constants excluded."""
    computed: set[int] = set()
    needs: dict[int, None] = {}

    def need(v: int) -> None:
        if v not in computed and (joint.must_be_saved(v) or joint.graph.values[v].role is Role.INPUT):
            needs[v] = None

    for n in sequence:
        node = joint.graph.nodes[n]
        for v in node.reads:
            need(v)
        computed.update(node.writes)
    for v in joint.backward_outputs:
        need(v)
    return tuple(needs)


def needed_nodes(joint: JointGraph, outputs: Sequence[int]) -> list[int]:
    """Nodes of the forward body that `outputs` depend on, and all unrepeatable ones, ascending."""
    nodes = joint.graph.nodes[: joint.split]
    return required_nodes(joint.graph, outputs, nodes=[n for n, node in enumerate(nodes) if is_unrepeatable(node)])


def build_body(
    joint: JointGraph,
    of: Node,
    sequence: Sequence[int],
    formals: Sequence[int],
    outputs: Sequence[int],
    outside: Mapping[int, int],
) -> Body:
    """The body of node `of` that runs the joint nodes `sequence`; each read is bound to the latest write.

    `formals` are its formal inputs; it captures the values it reads from `outside` (joint value -> outer value).
    """
    return _Assembly(joint, of, set(formals), outside).body(sequence, formals, outputs)


class _Assembly:
    def __init__(self, joint: JointGraph, of: Node, formals: set[int], outside: Mapping[int, int]):
        self.joint, self.phase, self.outside = joint, of.phase, outside
        self.name = of.bodies[joint.key].graph.name
        self.formals = formals
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.latest: dict[int, int] = {}
        self.captures: list[tuple[int, int]] = []
        self.value_names: set[str] = set()
        self.node_names: set[str] = set()
        self.first: dict[int, int] = {}  # joint node -> index of its first run in the body

    def body(self, sequence: Sequence[int], formals: Sequence[int], outputs: Sequence[int]) -> Body:
        for v in formals:
            self._add(v, Role.INPUT)
        inputs = tuple(self.latest[v] for v in formals)
        for n in sequence:
            self._run(n)
        results = tuple(self._read(v) for v in outputs)
        graph = Graph(self.name, tuple(self.values), tuple(self.nodes), results, inputs, self.joint.graph.opset)
        return Body(graph, tuple(self.captures))

    def _run(self, n: int) -> None:
        node = self.joint.graph.nodes[n]
        inputs = tuple(ABSENT if v == ABSENT else self._read(v) for v in node.inputs)
        bodies = {key: remap_captures(body, self._read) for key, body in node.bodies.items()}
        reads = node.gradient_reads
        known = None if reads is None else tuple(self.latest[v] for v in reads if v in self.latest)
        outputs = tuple(ABSENT if v == ABSENT else self._add(v, Role.ACTIVATION) for v in node.outputs)
        after = tuple(self.first[a] for a in node.after if a in self.first)
        self.first.setdefault(n, len(self.nodes))
        self.nodes.append(
            replace(
                node,
                name=reserve_name(node.name, self.node_names, BACKWARD_SUFFIX),
                inputs=inputs,
                outputs=outputs,
                after=after,
                phase=self.phase,
                gradient_reads=known,
                bodies=MappingProxyType(bodies) if bodies else node.bodies,
            )
        )

    def _read(self, v: int) -> int:
        if v in self.latest:
            return self.latest[v]
        value = self.joint.graph.values[v]
        if v in self.outside and v not in self.formals:
            self._add(v, Role.INPUT)
            self.captures.append((self.latest[v], self.outside[v]))
        else:
            assert value.role not in (Role.ACTIVATION, Role.INPUT), f"{value.name} is read before it is written"
            self._add(v, value.role)
        return self.latest[v]

    def _add(self, v: int, role: Role) -> int:
        value = self.joint.graph.values[v]
        self.latest[v] = len(self.values)
        self.values.append(replace(value, name=reserve_name(value.name, self.value_names, BACKWARD_SUFFIX), role=role))
        return self.latest[v]
