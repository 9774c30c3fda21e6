"""Passes over stored graphs by name: what each takes, and the function of the graph room it calls.

{"pass": "rename", "node": "fc1", "output": 0, "to": "h1"}        a new graph
{"pass": "boundary", "nodes": ["fc1", "relu1"]}                   an answer about the graph

Values are named as in the document; `y@2` is the second write of a name, `y@last` its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field, RootModel, TypeAdapter, ValidationError, model_validator

from app.schemas import Strict
from graph.errors import MOST_FINDINGS, Findings
from graph.ir import Graph, Node
from planner.errors import BadRequest

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Names = Annotated[list[Name], Field(max_length=1_000_000)]
Place = Annotated[int, Field(ge=0, le=2**31 - 1)]
Side = str | None


class Pass(Strict):
    """What one pass takes."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Rename(Pass):
    """Another name for one value and all that read it: by name, or where a node writes or reads it."""

    pass_: Literal["rename"] = Field(alias="pass")
    to: Name
    value: Name | None = Field(None, description="its name, or y@2 for the second write of y")
    node: Name | None = Field(None, description="instead: the node that writes or reads it")
    output: Place | None = Field(None, description="which output of the node")
    input: Place | None = Field(None, description="which input; the node must be its only reader")
    from_producer: bool = Field(False, description="rename an input where it is written, for all its readers")

    @model_validator(mode="after")
    def _one_place(self) -> Rename:
        at_node = self.node is not None and (self.output is None) != (self.input is None)
        loose = self.value is not None and self.node is None and self.output is None and self.input is None
        if not (loose or (at_node and self.value is None)):
            raise ValueError("say `value`, or `node` with `output` or with `input`")
        if self.from_producer and self.input is None:
            raise ValueError("`from_producer` goes with `input`")
        return self


class Prune(Pass):
    """Without the nodes that no output, gradient, effect or overwritten state depends on."""

    pass_: Literal["prune"] = Field(alias="pass")


class Extract(Pass):
    """The part that computes some values from others."""

    pass_: Literal["extract"] = Field(alias="pass")
    outputs: Annotated[Names, Field(min_length=1)]
    given: Names | dict[Name, Name] = Field([], description="values that become inputs; an object says their new names")
    prefix: Annotated[str, Field(max_length=4096)] = Field("", description="in front of all names that are computed")


class Boundary(Pass):
    """An answer: what enters and leaves a set of nodes."""

    pass_: Literal["boundary"] = Field(alias="pass")
    nodes: Names


class ScopedOp(Strict):
    """One op of a scope, by the names it reads and writes; what graphs inside it read counts as read."""

    inputs: Names
    outputs: Names


class InferBindings(Pass):
    """An answer: what ops in a scope of their own read from outside, hand out and keep, by lexical scope."""

    pass_: Literal["infer_bindings"] = Field(alias="pass")
    ops: Annotated[list[ScopedOp], Field(max_length=1_000_000)] = Field(description="in the order they run")
    name: Name = Field("do", description="of the scoped subgraph; its handle is named after it")


class RemoveIdentities(Pass):
    """Without nodes that show an input under its own type."""

    pass_: Literal["remove_identities"] = Field(alias="pass")


class ReplaceByIdentity(Pass):
    """Without a group of nodes whose one result is taken to be its one input."""

    pass_: Literal["replace_by_identity"] = Field(alias="pass")
    nodes: Annotated[Names, Field(min_length=1)]
    accepting: Names = Field([], description="ops, domains left out, that read a value of another shape alike")


class RemoveReshapes(Pass):
    """Without reshapes, and what computes their targets, where only ops read the result that flatten by themselves."""

    pass_: Literal["remove_reshapes"] = Field(alias="pass")
    readers: Names | None = Field(None, description="those ops, domains left out; dense ops by default")


class FuseCopies(Pass):
    """Without copies to another device that are only copied back."""

    pass_: Literal["fuse_copies"] = Field(alias="pass")


class InsertCopies(Pass):
    """With a copy wherever a node reads what lies on another device than the one it is annotated with."""

    pass_: Literal["insert_copies"] = Field(alias="pass")
    devices: dict[Name, Name] = Field({}, description="where values from outside lie, by name")
    default: Name = Field("cpu", description="for values and nodes that say nothing")
    style: Literal["remat", "caffe2"] = Field("remat", description="how copies are written and called")


class VersionNames(Pass):
    """Every name written once, with the number of its version behind it."""

    pass_: Literal["version_names"] = Field(alias="pass")
    style: Literal["all", "needed"] = Field("all", description="needed: only names that have several versions")


class Status(Pass):
    """An answer: device, layout or another status of every value, by one sweep forwards and one backwards."""

    pass_: Literal["status"] = Field(alias="pass")
    known: dict[Name, str | None] = Field({}, description="hints: value -> status")
    fixed: dict[Name, Annotated[list[Side], Field(min_length=2, max_length=2)]] | None = Field(
        None, description="op -> [status of its inputs, of its outputs]; all others have one status. Copies by default"
    )


class DifferentiatePass(Pass):
    """Followed by its backward part, and by updates where they are asked for; fields as in a request for a plan."""

    pass_: Literal["differentiate"] = Field(alias="pass")
    loss: Name | None = Field(None, description="scalar to differentiate")
    differentiate: dict[str, Any] = Field({}, description="of, with_respect_to, head_gradients, no_gradient, ...")
    recipe: dict[str, Any] | None = Field(None, description="optimizer and its state")
    gradient_events: bool = Field(False, description="also say which node makes and finalises which gradient")


class RunAgain(Pass):
    """A training graph whose forward segments run again in its backward part; an answer says what is held."""

    pass_: Literal["run_again"] = Field(alias="pass")
    loss: Name
    checkpoints: Names | None = Field(None, description="values that end segments")
    segments: Annotated[list[list[Place]], Field(max_length=100_000)] | None = Field(
        None, description="instead: half-open ranges of the forward nodes on the way to the loss"
    )
    opt_out: list[Place] = Field([], description="numbers of segments that stay as they are")
    unknown_checkpoints: Literal["warn", "error"] = Field("warn", description="checkpoints the graph does not have")
    nested: Literal["heavy", "error"] = Field("heavy", description="nested graphs in a segment are held, or refused")
    style: Literal["remat", "paddle"] = Field("remat", description="how copies are called and annotated")


class Seed(Pass):
    """With a held seed, or a stream, for every op that draws, so that it may run again."""

    pass_: Literal["seed"] = Field(alias="pass")


class ShareBuffers(Pass):
    """Under names that values take turns in; an answer lists lives and buffers."""

    pass_: Literal["share_buffers"] = Field(alias="pass")
    keep: Names = Field([], description="values that live to the end under their own names")


class ExpandRecurrent(Pass):
    """With LSTM, GRU and RNN of the standard as Scans."""

    pass_: Literal["expand_recurrent"] = Field(alias="pass")


class RecomputeSteps(Pass):
    """A differentiated graph whose recurrent net makes values of its steps again on the way back."""

    pass_: Literal["recompute_steps"] = Field(alias="pass")
    node: Name = Field(description="the net: a Scan")
    names: Names = Field([], description="names its steps write; empty: none, everything the way back reads is held")


class CutOverTime(Pass):
    """A differentiated graph whose recurrent nets are cut into parts that may run again one by one."""

    pass_: Literal["cut_over_time"] = Field(alias="pass")
    parts: Annotated[int, Field(ge=1, le=4096)] = Field(128, description="at most so many for each net")


Passes = (
    Rename | Prune | Extract | Boundary | InferBindings | RemoveIdentities | ReplaceByIdentity | RemoveReshapes
    | FuseCopies | InsertCopies | VersionNames | Status | DifferentiatePass | RunAgain | Seed | ShareBuffers
    | ExpandRecurrent | RecomputeSteps | CutOverTime
)  # fmt: skip


class Transform(RootModel[Annotated[Passes, Field(discriminator="pass_")]]):
    """One pass and what it takes."""


_READER: TypeAdapter[Transform] = TypeAdapter(Transform)
#: What a pass gives: a graph and what is said about it, or an answer.
Made = tuple[Graph, Mapping[str, Any]] | Mapping[str, Any]


def parse(asked: Any) -> Pass:
    """The pass an object asks for. Raises BadRequest with up to ten findings."""
    try:
        return _READER.validate_python(asked).root
    except ValidationError as error:
        findings = Findings()
        for fault in error.errors(include_url=False)[:MOST_FINDINGS]:
            path = ".".join(str(part) for part in fault["loc"][1:] or fault["loc"]) or "body"
            findings.add(
                "bad_field", path.replace("pass_", "pass"), repr(fault.get("input"))[:80], str(fault["msg"])[:300],
                "see the schema `transform`",
            )  # fmt: skip
        raise BadRequest(findings.kept) from None


def apply(graph: Graph, asked: Pass) -> Made:
    """What the pass makes of the graph. Raises BadGraph, NoGradient, BadRequest."""
    return TABLE[type(asked)](graph, asked)


def _rename(graph: Graph, asked: Rename) -> Made:
    from graph.surgery.rename import rename_input, rename_output, rename_value
    from graph.versions.reference import find_nodes, find_value

    if asked.node is None:
        return rename_value(graph, find_value(graph, asked.value or "", "value"), asked.to), {}
    findings = Findings()
    found = find_nodes(graph, [asked.node], "node", findings)
    findings.settle()
    if asked.output is not None:
        return rename_output(graph, found[0], asked.output, asked.to), {}
    return rename_input(graph, found[0], asked.input or 0, asked.to, from_producer=asked.from_producer), {}


def _prune(graph: Graph, asked: Prune) -> Made:
    from graph.passes import without_dead_nodes

    return without_dead_nodes(graph), {}


def _extract(graph: Graph, asked: Extract) -> Made:
    from graph.surgery.extract import extract

    return extract(graph, asked.outputs, asked.given, asked.prefix), {}


def _boundary(graph: Graph, asked: Boundary) -> Made:
    from graph.surgery.boundary import boundary
    from graph.versions.naming import versions_of_graph
    from graph.versions.reference import find_nodes

    findings = Findings()
    nodes = find_nodes(graph, asked.nodes, "nodes", findings)
    findings.settle()
    table, border = versions_of_graph(graph), boundary(graph, nodes)
    return {
        side: [{"value": graph.values[v].name, "name": table.names[v], "version": table.numbers[v]} for v in values]
        for side, values in (("inputs", border.inputs), ("outputs", border.outputs))
    }


def _infer_bindings(graph: Graph, asked: InferBindings) -> Made:
    from graph.compat.bindings import NamedOp, inferred_bindings
    from graph.versions.naming import versions_of_graph

    visible = {*versions_of_graph(graph).names, *(value.name for value in graph.values)}
    found = inferred_bindings([NamedOp(op.inputs, op.outputs) for op in asked.ops], visible, asked.name)
    names = {"inputs": found.inputs, "outputs": found.outputs, "local": found.local}
    return {"scope": {"handle": found.scope, "bindings": found.bindings, **{k: list(v) for k, v in names.items()}}}


def _remove_identities(graph: Graph, asked: RemoveIdentities) -> Made:
    from graph.passes import without_identities

    return without_identities(graph), {}


def _replace_by_identity(graph: Graph, asked: ReplaceByIdentity) -> Made:
    from graph.surgery.identity import replace_by_identity
    from graph.surgery.placement import kind
    from graph.versions.reference import find_nodes

    findings, accepting = Findings(), frozenset(asked.accepting)
    nodes = find_nodes(graph, asked.nodes, "nodes", findings)
    findings.settle()

    def accepts(node: Node) -> bool:
        return kind(node) in accepting

    return replace_by_identity(graph, nodes, accepts), {}


def _remove_reshapes(graph: Graph, asked: RemoveReshapes) -> Made:
    from graph.surgery.reshape import FLATTENING, without_reshapes

    return without_reshapes(graph, FLATTENING if asked.readers is None else frozenset(asked.readers)), {}


def _fuse_copies(graph: Graph, asked: FuseCopies) -> Made:
    from graph.surgery.copies import without_round_trips

    return without_round_trips(graph), {}


def _insert_copies(graph: Graph, asked: InsertCopies) -> Made:
    from graph.compat import caffe2_devices
    from graph.surgery.placement import Copies, with_copies

    style = Copies()
    if asked.style == "caffe2":
        style = Copies(caffe2_devices.copy_op, caffe2_devices.copy_name, caffe2_devices.sides)
    placed = with_copies(graph, asked.devices, default=asked.default, style=style)
    return placed.graph, {"devices": placed.devices}


def _version_names(graph: Graph, asked: VersionNames) -> Made:
    from graph.compat.caffe2_names import with_version_names

    made = with_version_names(graph, asked.style)
    return made.graph, {"names": {f"{name}@{number}": new for (name, number), new in made.names.items()}}


def _status(graph: Graph, asked: Status) -> Made:
    from graph.compat.caffe2_devices import device_rule
    from graph.surgery.status import Rule, infer_status, same_status
    from graph.versions.naming import versions_of_graph

    rule: Rule = device_rule
    if asked.fixed is not None:
        rule = same_status({op: (sides[0], sides[1]) for op, sides in asked.fixed.items()})
    table = versions_of_graph(graph)
    found = infer_status(graph, rule, asked.known)
    return {"status": {"{}@{}".format(*table.version(v)): said for v, said in enumerate(found) if said is not None}}


def _differentiate(graph: Graph, asked: DifferentiatePass) -> Made:
    from graph.gradient_events import GradientEvent, described
    from graph.versions.naming import with_name_order, without_name_order
    from planner.request import parse_request
    from planner.source import training_graph, wanted_of

    events: list[GradientEvent] = []
    fields = {"loss": asked.loss, "recipe": asked.recipe, "differentiate": asked.differentiate or True}
    request = parse_request({name: said for name, said in fields.items() if said is not None})
    forward = without_name_order(graph)
    made, notes = training_graph(forward, forward, request, events if asked.gradient_events else None)
    said = {"gradients": described(made, events, wanted_of(request))} if asked.gradient_events else {}
    return with_name_order(made), {"notes": notes, **said}


def _run_again(graph: Graph, asked: RunAgain) -> Made:
    from graph.compat.paddle_recompute import recompute_pass
    from graph.rerun import Rerun, run_again

    make: Callable[..., Rerun] = recompute_pass if asked.style == "paddle" else run_again
    made = make(
        graph, asked.loss, asked.checkpoints, ranges=asked.segments, opt_out=asked.opt_out,
        unknown=asked.unknown_checkpoints, nested=asked.nested,
    )  # fmt: skip
    return made.graph, {
        "held": made.held, "crossing": made.crossing, "renamed": made.renamed, "copied": made.copied,
        "notes": made.notes,
    }  # fmt: skip


def _seed(graph: Graph, asked: Seed) -> Made:
    from graph.seeds import with_seeds

    return with_seeds(graph), {}


def _share_buffers(graph: Graph, asked: ShareBuffers) -> Made:
    from graph.importers import load
    from graph.shared_program import shared_document
    from graph.sharing import described, shared

    document = shared_document(graph, shared(graph, asked.keep).names)
    return load(msgspec.json.encode(document)), {"sharing": described(graph, asked.keep)}


def _expand_recurrent(graph: Graph, asked: ExpandRecurrent) -> Made:
    from graph.recurrent import expanded

    return expanded(graph), {}


def _recompute_steps(graph: Graph, asked: RecomputeSteps) -> Made:
    from graph.recurrent import recomputed, recurrence_of

    made = recomputed(graph, asked.node, asked.names)
    return made, {"recurrent": recurrence_of(made, asked.node).as_dict()}


def _cut_over_time(graph: Graph, asked: CutOverTime) -> Made:
    from graph.recurrent import in_parts

    return in_parts(graph, asked.parts), {}


TABLE: Mapping[type[Pass], Callable[[Graph, Any], Made]] = {
    Rename: _rename, Prune: _prune, Extract: _extract, Boundary: _boundary, InferBindings: _infer_bindings,
    RemoveIdentities: _remove_identities, ReplaceByIdentity: _replace_by_identity, RemoveReshapes: _remove_reshapes,
    FuseCopies: _fuse_copies, InsertCopies: _insert_copies, VersionNames: _version_names, Status: _status,
    DifferentiatePass: _differentiate, RunAgain: _run_again, Seed: _seed, ShareBuffers: _share_buffers,
    ExpandRecurrent: _expand_recurrent, RecomputeSteps: _recompute_steps, CutOverTime: _cut_over_time,
}  # fmt: skip
