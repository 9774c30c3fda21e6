"""Nodes on devices: where values lie, and copies where a node reads what lies elsewhere.

data (cpu) ──▶ relu (gpu:1)      becomes      data ──▶ Copy ──▶ data/on/gpu:1 ──▶ relu
data (cpu) ──▶ tanh (gpu:1)                                     data/on/gpu:1 ──▶ tanh

A node says its device by the annotation `device`; one without runs on the default device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from graph.errors import BadGraph, Findings, quoted
from graph.ir import ABSENT, EMPTY, Graph, Node, Role, Value
from graph.ir.renumber import remap_captures
from graph.ssa.naming import UniqueNames, naming_of, own_annotations, with_name_order, without_name_order
from graph.ssa.to_ssa import VERSION_OF

COPY = "remat::Copy"
HOST = "cpu"
DEVICE, COPIED_FROM = "device", "copied_from"  # annotations of a node
_FIXED = {"CopyCPUToGPU": (HOST, "gpu"), "CopyGPUToCPU": ("gpu", HOST), "CopyFromCPUInput": (HOST, None)}

#: Device per input slot and per output slot.
OperandDevices = tuple[list[str | None], list[str | None]]


def base_op(node: Node) -> str:
    """The op without its domain."""
    return node.op.rpartition("::")[2]


def device_of(node: Node) -> str | None:
    """The device the node is placed on, where it says so."""
    device = node.annotations.get(DEVICE)
    return device if isinstance(device, str) and device else None


def copy_route(node: Node) -> tuple[str | None, str | None] | None:
    """(from, to) of a node that copies between devices, None for any other; an end may be unknown.

    The device of an op whose name tells both sides is that of the side which is not the host.
    """
    own = device_of(node)
    if base_op(node) in _FIXED:
        source, target = _FIXED[base_op(node)]
        placed = own if own != HOST else None
        return (placed or source if source != HOST else HOST), (placed or target if target != HOST else HOST)
    copied_from = node.annotations.get(COPIED_FROM)
    if node.op == COPY and isinstance(copied_from, str) and own is not None:
        return copied_from, own
    return None


def uniform_devices(node: Node, source: str | None, target: str | None) -> OperandDevices:
    return [source] * len(node.inputs), [target] * len(node.outputs)


def operand_devices(node: Node, device: str) -> OperandDevices:
    """Where a node has its inputs and outputs: a copy from side to side, any other on its device."""
    source, target = copy_route(node) or (device, device)
    return uniform_devices(node, source, target)


def copy_name(name: str, target: str) -> str:
    return f"{name}/on/{target}"


@dataclass(frozen=True, slots=True)
class CopyStyle:
    """How copies are written, and which there are before the first node."""

    op: Callable[[str, str], str] = lambda source, target: COPY  # (from, to) -> op
    name: Callable[[str, str], str] = copy_name  # (name of the value, to) -> name of the copy
    operand_devices: Callable[[Node, str], OperandDevices] = operand_devices


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A graph in which every node reads what lies on its device."""

    graph: Graph
    devices: Mapping[str, str]  # name -> where its last version lies
    copies: Mapping[tuple[str, str], str]  # (name, device) -> its copy there, of what the name stands for at the end


def with_copies(
    graph: Graph,
    devices: Mapping[str, str] | None = None,
    copies: Mapping[tuple[str, str], str] | None = None,
    default: str = HOST,
    style: CopyStyle = CopyStyle(),
) -> PlacedGraph:
    """`graph` with a copy for each value and device it is read on elsewhere; readers there share it.

    `devices` says by name where values from outside lie, `default` for all others; `copies` are copies an
    earlier graph has made of them, read as inputs. Raises BadGraph when a name is written again on
    another device than it was: one buffer cannot lie on two.
    """
    return _Placing(without_name_order(graph), dict(devices or {}), dict(copies or {}), default, style).placed()


class _Placing:
    """One sweep over the nodes in their order."""

    def __init__(
        self, graph: Graph, devices: dict[str, str], copies: dict[tuple[str, str], str], default: str, style: CopyStyle
    ):
        self.graph, self.devices, self.default, self.style = graph, devices, default, style
        self.earlier = copies
        self.naming = naming_of(graph)
        self.values = list(graph.values)
        self.inputs = list(graph.inputs)
        self.nodes: list[Node] = []
        self.place: dict[int, int] = {}  # node of the old graph -> of the new one
        self.lies: dict[int, str] = {}  # value -> device
        self.copied: dict[tuple[int, str], int] = {}  # (value, device) -> its copy
        self.value_names = UniqueNames({*self.naming.names, *(value.name for value in graph.values)})
        self.node_names = UniqueNames({node.name for node in graph.nodes})

    def placed(self) -> PlacedGraph:
        findings = Findings()
        for v, value in enumerate(self.graph.values):
            if value.role is not Role.ACTIVATION:
                self.lies[v] = self.devices.get(self.naming.names[v], self.default)
        for n, node in enumerate(self.graph.nodes):
            self._node(n, node, findings)
        findings.settle()
        result = replace(self.graph, values=tuple(self.values), nodes=tuple(self.nodes), inputs=tuple(self.inputs))
        final = {name: v for v, name in enumerate(self.naming.names)}
        final |= {name: v for v, name in enumerate(self.naming.names) if v in self.lies}
        ends = {**self.devices, **{name: self.lies[v] for name, v in final.items() if v in self.lies}}
        made = {
            (self.naming.names[v], device): self.values[copy].name
            for (v, device), copy in self.copied.items()
            if final[self.naming.names[v]] == v
        }
        return PlacedGraph(with_name_order(result), ends, {**self.earlier, **made})

    def _node(self, n: int, node: Node, findings: Findings) -> None:
        home = device_of(node) or self.default
        inputs, outputs = self.style.operand_devices(node, home)
        read = tuple(self._there(v, device) for v, device in zip(node.inputs, inputs, strict=True))
        bodies = {name: remap_captures(body, lambda v: self._there(v, home)) for name, body in node.bodies.items()}
        for v, device in zip(node.outputs, outputs, strict=True):
            if v != ABSENT:
                self.lies[v] = device or self.default
                self._check_stays(n, node, v, findings)
        self.place[n] = len(self.nodes)
        after = tuple(self.place[m] for m in node.after)
        reads = node.gradient_reads
        instead = dict(zip(node.inputs, read, strict=True))
        if reads is not None:
            reads = tuple(instead.get(v, v) for v in reads)
        self.nodes.append(replace(node, inputs=read, after=after, gradient_reads=reads, bodies=bodies))

    def _there(self, v: int, device: str | None) -> int:
        """The value, or its copy on the device."""
        return v if v == ABSENT or device is None or self.lies[v] == device else self._copy(v, device)

    def _check_stays(self, n: int, node: Node, v: int, findings: Findings) -> None:
        old = self.naming.replaced[v]
        if old >= 0 and self.lies.get(old, self.lies[v]) != self.lies[v]:
            findings.add(
                "written_on_two_devices",
                f"nodes[{n}]",
                f"{quoted(self.naming.names[v])}, written on {self.lies[v]} by {quoted(node.name)} and on "
                f"{self.lies[old]} before",
                "one device for all that is written to a name",
                "write another name, or place the node where the name lies",
            )

    def _copy(self, v: int, device: str) -> int:
        """The copy of a value on a device, made once."""
        if (v, device) in self.copied:
            return self.copied[v, device]
        value, name = self.graph.values[v], self.naming.names[v]
        given = self.earlier.get((name, device))
        if given is not None and value.role is not Role.ACTIVATION:
            copy = self._value(value, given, Role.INPUT)
            self.inputs.append(copy)
        else:
            copy, source = self._value(value, self.style.name(name, device), Role.ACTIVATION), self.lies[v]
            self.nodes.append(
                Node(
                    self.node_names.name(f"copy/{self.values[copy].name}"),
                    self.style.op(source, device),
                    (v,),
                    (copy,),
                    annotations={DEVICE: device, COPIED_FROM: source},
                )
            )
        self.copied[v, device] = copy
        self.lies[copy] = device
        return copy

    def _value(self, like: Value, name: str, role: Role) -> int:
        """Id of a new value; the copies of several versions are versions of one name."""
        unique = self.value_names.name(name)
        notes = dict(own_annotations(like)) | ({VERSION_OF: name} if unique != name else {})
        self.values.append(replace(like, name=unique, role=role, data=None, annotations=notes or EMPTY))
        return len(self.values) - 1


def check_placement(graph: Graph, default: str = HOST) -> None:
    """Raises BadGraph where a node reads what lies on another device: bytes and plans are those of one device."""
    lies: dict[int, str] = {}
    for n, node in enumerate(graph.nodes):
        inputs, outputs = operand_devices(node, device_of(node) or default)
        for v, device in zip(node.inputs, inputs, strict=True):
            if v in lies and device is not None and lies[v] != device:
                raise BadGraph.one(
                    "device_conflict",
                    f"nodes[{n}]",
                    f"{quoted(node.name)} on {device} reads {quoted(graph.values[v].name)}, which lies on {lies[v]}",
                    "all that a node reads on its device",
                    "insert copies first",
                )
        lies.update((v, device or default) for v, device in zip(node.outputs, outputs, strict=True) if v != ABSENT)
