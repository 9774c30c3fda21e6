"""Passes over stored graphs as clients write them; `app.models.transforms` runs them.

{"pass": "rename", "node": "fc1", "output": 0, "to": "h1"}        a new graph
{"pass": "boundary", "nodes": ["fc1", "relu1"]}                   an answer about the graph

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
    """What one pass takes."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


class Rename(Pass):
    """Another name for one value and all that read it: by name, or where a node writes or reads it."""

    pass_: Literal["rename"] = Field(alias="pass")
    to: Name
    value: Name | None = Field(None, description="its name, or y@2 for the second write of y")
    node: Name | None = Field(None, description="instead: the node that writes or reads it")
    output: Index | None = Field(None, description="which output of the node")
    input: Index | None = Field(None, description="which input; the node must be its only reader")
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
    segments: Annotated[list[list[Index]], Field(max_length=100_000)] | None = Field(
        None, description="instead: half-open ranges of the forward nodes on the way to the loss"
    )
    opt_out: list[Index] = Field([], description="numbers of segments that stay as they are")
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
    | RunAgain
    | Seed
    | ShareBuffers
    | ExpandRecurrent
    | RecomputeSteps
    | CutOverTime
)


class Transform(RootModel[Annotated[Passes, Field(discriminator="pass_")]]):
    """One pass and what it takes."""
