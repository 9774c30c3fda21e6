"""Writer of Caffe2 nets, binary or text. The plan is the list of blobs recomputed in the backward pass of each
recurrent op.

Shapes of external inputs without a fill op are stored as arguments `shape/NAME` of the net, which Caffe2 ignores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.formats.caffe2.proto import caffe2
from graph.formats.caffe2.write_ops import OP_CONVERTERS, arguments
from graph.formats.shared.groups import OpGroup, note_of, op_groups
from graph.formats.shared.op_writer import with_framework_ops
from graph.formats.shared.protobuf import fill_message, message_to_text
from graph.formats.shared.rows import Origin
from graph.ir import Graph, Node, Role, TensorType, Value

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
    recomputed = _recomputed(graph)
    for group in groups:
        _operator(net.op.add(), group, recomputed.get(group.origin.id) or _preferred(graph, group))
    given = [v for v in graph.values if v.role is not Role.ACTIVATION and _is_read(v, groups)]
    filled = {name for fill in note.get("fills", ()) for name in fill.get("output", ())}
    net.external_input.extend(note.get("external_input") or [v.name for v in given])
    outputs = note.get("external_output", ()) if note else [graph.values[v].name for v in graph.outputs]
    net.external_output.extend(outputs)
    for value in given:
        _note(net, value, value.name in filled)
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
    for fill in note.get("fills", ()):
        fill_message(net.op.add(), fill, "caffe2")
    return net


def _is_read(value: Value, groups: list[OpGroup]) -> bool:
    """True for values of the net; constants added by a reader that no op of the file reads are left out."""
    return value.role is not Role.CONSTANT or any(value.name in group.origin.inputs for group in groups)


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


def _operator(operator: Any, group: OpGroup, recomputed: list[str] | None) -> None:
    origin: Origin = group.origin
    operator.type, operator.input[:], operator.output[:] = origin.op, origin.inputs, origin.outputs
    if origin.name:
        operator.name = origin.name
    rest = dict(origin.attributes)
    arguments = [a for a in rest.pop("arg", ()) if recomputed is None or a.get("name") != RECOMPUTE]
    fill_message(operator, {**rest, "arg": arguments}, "caffe2")
    if recomputed:
        operator.arg.add(name=RECOMPUTE).strings.extend(blob.encode() for blob in recomputed)


def _note(net: Any, value: Value, is_filled: bool) -> None:
    """Add arguments for the shape, dtype and role of an external input, which have no field in a net."""
    if value.type is None:
        raise BadGraph.one(
            "not_representable",
            f"values.{value.name}",
            "a value that is only a size",
            "a shape",
            "write the graph as rows",
        )
    type: TensorType = value.type
    if not is_filled:
        net.arg.add(name=f"shape/{value.name}").ints.extend(type.shape)
        net.arg.add(name=f"dtype/{value.name}").s = type.dtype.encode()
    net.arg.add(name=f"role/{value.name}").s = value.role.value.encode()
