"""Model, baseline and execution check: sections of all documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Run = tuple[str, Integer]  # node, and which run of it
Device = str | dict[str, Any]  # name of a profile, or the profile


class PeakBySection(Struct):
    """Bytes of the peak step by use."""

    parameters: Integer
    gradients: Integer
    optimizer: Integer
    activations: Integer
    workspace: Integer
    reserve: Integer


class MeasuredSection(Struct):
    """Peak and time of one execution order."""

    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    peak_by: PeakBySection


class BaselineSection(MeasuredSection):
    """The graph without recomputation."""

    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(
            description="bytes that budgets in percent and savings refer to: the peak, with sizes rounded to the "
            "alignment of addresses if the runtime uses those"
        ),
    ] = UNSET


class ModelInputSection(Struct):
    """An input of the planned graph."""

    name: Annotated[str, Meta(description="name of the value")]
    dtype: Annotated[str | None, Meta(description="element type; null: only the size in bytes is known")]
    shape: Annotated[list[Integer] | None, Meta(description="shape; null: only the size in bytes is known")]


class ModelSection(Struct):
    """Identity, size and inputs of the planned graph."""

    name: Annotated[str, Meta(description="name of the model: as given, that of its file, or that of the graph")]
    hash: Annotated[str, Meta(description="hash of the graph; a name given to the model does not change it")]
    nodes: Annotated[Integer, Meta(description="number of nodes")]
    values: Annotated[Integer, Meta(description="number of values")]
    inputs: Annotated[list[ModelInputSection], Meta(description="the first 16 inputs")]
    batch: Annotated[Integer | None, Meta(description="leading length that all inputs share; null: there is none")]
    graph_name: Annotated[
        str | UnsetType, Meta(description="name of the graph in its file, if the model has another")
    ] = UNSET


class GradientCheckSection(Struct):
    """Gradients of the training graph beside finite differences of its forward pass in float64."""

    status: Literal["agree", "different", "not compared"]
    directions: Annotated[Integer, Meta(description="random directions over all parameters")]
    error: Annotated[
        float | None, Meta(description="largest error relative to the 2-norm of gradient times direction; one digit")
    ]
    tolerance: Annotated[float | None, Meta(description="largest relative error explained by rounding")]
    why: Annotated[str, Meta(description="what differs, or why nothing was compared")]


class ExecutedSection(Struct):
    """Execution check: both graphs are executed and their results compared."""

    status: Literal["equal", "different", "not executed"]
    how: Annotated[str, Meta(description="method, such as arena, and a reduced batch size if any")]
    why: Annotated[str, Meta(description="reason for the status")]
    compared: Annotated[str | UnsetType, Meta(description="what was compared with what; empty: not executed")] = UNSET
    gradients: Annotated[
        GradientCheckSection | UnsetType | None,
        Meta(description="check of the gradients themselves, without effect on the status; null: not run"),
    ] = UNSET
    peak_bytes: Annotated[
        Integer | UnsetType | None,
        Meta(description="measured peak in bytes; null: not executed at the full batch size"),
    ] = UNSET
