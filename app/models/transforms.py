"""Passes over stored graphs by name: what each takes, and the function of the graph room it calls.

{"pass": "rename", "node": "fc1", "output": 0, "to": "h1"}        a new graph
{"pass": "boundary", "nodes": ["fc1", "relu1"]}                   an answer about the graph

Values are named as in the document; `y@2` is the second write of a name, `y@last` its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from app.api.schemas.transforms import (
    Boundary,
    CutOverTime,
    DifferentiatePass,
    ExpandRecurrent,
    Extract,
    FuseCopies,
    InferBindings,
    InsertCopies,
    Pass,
    Prune,
    RecomputeSteps,
    RemoveIdentities,
    RemoveReshapes,
    Rename,
    ReplaceByIdentity,
    RunAgain,
    Seed,
    ShareBuffers,
    Status,
    Transform,
    VersionNames,
)
from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.buffer_sharing.shared_program import shared_document
from graph.buffer_sharing.sharing import share_buffers
from graph.buffer_sharing.sharing import sharing_report as described_sharing
from graph.errors import MAX_FINDINGS, Findings
from graph.formats.caffe2.compat import devices as caffe2_devices
from graph.formats.caffe2.compat.bindings import NamedOp, inferred_bindings
from graph.formats.caffe2.compat.devices import device_rule
from graph.formats.caffe2.compat.names import with_version_names
from graph.formats.paddle.recompute import recompute_pass
from graph.formats.readers import load
from graph.ir import Graph, Node
from graph.recurrent import describe_recurrence, expand_rnns, recompute_values, split_over_time
from graph.ssa.lookup import find_nodes, find_value
from graph.ssa.naming import versions_of_graph, with_name_order, without_name_order
from graph.training.random_seeds import with_seeds
from graph.training.recompute_segments import RecomputedGraph, recompute_segments
from graph.transforms.boundary import boundary
from graph.transforms.copy_fusion import without_round_trips
from graph.transforms.dead_code import without_dead_nodes, without_identities
from graph.transforms.device_placement import CopyStyle, base_op, with_copies
from graph.transforms.extract import extract
from graph.transforms.remove_group import replace_by_identity
from graph.transforms.remove_reshapes import FLATTENING, without_reshapes
from graph.transforms.rename import rename_input, rename_output, rename_value
from graph.transforms.status_propagation import StatusRule, infer_status, same_status
from planner.errors import BadRequest
from planner.formulation.training_graph import gradient_targets, training_graph
from planner.request.plan_request import parse_request

_READER: TypeAdapter[Transform] = TypeAdapter(Transform)
#: What a pass gives: a graph and what is said about it, or an answer.
PassResult = tuple[Graph, Mapping[str, Any]] | Mapping[str, Any]


def parse_pass(asked: Any) -> Pass:
    """The pass an object asks for. Raises BadRequest with up to ten findings."""
    try:
        return _READER.validate_python(asked).root
    except ValidationError as error:
        findings = Findings()
        for fault in error.errors(include_url=False)[:MAX_FINDINGS]:
            path = ".".join(str(part) for part in fault["loc"][1:] or fault["loc"]) or "body"
            findings.add(
                "bad_field",
                path.replace("pass_", "pass"),
                repr(fault.get("input"))[:80],
                str(fault["msg"])[:300],
                "see the schema `transform`",
            )
        raise BadRequest(findings.kept) from None


def apply_pass(graph: Graph, asked: Pass) -> PassResult:
    """What the pass makes of the graph. Raises BadGraph, NoGradient, BadRequest."""
    return PASS_FUNCTIONS[type(asked)](graph, asked)


def _rename(graph: Graph, asked: Rename) -> PassResult:
    if asked.node is None:
        return rename_value(graph, find_value(graph, asked.value or "", "value"), asked.to), {}
    findings = Findings()
    found = find_nodes(graph, [asked.node], "node", findings)
    findings.settle()
    if asked.output is not None:
        return rename_output(graph, found[0], asked.output, asked.to), {}
    return rename_input(graph, found[0], asked.input or 0, asked.to, from_producer=asked.from_producer), {}


def _prune(graph: Graph, asked: Prune) -> PassResult:
    return without_dead_nodes(graph), {}


def _extract(graph: Graph, asked: Extract) -> PassResult:
    return extract(graph, asked.outputs, asked.given, asked.prefix), {}


def _boundary(graph: Graph, asked: Boundary) -> PassResult:
    findings = Findings()
    nodes = find_nodes(graph, asked.nodes, "nodes", findings)
    findings.settle()
    table, border = versions_of_graph(graph), boundary(graph, nodes)
    return {
        side: [{"value": graph.values[v].name, "name": table.names[v], "version": table.numbers[v]} for v in values]
        for side, values in (("inputs", border.inputs), ("outputs", border.outputs))
    }


def _infer_bindings(graph: Graph, asked: InferBindings) -> PassResult:
    visible = {*versions_of_graph(graph).names, *(value.name for value in graph.values)}
    found = inferred_bindings([NamedOp(op.inputs, op.outputs) for op in asked.ops], visible, asked.name)
    names = {"inputs": found.inputs, "outputs": found.outputs, "local": found.local}
    return {"scope": {"handle": found.scope, "bindings": found.bindings, **{k: list(v) for k, v in names.items()}}}


def _remove_identities(graph: Graph, asked: RemoveIdentities) -> PassResult:
    return without_identities(graph), {}


def _replace_by_identity(graph: Graph, asked: ReplaceByIdentity) -> PassResult:
    findings, accepting = Findings(), frozenset(asked.accepting)
    nodes = find_nodes(graph, asked.nodes, "nodes", findings)
    findings.settle()

    def accepts(node: Node) -> bool:
        return base_op(node) in accepting

    return replace_by_identity(graph, nodes, accepts), {}


def _remove_reshapes(graph: Graph, asked: RemoveReshapes) -> PassResult:
    return without_reshapes(graph, FLATTENING if asked.readers is None else frozenset(asked.readers)), {}


def _fuse_copies(graph: Graph, asked: FuseCopies) -> PassResult:
    return without_round_trips(graph), {}


def _insert_copies(graph: Graph, asked: InsertCopies) -> PassResult:
    style = CopyStyle()
    if asked.style == "caffe2":
        style = CopyStyle(caffe2_devices.copy_op, caffe2_devices.copy_name, caffe2_devices.operand_devices)
    placed = with_copies(graph, asked.devices, default=asked.default, style=style)
    return placed.graph, {"devices": placed.devices}


def _version_names(graph: Graph, asked: VersionNames) -> PassResult:
    made = with_version_names(graph, asked.style)
    return made.graph, {"names": {f"{name}@{number}": new for (name, number), new in made.names.items()}}


def _status(graph: Graph, asked: Status) -> PassResult:
    rule: StatusRule = device_rule
    if asked.fixed is not None:
        rule = same_status({op: (sides[0], sides[1]) for op, sides in asked.fixed.items()})
    table = versions_of_graph(graph)
    found = infer_status(graph, rule, asked.known)
    return {"status": {"{}@{}".format(*table.version(v)): said for v, said in enumerate(found) if said is not None}}


def _differentiate(graph: Graph, asked: DifferentiatePass) -> PassResult:
    events: list[GradientEvent] = []
    fields = {"loss": asked.loss, "recipe": asked.recipe, "differentiate": asked.differentiate or True}
    request = parse_request({name: said for name, said in fields.items() if said is not None})
    forward = without_name_order(graph)
    made, notes = training_graph(forward, forward, request, events if asked.gradient_events else None)
    said = {"gradients": gradient_report(made, events, gradient_targets(request))} if asked.gradient_events else {}
    return with_name_order(made), {"notes": notes, **said}


def _run_again(graph: Graph, asked: RunAgain) -> PassResult:
    make: Callable[..., RecomputedGraph] = recompute_pass if asked.style == "paddle" else recompute_segments
    made = make(
        graph,
        asked.loss,
        asked.checkpoints,
        ranges=asked.segments,
        opt_out=asked.opt_out,
        unknown=asked.unknown_checkpoints,
        nested=asked.nested,
    )
    return made.graph, {
        "held": made.saved,
        "crossing": made.crossing,
        "renamed": made.renamed,
        "copied": made.copied,
        "notes": made.notes,
    }


def _seed(graph: Graph, asked: Seed) -> PassResult:
    return with_seeds(graph), {}


def _share_buffers(graph: Graph, asked: ShareBuffers) -> PassResult:
    document = shared_document(graph, share_buffers(graph, asked.keep).names)
    return load(msgspec.json.encode(document)), {"sharing": described_sharing(graph, asked.keep)}


def _expand_recurrent(graph: Graph, asked: ExpandRecurrent) -> PassResult:
    return expand_rnns(graph), {}


def _recompute_steps(graph: Graph, asked: RecomputeSteps) -> PassResult:
    made = recompute_values(graph, asked.node, asked.names)
    return made, {"recurrent": describe_recurrence(made, asked.node).as_dict()}


def _cut_over_time(graph: Graph, asked: CutOverTime) -> PassResult:
    return split_over_time(graph, asked.parts), {}


PASS_FUNCTIONS: Mapping[type[Pass], Callable[[Graph, Any], PassResult]] = {
    Rename: _rename,
    Prune: _prune,
    Extract: _extract,
    Boundary: _boundary,
    InferBindings: _infer_bindings,
    RemoveIdentities: _remove_identities,
    ReplaceByIdentity: _replace_by_identity,
    RemoveReshapes: _remove_reshapes,
    FuseCopies: _fuse_copies,
    InsertCopies: _insert_copies,
    VersionNames: _version_names,
    Status: _status,
    DifferentiatePass: _differentiate,
    RunAgain: _run_again,
    Seed: _seed,
    ShareBuffers: _share_buffers,
    ExpandRecurrent: _expand_recurrent,
    RecomputeSteps: _recompute_steps,
    CutOverTime: _cut_over_time,
}
