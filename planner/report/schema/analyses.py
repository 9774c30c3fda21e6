"""Optional sections that analyze a plan: explanation, techniques, checkpoints, gradients, shared buffers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.common import ExecutedSection, Integer


class BufferSection(Struct):
    """A shared buffer."""

    name: str
    bytes: Integer


class GradientPairSection(Struct):
    """A value and its gradient: a name, null for none, or the names of indices and values if row-sparse."""

    value: str
    gradient: str | dict[str, str] | None
    shape: list[Integer] | None
    dtype: str | None
    finalised_by: Annotated[str | None, Meta(description="last node that contributes to the gradient")]


class GradientReportSection(Struct):
    """Gradients, and the events that produced them: "added" for a node, "finalised" for a complete gradient."""

    pairs: list[GradientPairSection]
    events: Annotated[list[dict[str, Any]], Meta(description="events, in order")]


class SharingSection(Struct):
    """Buffer sharing; columns have one entry per value, and steps are inclusive."""

    bytes: Annotated[Integer, Meta(description="size of all shared buffers, in bytes")]
    separate_bytes: Annotated[Integer, Meta(description="size of all values without sharing, in bytes")]
    bound_bytes: Annotated[Integer, Meta(description="lower bound on the size of all buffers, in bytes")]
    peak_node: Annotated[str | None, Meta(description="node at which the most bytes are live")]
    buffers: list[BufferSection]
    value: list[str]
    buffer: Annotated[list[str], Meta(description="name of the buffer of each value")]
    from_step: list[Integer]
    to_step: list[Integer]
    value_bytes: list[Integer]
    free_after: Annotated[
        list[tuple[str, str]], Meta(description="pairs of a value and the node after which it can be freed")
    ]


class CheckpointSetSection(Struct):
    """A set of checkpoints and the plan it leads to."""

    checkpoints: list[str]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]


class CheckpointWorthSection(Struct):
    """Effect of adding or dropping one checkpoint."""

    value: str
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_bytes_more: Annotated[Integer, Meta(description="peak minus that of the given set, in bytes")]


class CheckpointAdviceSection(Struct):
    """Evaluation of the given checkpoints."""

    given: CheckpointSetSection
    best: Annotated[CheckpointSetSection, Meta(description="best set found of the same size")]
    dropping: Annotated[list[CheckpointWorthSection], Meta(description="effect of dropping each checkpoint")]
    adding: Annotated[list[CheckpointWorthSection], Meta(description="effect of adding a checkpoint, the ten best")]
    sets: Annotated[Integer, Meta(description="number of sets evaluated")]
    complete: Annotated[bool, Meta(description="whether every addition and every exchange of one was evaluated")]
    all_tried: Annotated[bool, Meta(description="whether all sets of this size were evaluated")]


class BindingSection(Struct):
    """Node that determines the lower bound on the peak."""

    node: Annotated[str | None, Meta(description="name of the node; null: bytes live at the end determine it")]
    bytes: Annotated[Integer, Meta(description="lower bound on the peak, in bytes")]
    next_node: Annotated[str | None, Meta(description="node that determines the bound without this node")]
    next_bytes: Annotated[Integer, Meta(description="lower bound on the peak without this node, in bytes")]


class LeverSection(Struct):
    """Plan after one change of the graph or the request."""

    lever: Annotated[str, Meta(description="technique")]
    parts: Annotated[Integer, Meta(description="number of micro-batches or loss chunks")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    seconds: Annotated[float, Meta(description="time of one training step with all its micro-batches, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the requested model's baseline time")]
    fits: Annotated[bool, Meta(description="whether the plan is within the budget")]
    executed: Annotated[
        ExecutedSection, Meta(description="comparison of loss and gradients with the unchanged training step")
    ]
    request: Annotated[dict[str, Any], Meta(description="request fields that select the technique")]
    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(description="bytes that decide whether the plan fits: with addresses, where the runtime uses them"),
    ] = UNSET
    offloaded: Annotated[list[str] | UnsetType, Meta(description="values copied to the host and back")] = UNSET


class LeverLeftOutSection(Struct):
    """A technique that was not evaluated."""

    lever: Annotated[str, Meta(description="technique")]
    why: Annotated[str, Meta(description="reason")]


class AdviceSection(Struct):
    """Other techniques that lower the peak."""

    binding: BindingSection
    levers: list[LeverSection]
    left_out: list[LeverLeftOutSection]


class IfKeptSection(Struct):
    """The plan without one recomputation."""

    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    fits: Annotated[
        bool | None,
        Meta(
            description="whether the plan is within the budget, with addresses found quickly if the runtime uses them; "
            "null: its peak is, addresses were not searched"
        ),
    ]


class RecomputedSection(Struct):
    """Benefit and cost of the recomputations of one node."""

    node: str
    runs: Annotated[Integer, Meta(description="number of runs")]
    freed_bytes: Annotated[Integer, Meta(description="bytes freed between runs, summed over all recomputations")]
    byte_steps: Annotated[Integer, Meta(description="freed bytes times the steps for which they are freed")]
    seconds: Annotated[float, Meta(description="extra time in seconds")]
    if_kept: Annotated[IfKeptSection | None, Meta(description="plan without these recomputations; null: not evaluated")]


class HeldSection(Struct):
    """A value that is live at the peak; steps are inclusive."""

    value: str
    bytes: Integer
    from_step: Integer
    to_step: Integer


class ExplainSection(Struct):
    """Recomputed nodes, the limiting node, and the values that are live at the peaks."""

    recomputed: list[RecomputedSection]
    binding: BindingSection
    holders: Annotated[list[HeldSection], Meta(description="largest values live at the peak of the plan")]
    baseline_holders: Annotated[list[HeldSection], Meta(description="largest values live at the peak of the baseline")]
