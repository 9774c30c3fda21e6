"""Device placement: inserts a copy where a node reads a value that is on another device.

data (cpu) ──▶ relu (gpu:1)      becomes      data ──▶ Copy ──▶ data/on/gpu:1 ──▶ relu
data (cpu) ──▶ tanh (gpu:1)                                     data/on/gpu:1 ──▶ tanh

The annotation `device` of a node is its device; a node without it runs on the default device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from graph.errors import BadGraph, Findings, quoted
from graph.ir import ABSENT, EMPTY, Graph, Node, Role, Value
from graph.ir.renumber import remap_captures
from graph.ssa.naming import UniqueNames, naming_of, own_annotations
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
    """The device in the annotations of the node; None without one."""
    device = node.annotations.get(DEVICE)
    return device if isinstance(device, str) and device else None


def copy_route(node: Node) -> tuple[str | None, str | None] | None:
    """(from, to) of a node that copies between devices, None for any other node; a side may be unknown (None).

    A copy has both sides as annotations. For an op with fixed sides, such as CopyCPUToGPU, that has one, it is that of
    the side that is not the host.
    """
    own, copied_from = device_of(node), node.annotations.get(COPIED_FROM)
    if isinstance(copied_from, str) and own is not None:
        return copied_from, own
    if base_op(node) in _FIXED:
        source, target = _FIXED[base_op(node)]
        placed = own if own != HOST else None
        return (placed or source if source != HOST else HOST), (placed or target if target != HOST else HOST)
    return None


def uniform_devices(node: Node, source: str | None, target: str | None) -> OperandDevices:
    return [source] * len(node.inputs), [target] * len(node.outputs)


def operand_devices(node: Node, device: str) -> OperandDevices:
    """Devices of the operands of a node: both sides of a copy; `device` for any other node."""
    source, target = copy_route(node) or (device, device)
    return uniform_devices(node, source, target)


def copy_name(name: str, target: str) -> str:
    return f"{name}/on/{target}"


@dataclass(frozen=True, slots=True)
class CopyStyle:
    """Op and name of inserted copies, and the devices of operands."""

    op: Callable[[str, str], str] = lambda source, target: COPY  # (from, to) -> op
    name: Callable[[str, str], str] = copy_name  # (name of the value, to) -> name of the copy
    operand_devices: Callable[[Node, str], OperandDevices] = operand_devices


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A graph in which every node reads values on its device only."""

    graph: Graph
    devices: Mapping[str, str]  # name -> device of its last version
    copies: Mapping[tuple[str, str], str]  # (name, device) -> name of the copy of its last version there


def with_copies(
    graph: Graph,
    devices: Mapping[str, str] | None = None,
    copies: Mapping[tuple[str, str], str] | None = None,
    default: str = HOST,
    style: CopyStyle = CopyStyle(),
) -> PlacedGraph:
    """`graph` with one copy per value and other device that reads it; readers on that device share the copy.

    `devices`: name -> device of inputs and parameters; `default` for all others. `copies`: copies of them made by an
    earlier graph, read as inputs. Raises BadGraph when a name is overwritten on another device: one buffer cannot be
    on two devices.
    """
    return _Placing(graph, dict(devices or {}), dict(copies or {}), default, style).placed()


class _Placing:
    """One pass over the nodes in order."""

    def __init__(
        self, graph: Graph, devices: dict[str, str], copies: dict[tuple[str, str], str], default: str, style: CopyStyle
    ):
        self.graph, self.devices, self.default, self.style = graph, devices, default, style
        self.given_copies = copies
        self.naming = naming_of(graph)
        self.values = list(graph.values)
        self.inputs = list(graph.inputs)
        self.nodes: list[Node] = []
        self.place: dict[int, int] = {}  # node of the old graph -> of the new one
        self.location: dict[int, str] = {}  # value -> device
        self.copied: dict[tuple[int, str], int] = {}  # (value, device) -> its copy
        self.value_names = UniqueNames({*self.naming.names, *(value.name for value in graph.values)})
        self.node_names = UniqueNames({node.name for node in graph.nodes})

    def placed(self) -> PlacedGraph:
        findings = Findings()
        for v, value in enumerate(self.graph.values):
            if value.role is not Role.ACTIVATION:
                self.location[v] = self.devices.get(self.naming.names[v], self.default)
        for n, node in enumerate(self.graph.nodes):
            self._node(n, node, findings)
        findings.settle()
        result = replace(self.graph, values=tuple(self.values), nodes=tuple(self.nodes), inputs=tuple(self.inputs))
        final = {name: v for v, name in enumerate(self.naming.names)}
        final |= {name: v for v, name in enumerate(self.naming.names) if v in self.location}
        final_devices = {**self.devices, **{name: self.location[v] for name, v in final.items() if v in self.location}}
        made_copies = {
            (self.naming.names[v], device): self.values[copy].name
            for (v, device), copy in self.copied.items()
            if final[self.naming.names[v]] == v
        }
        return PlacedGraph(result, final_devices, {**self.given_copies, **made_copies})

    def _node(self, n: int, node: Node, findings: Findings) -> None:
        home = device_of(node) or self.default
        inputs, outputs = self.style.operand_devices(node, home)
        read = tuple(self._on_device(v, device) for v, device in zip(node.inputs, inputs, strict=True))
        bodies = {name: remap_captures(body, lambda v: self._on_device(v, home)) for name, body in node.bodies.items()}
        for v, device in zip(node.outputs, outputs, strict=True):
            if v != ABSENT:
                self.location[v] = device or self.default
                self._check_device(n, node, v, findings)
        self.place[n] = len(self.nodes)
        after = tuple(self.place[m] for m in node.after)
        reads = node.gradient_reads
        moved = dict(zip(node.inputs, read, strict=True))
        if reads is not None:
            reads = tuple(moved.get(v, v) for v in reads)
        self.nodes.append(replace(node, inputs=read, after=after, gradient_reads=reads, bodies=bodies))

    def _on_device(self, v: int, device: str | None) -> int:
        """The value, or its copy on `device`."""
        return v if v == ABSENT or device is None or self.location[v] == device else self._copy(v, device)

    def _check_device(self, n: int, node: Node, v: int, findings: Findings) -> None:
        old = self.naming.replaced[v]
        if old >= 0 and self.location.get(old, self.location[v]) != self.location[v]:
            findings.add(
                "written_on_two_devices",
                f"nodes[{n}]",
                f"{quoted(self.naming.names[v])}, written on {self.location[v]} by {quoted(node.name)} and on "
                f"{self.location[old]} before",
                "one device for all versions of a name",
                f"write another name, or place the node on {self.location[old]}",
            )

    def _copy(self, v: int, device: str) -> int:
        """The copy of a value on a device; added on first use."""
        if (v, device) in self.copied:
            return self.copied[v, device]
        value, name = self.graph.values[v], self.naming.names[v]
        given = self.given_copies.get((name, device))
        if given is not None and value.role is not Role.ACTIVATION:
            copy = self._value(value, given, Role.INPUT)
            self.inputs.append(copy)
        else:
            copy, source = self._value(value, self.style.name(name, device), Role.ACTIVATION), self.location[v]
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
        self.location[copy] = device
        return copy

    def _value(self, like: Value, name: str, role: Role) -> int:
        """Id of a new value; copies of versions of one name are versions of one name too."""
        unique = self.value_names.name(name)
        notes = dict(own_annotations(like)) | ({VERSION_OF: name} if unique != name else {})
        self.values.append(replace(like, name=unique, role=role, data=None, annotations=notes or EMPTY))
        return len(self.values) - 1


def check_placement(graph: Graph, default: str = HOST) -> None:
    """Raise BadGraph where a node reads a value on another device: a plan covers the memory of one device."""
    location: dict[int, str] = {}
    for n, node in enumerate(graph.nodes):
        inputs, outputs = operand_devices(node, device_of(node) or default)
        for v, device in zip(node.inputs, inputs, strict=True):
            if v in location and device is not None and location[v] != device:
                raise BadGraph.one(
                    "device_conflict",
                    f"nodes[{n}]",
                    f"{quoted(node.name)} on {device} reads {quoted(graph.values[v].name)}, which is on {location[v]}",
                    "inputs on the device of the node",
                    "run the pass `insert_copies` first",
                )
        location.update((v, device or default) for v, device in zip(node.outputs, outputs, strict=True) if v != ABSENT)
