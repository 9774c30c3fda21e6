"""Reports on recurrent nets: links, aliases, saved values with their bytes, and the backward step.

Works for any Scan: without a net, states, links and aliases are inferred from the body. The backward step
requires a differentiated graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.analysis.aliasing import is_view, storage_roots
from graph.analysis.cost import workspace_of
from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Graph, consumers
from graph.loop_remat import BodyPair, JointGraph, joint_graphs
from graph.loop_remat.joint_body import BACKWARD_SUFFIX
from graph.ops.control_flow import LoopInterface, trip_count
from graph.recurrent.recompute_presets import recompute_hints
from graph.recurrent.step_graph import BLOB, STEP_OP, written_by
from graph.recurrent.to_scan import NET_ANNOTATION


@dataclass(frozen=True, slots=True)
class SavedStepValue:
    """One value of the step that is saved for the backward pass, one row per step."""

    name: str  # name in the step
    kind: str  # "step": written by an op; "state": input of the step
    bytes_per_step: int
    steps: int

    @property
    def bytes(self) -> int:
        return self.bytes_per_step * self.steps


@dataclass(frozen=True, slots=True)
class BackwardOp:
    """One op of the backward step, in names of the step; views and auxiliary ops are omitted."""

    kind: str  # "again": recomputed op of the step; "gradient"; "sum": accumulation of a gradient
    op: str  # remat or ONNX op
    of: str  # type of the step's op it belongs to; "" for a sum
    of_outputs: tuple[str, ...]  # outputs of that op
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """The backward step."""

    node: str
    ops: tuple[BackwardOp, ...]
    links: tuple[tuple[str, str, int], ...]  # (gradient in the step, gradient of a buffer or sequence, offset)
    held: tuple[SavedStepValue, ...]
    made_again: tuple[str, ...]  # recomputed names of the step


@dataclass(frozen=True, slots=True)
class RecurrenceInfo:
    """Description of one recurrent net of a graph."""

    node: str
    steps: int
    sequences: tuple[str, ...]
    references: tuple[str, ...]
    timestep: str | None
    states: tuple[tuple[str, str, int, int], ...]  # (buffer, initial value, positions, bytes of all positions)
    links: tuple[tuple[str, str, int, int], ...]  # (inner, outer, offset, window)
    aliases: tuple[tuple[str, str, int], ...]  # (buffer, name, offset)
    step_bytes: int  # peak bytes during a step, states and weights excluded
    backward: BackwardStep | None  # None: the graph is not differentiated
    hints: Mapping[str, Sequence[str]]  # recompute presets, by kind of cell

    @property
    def held_bytes(self) -> int:
        return 0 if self.backward is None else sum(held.bytes for held in self.backward.held)

    def as_dict(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return {
            "node": self.node,
            "steps": self.steps,
            "sequences": list(self.sequences),
            "references": list(self.references),
            "timestep": self.timestep,
            "states": [
                {"buffer": buffer, "initial": initial, "positions": positions, "bytes": size}
                for buffer, initial, positions, size in self.states
            ],
            "links": [list(link) for link in self.links],
            "aliases": [list(alias) for alias in self.aliases],
            "memory": {
                "forward_only_bytes": self.step_bytes,
                "training_bytes": self.step_bytes + self.held_bytes,
                "held_bytes": self.held_bytes,
            },
            "backward": None if self.backward is None else _backward_dict(self.backward),
            "hints": {kind: list(names) for kind, names in self.hints.items()},
        }


def _backward_dict(back: BackwardStep) -> dict[str, Any]:
    return {
        "node": back.node,
        "held": [
            {"name": h.name, "kind": h.kind, "bytes_per_step": h.bytes_per_step, "steps": h.steps, "bytes": h.bytes}
            for h in back.held
        ],
        "made_again": list(back.made_again),
        "links": [list(link) for link in back.links],
        "ops": [
            {"kind": o.kind, "op": o.op, "of": o.of, "reads": list(o.reads), "writes": list(o.writes)} for o in back.ops
        ],
    }


def describe_recurrences(graph: Graph) -> tuple[RecurrenceInfo, ...]:
    """The recurrent nets of a graph, those inside bodies excluded."""
    back = backward_scans(graph)
    return tuple(
        _Reading(graph, n, back.get(node.name)).recurrence()
        for n, node in enumerate(graph.nodes)
        if node.op == "Scan" and "gradient_of" not in node.annotations
    )


def describe_recurrence(graph: Graph, name: str) -> RecurrenceInfo:
    """The recurrent net called `name`. Raises BadGraph if there is none."""
    recurrences = {recurrence.node: recurrence for recurrence in describe_recurrences(graph)}
    if name not in recurrences:
        raise BadGraph.one(
            "undefined_value",
            "recurrent",
            quoted(name),
            f"one of {', '.join(map(quoted, recurrences)) or 'none'}",
            "name a recurrent net, or a Scan, of the graph",
        )
    return recurrences[name]


def scan_pair(graph: Graph, forward: int, backward: int) -> BodyPair:
    """The pair of a Scan and its backward Scan, also if no value is saved."""
    readers, outputs = consumers(graph), set(graph.outputs)
    only = (v for v in graph.nodes[forward].writes if readers[v] == [backward] and v not in outputs)
    return BodyPair(forward, backward, tuple(only))


def backward_scans(graph: Graph) -> dict[str, int]:
    """Name of the forward node -> its backward Scan; the first of several."""
    scans: dict[str, int] = {}
    for n, node in enumerate(graph.nodes):
        if node.op == "Scan" and "gradient_of" in node.annotations:
            scans.setdefault(node.annotations["gradient_of"], n)
    return scans


class _Reading:
    """State of the description of one net."""

    def __init__(self, graph: Graph, n: int, back: int | None):
        self.graph, self.n, self.back = graph, n, back
        self.node = graph.nodes[n]
        self.trips = LoopInterface.of(self.node)
        self.body = self.trips.body.graph
        self.steps = trip_count(graph.values, self.node).bound or 0
        self.note = self.node.annotations.get(NET_ANNOTATION) or self._inferred()

    def recurrence(self) -> RecurrenceInfo:
        note = self.note
        return RecurrenceInfo(
            self.node.name,
            self.steps,
            tuple(note["sequences"]),
            tuple(note["references"]),
            note.get("timestep"),
            tuple(self._states()),
            tuple((a, b, int(c), int(d)) for a, b, c, d in note["links"]),
            tuple((a, b, int(c)) for a, b, c in note["aliases"]),
            workspace_of(self.graph, self.node),
            None if self.back is None else self._backward(self.back),
            recompute_hints(self.node),
        )

    def _inferred(self) -> Mapping[str, Any]:
        """The annotation of a net, inferred for a Scan without one."""
        trips, outer, inner = self.trips, self.graph.values, self.body.values
        buffers = {f"{self.node.name}/{inner[trips.state_in(i)].name}_states": i for i in range(trips.states)}
        links, aliases = [], []
        outputs = [*self.node.outputs, *[ABSENT] * (trips.states + trips.emitted - len(self.node.outputs))]
        for buffer, i in buffers.items():
            links += [[inner[trips.state_in(i)].name, buffer, 0, 1], [inner[trips.state_out(i)].name, buffer, 1, 1]]
            stacks = [
                outputs[trips.states + k] for k in range(trips.emitted) if trips.emission(k) == trips.state_out(i)
            ]
            shown = [(v, 1) for v in stacks if v != ABSENT] + [(v, -1) for v in outputs[i : i + 1] if v != ABSENT]
            aliases += [[buffer, outer[v].name, offset] for v, offset in shown]
        scanned = [trips.sequence(k) for k in range(trips.scanned)]
        links += [[inner[trips.element(k)].name, outer[v].name, 0, 1] for k, v in enumerate(scanned)]
        return {
            "sequences": list(dict.fromkeys(outer[v].name for v in scanned)),
            "states": {buffer: outer[self.node.inputs[i]].name for buffer, i in buffers.items()},
            "references": [outer[v].name for _, v in trips.body.captures],
            "links": links,
            "aliases": aliases,
        }

    def _states(self) -> Iterator[tuple[str, str, int, int]]:
        """Per state its buffer with all positions: those of the initial value, and one per step."""
        ahead = {outer: offset for _, outer, offset, _ in sorted(self.note["links"], key=lambda link: link[2])}
        sizes = self._position_bytes()
        for buffer, initial in self.note["states"].items():
            positions = self.steps + int(ahead.get(buffer, 1))
            yield buffer, initial, positions, positions * sizes.get(buffer, 0)

    def _position_bytes(self) -> dict[str, int]:
        """Buffer -> bytes of one position, the value that the step writes."""
        size = {value.annotations.get(BLOB, value.name): value.nbytes for value in self.body.values}
        ahead: dict[str, int] = {}
        result = {}
        for inner, outer, offset, _ in self.note["links"]:
            if inner in size and offset >= ahead.get(outer, 0):
                ahead[outer], result[outer] = offset, size[inner]
        return result

    def _backward(self, back: int) -> BackwardStep:
        (joint,) = joint_graphs(self.graph, scan_pair(self.graph, self.n, back))
        names = _Names(joint)
        held = tuple(
            SavedStepValue(
                names.of(v), "state" if v in joint.states else "step", joint.graph.values[v].nbytes, self.steps
            )
            for v in joint.saved
        )
        ops = tuple(names.rows())
        again = dict.fromkeys(name for op in ops if op.kind == "again" for name in op.of_outputs)
        return BackwardStep(
            self.graph.nodes[back].name, ops, tuple(self._backward_links(joint, names)), held, tuple(again)
        )

    def _backward_links(self, joint: JointGraph, names: _Names) -> Iterator[tuple[str, str, int]]:
        """Gradients of states at the offsets of the states, then gradients of sequence elements."""
        back = LoopInterface.of(self.graph.nodes[self.back or 0])
        buffers, remaining = list(self.note["states"]), list(range(self.trips.states))
        read = {outer: offset for _, outer, offset, _ in reversed(self.note["links"])}
        ahead = {outer: offset for _, outer, offset, _ in sorted(self.note["links"], key=lambda link: link[2])}
        for k in range(back.states):
            formal = joint.backward_inputs[k]
            name = joint.graph.values[formal].name
            state = next(
                (i for i in remaining if _is_gradient_of(name, self.body.values[self.trips.state_out(i)].name)), None
            )
            if state is None:
                continue  # accumulated gradient of a reference
            remaining.remove(state)
            buffer = buffers[state] if state < len(buffers) else name
            yield names.of(formal), f"{buffer}_grad", ahead.get(buffer, 1)
            yield names.of(joint.backward_outputs[k]), f"{buffer}_grad", read.get(buffer, 0)
        outer = self.graph.values
        elements = {outer[self.trips.sequence(k)].name: k for k in range(self.trips.scanned)}
        gradient = self.graph.nodes[self.back or 0].outputs[back.states :]
        for v, inner in zip(gradient, joint.backward_outputs[back.states :], strict=False):
            shown = outer[v].name if v != ABSENT else ""
            sequence = next((name for name in elements if shown.endswith(f"/{name}")), shown)
            yield names.of(inner), f"{sequence}_grad", 0


def _is_gradient_of(name: str, value: str) -> bool:
    rest = name.removeprefix(f"grad/{value}")
    return rest != name and (not rest or rest[:1] == "/")


class _Names:
    """Step names of the values of a joint graph; a view has the name of its storage.

    Without a net, the names of the body are those of the step.
    """

    def __init__(self, joint: JointGraph):
        self.joint, graph = joint, joint.graph
        self.root = storage_roots(graph)
        self.name: dict[int, str] = {}
        own = {value.name for value in graph.values[: joint.forward_values]}
        for v, value in enumerate(graph.values):
            if BLOB in value.annotations:
                self.name.setdefault(self.root[v], value.annotations[BLOB])
            elif v >= joint.forward_values and _plain(value.name) in own:  # recomputed
                self.name.setdefault(self.root[v], _plain(value.name))
        #: node of the step -> what its annotation says, or would say
        self.step_ops: dict[str, Mapping[str, Any]] = {
            node.name: {"type": node.op, "outputs": written_by(graph, node)} for node in graph.nodes[: joint.split]
        }
        heads = {graph.values[v].name for v in joint.forward_outputs}
        for v in joint.backward_inputs:
            of = [name for name in heads if _is_gradient_of(graph.values[v].name, name)]
            if v >= joint.forward_values and of:
                self.name[self.root[v]] = f"{self._blob(max(of, key=len))}_grad"
        self.sums = {f"grad/{graph.values[v].name}": v for v in range(joint.forward_values)}

    def _blob(self, name: str) -> str:
        for value in self.joint.graph.values[: self.joint.forward_values]:
            if value.name == name:
                return str(value.annotations.get(BLOB, name))
        return name

    def of(self, v: int) -> str:
        return self.name.get(self.root[v], self.joint.graph.values[self.root[v]].name)

    def rows(self) -> Iterator[BackwardOp]:
        graph = self.joint.graph
        for node in graph.nodes[self.joint.split :]:
            again = "gradient_of" not in node.annotations
            of = _plain(node.name) if again else node.annotations["gradient_of"]
            mark = node.annotations.get(STEP_OP) or self.step_ops.get(of)
            if is_view(graph, node) or (again and mark is None):
                continue
            sum_of = self.sums.get(_plain(node.name)) if node.op in ("Add", "Sum") and not again else None
            kind = "again" if again else "gradient" if sum_of is None else "sum"
            if sum_of is not None:
                for v in node.writes:
                    self.name[self.root[v]] = f"{self.of(sum_of)}_grad"
            mark = mark or {"type": node.op, "outputs": []}
            reads = dict.fromkeys(self.of(v) for v in node.reads if graph.values[self.root[v]].data is None)
            writes = tuple(self.of(v) for v in node.writes)
            if kind == "sum" and tuple(reads) == writes:
                continue  # state gradient plus outer gradient: a single gradient in the step
            type = "" if kind == "sum" else str(mark["type"])
            yield BackwardOp(kind, node.op, type, tuple(mark["outputs"]), tuple(reads), writes)


def _plain(name: str) -> str:
    """The name without its uniqueness suffix."""
    while name.endswith(BACKWARD_SUFFIX):
        name = name.removesuffix(BACKWARD_SUFFIX)
    return name
