"""Passes over stored graphs, by name: request record -> function of `graph`.

{"pass": "rename", "node": "fc1", "output": 0, "to": "h1"}        a new graph
{"pass": "boundary", "nodes": ["fc1", "relu1"]}                   a query about the graph

Values are named as in the document; `y@2` is the second write of a name, `y@last` its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError

from app.api.schemas.transforms import (
    Boundary,
    DifferentiatePass,
    ExpandRecurrent,
    Extract,
    FuseCopies,
    InferBindings,
    InsertCopies,
    Pass,
    Prune,
    RecomputeSegments,
    RecomputeSteps,
    RemoveIdentities,
    RemoveReshapes,
    Rename,
    ReplaceByIdentity,
    Seed,
    ShareBuffers,
    SplitOverTime,
    Status,
    Transform,
    VersionNames,
)
from app.errors import expected_by
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
from graph.ssa.naming import versions_of_graph
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
#: Result of a pass: a graph and notes on it; result of a query: an object.
PassResult = tuple[Graph, Mapping[str, Any]] | Mapping[str, Any]


def parse_pass(document: Any) -> Pass:
    """The pass that a JSON object describes. Raises BadRequest with up to ten findings."""
    try:
        return _READER.validate_python(document).root
    except ValidationError as error:
        findings = Findings()
        for fault in error.errors(include_url=False)[:MAX_FINDINGS]:
            is_of_pass = fault["type"].startswith("union_tag")  # its location is the whole object
            place = ("pass",) if is_of_pass else fault["loc"][1:] or fault["loc"]
            given = document.get("pass") if is_of_pass else fault.get("input")
            is_missing = fault["type"] in ("missing", "union_tag_not_found")
            findings.add(
                "bad_field",
                ".".join(map(str, place)).replace("pass_", "pass") or "body",
                "nothing" if is_missing else repr(given)[:80],
                ", ".join(map(repr, PASS_NAMES)) if is_of_pass else expected_by(fault["msg"]),
                "see the schema `transform`",
            )
        raise BadRequest(findings.kept) from None


def apply_pass(graph: Graph, request: Pass) -> PassResult:
    """Result of a pass on a graph. Raises BadGraph, NoGradient, BadRequest."""
    return PASS_FUNCTIONS[type(request)](graph, request)


def _rename(graph: Graph, request: Rename) -> PassResult:
    if request.node is None:
        return rename_value(graph, find_value(graph, request.value or "", "value"), request.to), {}
    findings = Findings()
    found = find_nodes(graph, [request.node], "node", findings)
    findings.settle()
    if request.output is not None:
        return rename_output(graph, found[0], request.output, request.to), {}
    return rename_input(graph, found[0], request.input or 0, request.to, from_producer=request.from_producer), {}


def _prune(graph: Graph, request: Prune) -> PassResult:
    return without_dead_nodes(graph), {}


def _extract(graph: Graph, request: Extract) -> PassResult:
    return extract(graph, request.outputs, request.given, request.prefix), {}


def _boundary(graph: Graph, request: Boundary) -> PassResult:
    findings = Findings()
    nodes = find_nodes(graph, request.nodes, "nodes", findings)
    findings.settle()
    table, border = versions_of_graph(graph), boundary(graph, nodes)
    return {
        side: [{"value": graph.values[v].name, "name": table.names[v], "version": table.numbers[v]} for v in values]
        for side, values in (("inputs", border.inputs), ("outputs", border.outputs))
    }


def _infer_bindings(graph: Graph, request: InferBindings) -> PassResult:
    visible = {*versions_of_graph(graph).names, *(value.name for value in graph.values)}
    found = inferred_bindings([NamedOp(op.inputs, op.outputs) for op in request.ops], visible, request.name)
    names = {"inputs": found.inputs, "outputs": found.outputs, "local": found.local}
    return {"scope": {"handle": found.scope, "bindings": found.bindings, **{k: list(v) for k, v in names.items()}}}


def _remove_identities(graph: Graph, request: RemoveIdentities) -> PassResult:
    return without_identities(graph), {}


def _replace_by_identity(graph: Graph, request: ReplaceByIdentity) -> PassResult:
    findings, accepting = Findings(), frozenset(request.accepting)
    nodes = find_nodes(graph, request.nodes, "nodes", findings)
    findings.settle()

    def accepts(node: Node) -> bool:
        return base_op(node) in accepting

    return replace_by_identity(graph, nodes, accepts), {}


def _remove_reshapes(graph: Graph, request: RemoveReshapes) -> PassResult:
    return without_reshapes(graph, FLATTENING if request.readers is None else frozenset(request.readers)), {}


def _fuse_copies(graph: Graph, request: FuseCopies) -> PassResult:
    return without_round_trips(graph), {}


def _insert_copies(graph: Graph, request: InsertCopies) -> PassResult:
    style = CopyStyle()
    if request.style == "caffe2":
        style = CopyStyle(caffe2_devices.copy_op, caffe2_devices.copy_name, caffe2_devices.operand_devices)
    placed = with_copies(graph, request.devices, default=request.default, style=style)
    return placed.graph, {"devices": placed.devices}


def _version_names(graph: Graph, request: VersionNames) -> PassResult:
    made = with_version_names(graph, request.style)
    return made.graph, {"names": {f"{name}@{number}": new for (name, number), new in made.names.items()}}


def _status(graph: Graph, request: Status) -> PassResult:
    rule: StatusRule = device_rule
    if request.fixed is not None:
        rule = same_status({op: (sides[0], sides[1]) for op, sides in request.fixed.items()})
    table = versions_of_graph(graph)
    inferred = ((v, status) for v, status in enumerate(infer_status(graph, rule, request.known)) if status is not None)
    return {"status": {"{}@{}".format(*table.version(v)): status for v, status in inferred}}


def _differentiate(graph: Graph, request: DifferentiatePass) -> PassResult:
    events: list[GradientEvent] = []
    fields = {"loss": request.loss, "recipe": request.recipe, "differentiate": request.differentiate or True}
    parsed = parse_request({name: field for name, field in fields.items() if field is not None})
    made, notes = training_graph(graph, graph, parsed, events if request.gradient_events else None)
    if not request.gradient_events:
        return made, {"notes": notes}
    gradients = gradient_report(made, events, gradient_targets(parsed))
    return made, {"notes": notes, "gradients": gradients}


def _recompute_segments(graph: Graph, request: RecomputeSegments) -> PassResult:
    make: Callable[..., RecomputedGraph] = recompute_pass if request.style == "paddle" else recompute_segments
    made = make(
        graph,
        request.loss,
        request.checkpoints,
        ranges=request.segments,
        opt_out=request.opt_out,
        unknown=request.unknown_checkpoints,
        nested=request.nested,
    )
    return made.graph, {
        "held": made.saved,
        "crossing": made.crossing,
        "renamed": made.renamed,
        "copied": made.copied,
        "notes": made.notes,
    }


def _seed(graph: Graph, request: Seed) -> PassResult:
    return with_seeds(graph), {}


def _share_buffers(graph: Graph, request: ShareBuffers) -> PassResult:
    document = shared_document(graph, share_buffers(graph, request.keep).names)
    return load(msgspec.json.encode(document)), {"sharing": described_sharing(graph, request.keep)}


def _expand_recurrent(graph: Graph, request: ExpandRecurrent) -> PassResult:
    return expand_rnns(graph), {}


def _recompute_steps(graph: Graph, request: RecomputeSteps) -> PassResult:
    made = recompute_values(graph, request.node, request.names)
    return made, {"recurrent": describe_recurrence(made, request.node).as_dict()}


def _split_over_time(graph: Graph, request: SplitOverTime) -> PassResult:
    return split_over_time(graph, request.parts), {}


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
    RecomputeSegments: _recompute_segments,
    Seed: _seed,
    ShareBuffers: _share_buffers,
    ExpandRecurrent: _expand_recurrent,
    RecomputeSteps: _recompute_steps,
    SplitOverTime: _split_over_time,
}
PASS_NAMES = tuple(get_args(kind.model_fields["pass_"].annotation)[0] for kind in PASS_FUNCTIONS)
