"""The plan and what it is compared with: its bound, copies, collectives, and MXNet mirroring."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.common import Integer, PeakBySection, Run


class ReferenceSection(Struct):
    """MXNet mirroring on the same graph, for comparison."""

    planner: str
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]


class BoundSection(Struct):
    """Proven lower bounds on time and peak."""

    seconds: Annotated[float, Meta(description="lower bound on the time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="lower bound on the overhead, as a fraction")]
    peak_bytes: Annotated[Integer, Meta(description="lower bound on the peak of any plan, in bytes")]
    kind: Annotated[str, Meta(description="algorithm that proved the bound on time")]
    order: Annotated[str, Meta(description="free: valid for any order of first runs; given: for that of the document")]
    proof: Annotated[
        str, Meta(description="certified: the verifier accepted all claims; solver: cancelled before that")
    ]
    certificate: Annotated[
        dict[str, Any], Meta(description="format and claims, checked by `remat verify --certificate`")
    ] = {}
    covers: Annotated[
        Literal["compute"] | UnsetType,
        Meta(description="present with copies: the bound is on the sum of compute, not on waiting for copies"),
    ] = UNSET


class BodyPlanSection(Struct):
    """Selected alternative of a forward node with bodies: the values saved for its backward node."""

    forward: Annotated[str, Meta(description="name of the forward node")]
    backward: Annotated[str, Meta(description="name of the backward node")]
    alternative: Annotated[Integer, Meta(description="number of the alternative; 0: the graph unchanged")]
    of: Annotated[Integer, Meta(description="number of alternatives")]
    saves: Annotated[list[str], Meta(description="names of the saved values")]
    saved_bytes: Annotated[Integer, Meta(description="bytes saved by all iterations")]


class PlanSection(Struct):
    """Execution order with recomputation, its memory and its time."""

    status: Annotated[
        Literal["proven", "found", "over_budget"],
        Meta(description="proven: no better plan exists; over_budget: no plan within the budget was found"),
    ]
    planner: Annotated[str, Meta(description="planner that found the plan")]
    seed: Integer
    reproducible: Annotated[bool, Meta(description="whether the same request gives the same plan, byte for byte")]
    stopped: Annotated[bool, Meta(description="whether the search was cancelled")]
    budget_bytes: Annotated[Integer | None, Meta(description="budget in bytes; null: the goal is max_overhead")]
    max_overhead: Annotated[float | None, Meta(description="overhead limit, as a fraction; null: the goal is a budget")]
    counts: Annotated[str, Meta(description="bytes that count: everything or activations")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_by: PeakBySection
    arena_bytes: Annotated[
        Integer | None, Meta(description="size of the arena after layout, in bytes; null: no layout")
    ]
    saved_bytes: Annotated[Integer, Meta(description="needed_bytes of the baseline minus those of the plan")]
    saved: Annotated[float, Meta(description="saved_bytes as a fraction of the needed_bytes of the baseline")]
    bound: BoundSection
    gap: Annotated[
        float | None,
        Meta(
            description="overhead minus its lower bound; for peak goals, peak over its lower bound minus 1; null: over "
            "the budget"
        ),
    ]
    smallest_budget_bytes: Annotated[
        Integer | None, Meta(description="smallest budget reached, in bytes, if over budget or for the lowest peak")
    ]
    smallest_budget_proven: Annotated[bool, Meta(description="whether no smaller budget can be reached")]
    binding_node: Annotated[str | None, Meta(description="node that determines the lower bound on the peak")]
    order: Annotated[list[Run], Meta(description="execution order: name of the node and number of its run, from 0")]
    kept: Annotated[list[str], Meta(description="forward values that the backward pass reads from their first run")]
    recomputed: Annotated[list[str], Meta(description="names of the nodes that run more than once")]
    choices: Annotated[list[BodyPlanSection], Meta(description="selected alternatives of nodes with bodies")]
    offloaded: Annotated[list[str], Meta(description="values copied to the host and back")]
    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(description="memory needed, in bytes: the arena if the runtime uses the planned addresses, else the peak"),
    ] = UNSET
    within_budget: Annotated[
        bool | UnsetType | None,
        Meta(description="whether needed_bytes is within the budget, and copies within host_memory; null: no budget"),
    ] = UNSET


class CopiesSection(Struct):
    """Copies to host memory and back, which run beside compute."""

    compute_seconds: Annotated[float, Meta(description="time of all nodes but copies, in seconds")]
    waiting_seconds: Annotated[float, Meta(description="time of the step in which no node computes, in seconds")]
    to_host_bytes: Annotated[Integer, Meta(description="bytes copied to the host")]
    from_host_bytes: Annotated[Integer, Meta(description="bytes copied back")]
    host_peak_bytes: Annotated[Integer, Meta(description="most bytes in host memory at once")]
    host_arena_bytes: Annotated[Integer | None, Meta(description="size of the arena in host memory; null: no layout")]


class OverlapSection(Struct):
    """Collectives that run beside compute."""

    communication_seconds: Annotated[float, Meta(description="time of all collectives, in seconds")]
    waiting_seconds: Annotated[float, Meta(description="time of the step in which no node computes, in seconds")]
    baseline_waiting_seconds: Annotated[float, Meta(description="the same of the step without a plan")]
