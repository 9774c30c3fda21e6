"""Wire types of passes over stored graphs; `app.models.transforms` runs them.

{"pass": "rename", "node": "fc1", "output": 0, "to": "h1"}        a new graph
{"pass": "boundary", "nodes": ["fc1", "relu1"]}                   a query about the graph

Values are named as in the document; `y@2` is the second write of a name, `y@last` its last one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, RootModel, model_validator

from app.api.schemas.plans import Strict

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Names = Annotated[list[Name], Field(max_length=1_000_000)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Side = str | None


class Pass(Strict):
    """Base class: fields of one pass."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Rename(Pass):
    """Rename a value, identified by its name or by an output or input of a node."""

    pass_: Literal["rename"] = Field(alias="pass")
    to: Name = Field(description="new name")
    value: Name | None = Field(None, description="name of the value; y@2: second write of y")
    node: Name | None = Field(None, description="instead of value: the node that writes or reads it")
    output: Index | None = Field(None, description="output slot of the node")
    input: Index | None = Field(None, description="input slot of the node, which must be the only reader")
    from_producer: bool = Field(False, description="rename an input at its producer, for all readers")

    @model_validator(mode="after")
    def _one_place(self) -> Rename:
        at_node = self.node is not None and (self.output is None) != (self.input is None)
        loose = self.value is not None and self.node is None and self.output is None and self.input is None
        if not (loose or (at_node and self.value is None)):
            raise ValueError("set either `value`, or `node` with `output` or `input`")
        if self.from_producer and self.input is None:
            raise ValueError("`from_producer` requires `input`")
        return self


class Prune(Pass):
    """Remove nodes on which no output, gradient, side effect or overwritten state depends."""

    pass_: Literal["prune"] = Field(alias="pass")


class Extract(Pass):
    """Extract the subgraph that computes some values from others."""

    pass_: Literal["extract"] = Field(alias="pass")
    outputs: Annotated[Names, Field(min_length=1)] = Field(description="values to compute")
    given: Names | dict[Name, Name] = Field(
        [], description="values that become inputs; as an object: value -> new name"
    )
    prefix: Annotated[str, Field(max_length=4096)] = Field("", description="prefix of the names of computed values")


class Boundary(Pass):
    """Query: the values that enter and leave a set of nodes."""

    pass_: Literal["boundary"] = Field(alias="pass")
    nodes: Names = Field(description="names of the nodes")


class ScopedOp(Strict):
    """Names that one op of a scope reads and writes; reads of its bodies included."""

    inputs: Names = Field(description="names it reads")
    outputs: Names = Field(description="names it writes")


class InferBindings(Pass):
    """Query: names that ops in a nested lexical scope read from outside, write outside, and keep local."""

    pass_: Literal["infer_bindings"] = Field(alias="pass")
    ops: Annotated[list[ScopedOp], Field(max_length=1_000_000)] = Field(
        description="ops of the scope, in execution order"
    )
    name: Name = Field("do", description="name of the scoped subgraph, from which the name of its handle is derived")


class RemoveIdentities(Pass):
    """Remove nodes that return an input unchanged, with its type."""

    pass_: Literal["remove_identities"] = Field(alias="pass")


class ReplaceByIdentity(Pass):
    """Remove a group of nodes; readers of its only result read its only input instead."""

    pass_: Literal["replace_by_identity"] = Field(alias="pass")
    nodes: Annotated[Names, Field(min_length=1)] = Field(description="names of the nodes in the group")
    accepting: Names = Field([], description="op types, without domain, that accept an input of another shape")


class RemoveReshapes(Pass):
    """Remove reshapes, and the computation of their shapes, if all readers flatten their input themselves."""

    pass_: Literal["remove_reshapes"] = Field(alias="pass")
    readers: Names | None = Field(
        None, description="op types, without domain, that flatten their input; default: dense layers"
    )


class FuseCopies(Pass):
    """Remove copies to another device that are only copied back."""

    pass_: Literal["fuse_copies"] = Field(alias="pass")


class InsertCopies(Pass):
    """Insert a copy wherever a node reads a value from a device other than its own."""

    pass_: Literal["insert_copies"] = Field(alias="pass")
    devices: dict[Name, Name] = Field({}, description="input or parameter -> device")
    default: Name = Field("cpu", description="device of nodes and values without one")
    style: Literal["remat", "caffe2"] = Field("remat", description="op types and names of copies")


class VersionNames(Pass):
    """Make every name be written once, by appending version numbers."""

    pass_: Literal["version_names"] = Field(alias="pass")
    style: Literal["all", "needed"] = Field(
        "all", description="names to number; needed: only names with several versions"
    )


class Status(Pass):
    """Query: device, layout or another status of every value, propagated forward and backward once."""

    pass_: Literal["status"] = Field(alias="pass")
    known: dict[Name, str | None] = Field({}, description="value -> known status")
    fixed: dict[Name, Annotated[list[Side], Field(min_length=2, max_length=2)]] | None = Field(
        None, description="op type -> [status of inputs, status of outputs]; other ops keep one; default: device copies"
    )


class DifferentiatePass(Pass):
    """Append the backward pass, and optionally the optimizer; fields as in a plan request."""

    pass_: Literal["differentiate"] = Field(alias="pass")
    loss: Name | None = Field(None, description="scalar to differentiate")
    differentiate: dict[str, Any] = Field(
        {}, description="options of differentiation: of, with_respect_to, head_gradients, no_gradient, ..."
    )
    recipe: dict[str, Any] | None = Field(None, description="optimizer and its state; default: none")
    gradient_events: bool = Field(False, description="report which node produces and finalizes each gradient")


class RecomputeSegments(Pass):
    """Recompute forward segments of a training graph in its backward pass; the response lists the saved values."""

    pass_: Literal["run_again"] = Field(alias="pass")
    loss: Name = Field(description="scalar that was differentiated")
    checkpoints: Names | None = Field(None, description="values that end segments")
    segments: Annotated[list[list[Index]], Field(max_length=100_000)] | None = Field(
        None, description="instead of checkpoints: half-open ranges of the forward nodes that lead to the loss"
    )
    opt_out: list[Index] = Field([], description="indices of segments that are not recomputed")
    unknown_checkpoints: Literal["warn", "error"] = Field(
        "warn", description="reaction to checkpoints that the graph lacks"
    )
    nested: Literal["heavy", "error"] = Field(
        "heavy", description="nodes with bodies in a segment; heavy: save their outputs, error: reject"
    )
    style: Literal["remat", "paddle"] = Field("remat", description="names and annotations of recomputed nodes")


class Seed(Pass):
    """Give every random op a saved seed or a stream, so that recomputation draws the same numbers."""

    pass_: Literal["seed"] = Field(alias="pass")


class ShareBuffers(Pass):
    """Assign values with disjoint lifetimes to shared names; the response lists live ranges and buffers."""

    pass_: Literal["share_buffers"] = Field(alias="pass")
    keep: Names = Field([], description="values that keep their own names and live to the end")


class ExpandRecurrent(Pass):
    """Expand the LSTM, GRU and RNN ops of ONNX into Scan."""

    pass_: Literal["expand_recurrent"] = Field(alias="pass")


class RecomputeSteps(Pass):
    """Recompute step values of a recurrent net of a differentiated graph in its backward pass."""

    pass_: Literal["recompute_steps"] = Field(alias="pass")
    node: Name = Field(description="name of the Scan node")
    names: Names = Field(
        [], description="names of step values to recompute; empty: save all values that the backward pass reads"
    )


class SplitOverTime(Pass):
    """Split recurrent nets of a differentiated graph along time into parts that can be recomputed separately."""

    pass_: Literal["cut_over_time"] = Field(alias="pass")
    parts: Annotated[int, Field(ge=1, le=4096)] = Field(128, description="maximum number of parts per net")


Passes = (
    Rename
    | Prune
    | Extract
    | Boundary
    | InferBindings
    | RemoveIdentities
    | ReplaceByIdentity
    | RemoveReshapes
    | FuseCopies
    | InsertCopies
    | VersionNames
    | Status
    | DifferentiatePass
    | RecomputeSegments
    | Seed
    | ShareBuffers
    | ExpandRecurrent
    | RecomputeSteps
    | SplitOverTime
)


class Transform(RootModel[Annotated[Passes, Field(discriminator="pass_")]]):
    """One pass and its fields."""
