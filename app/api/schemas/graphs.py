"""Wire types of the analysis of a graph, and of the results of passes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.api.schemas.plans import Finding, GraphRecord, Open


class Transformed(GraphRecord):
    """Record of the graph that a pass made, with notes of the pass."""

    notes: list[str] | None = Field(None, description="decisions of the pass that the request did not specify")
    names: dict[str, str] | None = Field(None, description="version -> new name")
    devices: dict[str, str] | None = Field(None, description="name -> device that holds its final version")
    held: list[str] | None = Field(None, description="names of the values saved for the backward pass")
    crossing: list[str] | None = Field(None, description="saved values that cross segments and are no checkpoints")
    renamed: dict[str, str] | None = Field(None, description="value -> name of its recomputed copy")
    copied: list[str] | None = Field(None, description="names of the recomputed nodes")
    sharing: dict[str, Any] | None = Field(None, description="buffer sharing, as in a report")
    gradients: dict[str, Any] | None = Field(None, description="gradients and the events that produced them")
    recurrent: dict[str, Any] | None = Field(None, description="the recurrent net: links, states, saved values")


class VersionedValue(Open):
    """A value, and the version of a name that it holds."""

    value: str
    name: str
    version: int = Field(description="0: given from outside; 1: first write")


class ScopeNames(Open):
    """Names that a scoped subgraph reads from outside, writes outside, and keeps local."""

    handle: str = Field(description="unused name for the scope handle")
    bindings: dict[str, str] = Field(description="inner name -> outer name")
    inputs: list[str] = Field(description="names read from outside")
    outputs: list[str] = Field(description="names written outside")
    local: list[str] = Field(description="names that stay inside")


class QueryResult(Open):
    """Result of a query on a graph: the boundary of a subgraph, the status of values, or the names of a scope."""

    inputs: list[VersionedValue] | None = Field(None, description="values that enter the subgraph")
    outputs: list[VersionedValue] | None = Field(None, description="values that leave the subgraph")
    status: dict[str, str] | None = Field(None, description="version -> status")
    scope: ScopeNames | None = Field(None, description="names of a scoped subgraph")


class Versions(Open):
    """SSA versions of names as columns: the first five per value, the next four per node.

    Values and nodes are indices into these columns; -1 is an absent operand.
    """

    value: list[str]
    name: list[str] = Field(description="name of the value, which several nodes may write")
    version: list[int] = Field(description="version of the name; 0: given from outside, 1: first write")
    producer: list[list[int] | None] = Field(description="producing node and output slot; null: none")
    consumers: list[list[list[int]]] = Field(description="consuming nodes and input slots; captures of bodies last")
    nodes: list[str] = Field(description="names of the nodes, in order")
    inputs: list[list[int]] = Field(description="values that each node reads")
    outputs: list[list[int]] = Field(description="values that each node writes")
    overwrite_order: list[list[int]] = Field(
        description="nodes that read or write the versions that each node replaces, which these names order before it"
    )
    final: dict[str, int] = Field(description="name -> its final version")
    undefined: list[tuple[str, int]] = Field(description="versions that are read but never written")
    unread: list[tuple[str, int]] = Field(description="versions that are written but never read")
    dead: list[str] = Field(description="nodes on which no output and no side effect depends")
    gradients: list[list[tuple[str, int]]] = Field(description="pairs of a version and the version of its gradient")


class PeakHolder(Open):
    """A value that is live at the peak; steps are inclusive."""

    value: str
    bytes: int
    from_step: int
    to_step: int
    type: str | None = Field(description="dtype and shape; null: not known")
    op: str | None = Field(description="op of the node that writes it; null: no node does")
    module: str | None = Field(description="module of that node in the framework; null: not known")


class Memory(Open):
    """Memory of the graph without recomputation."""

    bytes_by_role: dict[str, int] = Field(description="role -> bytes")
    baseline: dict[str, Any]  # `Measured` of `planner.report.schema`, which OpenAPI refers to
    holders: list[PeakHolder] = Field(description="largest values that are live at the peak")
    smallest_possible_bytes: int = Field(description="proven minimum peak of any plan, in bytes")
    binding_node: str | None = Field(description="node that determines the minimum peak")
    nodes_by_phase: dict[str, int] = Field(description="phase -> number of nodes")
    ops: dict[str, int] = Field(description="op type -> number of nodes")


class LiveRanges(Open):
    """Live ranges of the values that own bytes, as columns; steps are inclusive."""

    value: list[str]
    from_step: list[int]
    to_step: list[int]
    value_bytes: list[int]
    free_after: list[tuple[str, str]] = Field(description="pairs of a value and the node after which it can be freed")


class Analysis(Open):
    """Analysis of a graph before planning."""

    name: str
    versions: Versions
    memory: Memory
    lives: LiveRanges
    lints: list[Finding] = Field(description="probable mistakes, at most ten of a kind")
    recurrent: list[dict[str, Any]] = Field(
        description="recurrent nets: links, states, values saved per step, backward pass"
    )
