"""Wire types of what a stored graph is, and of what passes say of it; see `schemas.py`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.api.schemas.plans import Finding, GraphRecord, Open


class Transformed(GraphRecord):
    """The record of a graph that a pass made, and what the pass says besides."""

    notes: list[str] | None = Field(None, description="what differentiation did unasked")
    names: dict[str, str] | None = Field(None, description="version -> the name it has got")
    devices: dict[str, str] | None = Field(None, description="name -> where it lies at the end")


class VersionedValue(Open):
    """A value, and which write of which name it is; 0 is what was there before any."""

    value: str
    name: str
    version: int


class ScopeNames(Open):
    """What ops in a scope of their own read from outside, hand out and keep."""

    handle: str = Field(description="a name for the scope handle that nothing else has")
    bindings: dict[str, str] = Field(description="inner name -> outer name")
    inputs: list[str]
    outputs: list[str]
    local: list[str]


class Told(Open):
    """What a pass tells of a graph: its borders, the status of its values, or the names of a scope."""

    inputs: list[VersionedValue] | None = None
    outputs: list[VersionedValue] | None = None
    status: dict[str, str] | None = Field(None, description="version -> status")
    scope: ScopeNames | None = None


class Versions(Open):
    """One entry a value in the first five columns; values and nodes by place, -1 where there is none."""

    value: list[str]
    name: list[str] = Field(description="what the value is called where names are written more than once")
    version: list[int] = Field(description="which write of the name: 0 given from outside, first write 1")
    producer: list[list[int] | None] = Field(description="node and output slot")
    consumers: list[list[list[int]]] = Field(description="nodes and input slots; captures of bodies come last")
    nodes: list[str]
    inputs: list[list[int]]
    outputs: list[list[int]]
    final: dict[str, int] = Field(description="name -> the version that stands at the end")
    undefined: list[tuple[str, int]] = Field(description="read although no node writes it")
    unread: list[tuple[str, int]] = Field(description="written for nobody")
    dead: list[str] = Field(description="nodes on which no output and no effect depends")
    gradients: list[list[tuple[str, int]]] = Field(description="a version, and the version of its gradient")


class PeakHolder(Open):
    value: str
    bytes: int
    from_step: int
    to_step: int


class Memory(Open):
    """The graph as it stands."""

    bytes_by_role: dict[str, int]
    baseline: dict[str, Any]  # `Measured` of `planner.report.schema`, which OpenAPI refers to
    holders: list[PeakHolder]
    smallest_possible_bytes: int
    binding_node: str | None
    nodes_by_phase: dict[str, int]
    ops: dict[str, int]


class Lives(Open):
    """Values that have bytes of their own; steps are inclusive."""

    value: list[str]
    from_step: list[int]
    to_step: list[int]
    value_bytes: list[int]
    free_after: list[tuple[str, str]] = Field(description="value, and the node after which it may be freed")


class Analysis(Open):
    """What a graph is before anything is planned."""

    name: str
    versions: Versions
    memory: Memory
    lives: Lives
    lints: list[Finding] = Field(description="what looks like a mistake, ten of a kind at most")
    recurrent: list[dict[str, Any]] = Field(description="recurrent nets: links, states, what is held, the way back")
