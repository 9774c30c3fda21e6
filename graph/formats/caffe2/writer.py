"""Writer of Caffe2 nets, binary or text. The plan is the list of blobs recomputed in the backward pass of each
recurrent op.

Shapes of external inputs without a fill op are stored as arguments `shape/NAME` of the net, which Caffe2 ignores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.formats.caffe2.compat.devices import COPY_BETWEEN, HOST, op_device
from graph.formats.caffe2.nested_names import rename_nested
from graph.formats.caffe2.proto import caffe2, device_of_op
from graph.formats.caffe2.write_ops import OP_CONVERTERS, arguments
from graph.formats.shared.groups import OpGroup, not_representable, note_of, op_groups
from graph.formats.shared.op_writer import with_framework_ops
from graph.formats.shared.protobuf import fill_message, message_to_text
from graph.formats.shared.rows import Origin
from graph.formats.shared.written_names import WrittenOp, WrittenProgram, written_program
from graph.ir import Graph, Node, Role, TensorType, Value
from graph.ir.names import reserve_name
from graph.transforms.device_placement import COPIED_FROM

FORMS = ("binary", "text")
RECOMPUTE = "recompute_blobs_on_backward"


def dump(graph: Graph, form: str = "binary") -> bytes:
    """Bytes of the net. Raises BadGraph for nodes and values without a Caffe2 equivalent."""
    if form not in FORMS:
        raise ValueError(f"form {form!r}; use one of {', '.join(FORMS)}")
    graph = with_framework_ops(graph, "caffe2", OP_CONVERTERS, arguments)
    groups = op_groups(graph, "caffe2")
    _check_repeats(graph, groups)
    note = note_of(graph, "caffe2")
    net = _net(graph, note)
    program = written_program(graph, groups, "caffe2")
    if not program.ops:
        raise not_representable("nodes", "a graph without nodes", "ops, by which a net is recognized")
    fills = {name: fill for fill in note.get("fills", ()) for name in fill.get("output", ())}
    given = [v for v, value in enumerate(graph.values) if v in program.given or _fill_of(value, fills) is not None]
    _fill_ops(net, graph, given, program.names, fills)
    recomputed = _recomputed(graph)
    taken: set[str] = set()
    for op in program.ops:
        group = op.group
        _operator(net.op.add(), op, taken, recomputed.get(group.origin.id) or _preferred(graph, group))
        _copy_source(net, op)
    net.external_input.extend(program.names[v] for v in given)
    if not note or "external_output" in note or program.outputs != _last_written(program):
        net.external_output.extend(program.outputs)
    for v in given:
        _note(net, program.names[v], graph.values[v], _fill_of(graph.values[v], fills) is not None)
    return message_to_text(net) if form == "text" else net.SerializeToString(deterministic=True)


def _net(graph: Graph, note: Mapping[str, Any]) -> Any:
    """The net with its header and fill ops, as noted by the reader."""
    net = caffe2()["NetDef"](name=note.get("name") or graph.name)
    for field in ("type", "num_workers"):
        if field in note:
            setattr(net, field, note[field])
    if "device_option" in note:
        fill_message(net.device_option, note["device_option"], "caffe2")
    for argument in note.get("arguments", ()):
        fill_message(net.arg.add(), argument, "caffe2")
    return net


def _fill_of(value: Value, fills: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The op that fills an external input before the net runs; None without one."""
    note = value.annotations.get("caffe2")
    if value.role is Role.ACTIVATION or not isinstance(note, Mapping):
        return None
    return fills.get(str(note.get("fill")))


def _fill_ops(
    net: Any, graph: Graph, given: Sequence[int], names: Sequence[str], fills: Mapping[str, Mapping[str, Any]]
) -> None:
    """Add the fill ops of external inputs in the order of the file, each under the name of its value."""
    place = {name: i for i, name in enumerate(fills)}
    found = [(fill, v) for v in given if (fill := _fill_of(graph.values[v], fills)) is not None]
    for fill, v in sorted(found, key=lambda pair: place[pair[0]["output"][0]]):
        fill_message(net.op.add(), {**fill, "output": [names[v]]}, "caffe2")


def _last_written(program: WrittenProgram) -> list[str]:
    """Names written and not read afterwards: the outputs of a net that lists none."""
    written: dict[str, None] = {}
    read: set[str] = set()
    for op in program.ops:
        read.update(op.inputs)
        read.difference_update(op.outputs)
        written.update(dict.fromkeys(op.outputs))
    return [name for name in written if name not in read]


def _check_repeats(graph: Graph, groups: list[OpGroup]) -> None:
    findings = Findings()
    for group in groups:
        node = graph.nodes[group.nodes[-1]]
        if group.recompute == "prefer" and not node.bodies:
            findings.add(
                "not_representable",
                f"node {quoted(node.name)}",
                f"{group.origin.op}, which is recomputed",
                "recomputation inside recurrent nets only",
                "plan without recomputing ops outside recurrent nets, or write ONNX",
            )
        if group.origin.op == "RecurrentNetwork" and node.op != "Scan":
            findings.add(
                "not_representable",
                f"node {quoted(node.name)}",
                f"{node.op}, which keeps the states of some steps only",
                "states of every step",
                "plan with another planner, or write the graph as rows",
            )
    findings.settle()


def _recomputed(graph: Graph) -> dict[str, list[str]]:
    """Recomputed blobs per op: outputs of forward ops that appear in its backward body."""
    found: dict[str, list[str]] = {}
    ids = {node.name: node.annotations["caffe2"].get("id") for node in graph.nodes if "caffe2" in node.annotations}
    for node in graph.nodes:
        source = node.annotations.get("gradient_of")
        if source in ids and node.bodies:
            blobs = found.setdefault(str(ids[source]), [])
            for body in node.bodies.values():
                blobs += _outputs_of(list(body.graph.nodes))
    return {key: list(dict.fromkeys(blobs)) for key, blobs in found.items()}


def _outputs_of(nodes: list[Node]) -> list[str]:
    """Blobs written by ops of a file among the nodes, gradients left out."""
    blobs: list[str] = []
    for node in nodes:
        note = node.annotations.get("caffe2")
        if isinstance(note, Mapping) and note.get("outputs") and "gradient_of" not in node.annotations:
            blobs += note["outputs"]
    return blobs


def _preferred(graph: Graph, group: OpGroup) -> list[str] | None:
    """Blobs of a recurrent step with the hint `recompute = "prefer"`; None for other ops."""
    if group.origin.op != "RecurrentNetwork":
        return None
    nodes = [n for k in group.nodes for body in graph.nodes[k].bodies.values() for n in body.graph.nodes]
    return _outputs_of([node for node in nodes if node.recompute == "prefer"])


def _operator(operator: Any, op: WrittenOp, taken: set[str], recomputed: list[str] | None) -> None:
    """Fill an OperatorDef; `taken` are the node names that a reader has chosen for the ops before."""
    origin: Origin = op.group.origin
    operator.type, operator.input[:], operator.output[:] = origin.op, op.inputs, op.outputs
    chosen = reserve_name(origin.name or next(iter(op.outputs), "") or origin.op, taken)
    if origin.name or chosen != op.group.name:
        operator.name = origin.name if chosen == op.group.name else op.group.name
    rest = dict(origin.attributes)
    arguments = [a for a in rest.pop("arg", ()) if recomputed is None or a.get("name") != RECOMPUTE]
    fill_message(operator, {**rest, "arg": arguments}, "caffe2")
    rename_nested(operator, op)
    if recomputed:
        operator.arg.add(name=RECOMPUTE).strings.extend(blob.encode() for blob in recomputed)
    device = op_device(op.node)
    if device and device_of_op(operator) != device:
        family, _, number = device.partition(":")
        operator.device_option.device_type = 0 if family == HOST else 1
        operator.device_option.device_id = int(number or 0)


def _copy_source(net: Any, op: WrittenOp) -> None:
    """Add an argument for the device that a copy between two accelerators reads from, which has no field in a net."""
    source = op.node.annotations.get(COPIED_FROM)
    if op.group.origin.op == COPY_BETWEEN and source:
        net.arg.add(name=f"copied_from/{op.outputs[0]}").s = str(source).encode()


def _note(net: Any, name: str, value: Value, is_filled: bool) -> None:
    """Add arguments for the shape, dtype and role of an external input, which have no field in a net."""
    if value.type is None:
        raise BadGraph.one(
            "not_representable", f"values.{name}", "a value that is only a size", "a shape", "write the graph as rows"
        )
    type: TensorType = value.type
    if not is_filled:
        net.arg.add(name=f"shape/{name}").ints.extend(type.shape)
        net.arg.add(name=f"dtype/{name}").s = type.dtype.encode()
    net.arg.add(name=f"role/{name}").s = value.role.value.encode()
