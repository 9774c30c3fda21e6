"""Wire types of measurements: steps that were run under a plan, and memory snapshots."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.schemas.plans import Open, Strict

Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=-1, le=1e9, allow_inf_nan=False)]
StandardError = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=200)]


class MeasuredSteps(Strict):
    """Figures of training steps of one kind, measured and predicted."""

    peak_bytes: Bytes = Field(description="largest number of bytes allocated at once, parameters and inputs included")
    requested_bytes: Bytes | None = Field(description="the same before rounding; null: not counted")
    seconds: Seconds = Field(description="median time of a step, in seconds")
    predicted_peak_bytes: Bytes
    predicted_seconds: Seconds


class StepMeasurement(Strict):
    """Steps without and with a plan, from `remat measure`."""

    format: Literal["remat-measurement/1"]
    model: Text
    device: Text = Field(description="cpu, or the name of the GPU")
    torch: Text = Field(description="version of PyTorch")
    counter: Text = Field(description="what counted the bytes")
    steps: Annotated[int, Field(ge=1, le=10**6)] = Field(description="timed steps with the plan")
    status: Literal["proven", "found", "over_budget"]
    budget_bytes: Bytes | None
    baseline: MeasuredSteps = Field(description="without a plan")
    plan: MeasuredSteps = Field(description="with the plan")
    overhead: Share = Field(
        description="measured extra time as a fraction of the time without a plan: the median over the steps with the "
        "plan, each beside the steps without it before and after it"
    )
    overhead_error: StandardError | None = Field(
        default=None, description="standard error of `overhead`, in the same unit; null: not known"
    )
    predicted_overhead: Share


class MemoryCurve(Open):
    """Bytes allocated over time; each point is the largest of its part of the events."""

    time_us: list[float] = Field(description="microseconds since the first event")
    bytes: list[int]


class SnapshotMeasurement(Open):
    """Memory over time, from a memory snapshot of PyTorch."""

    format: Literal["remat-snapshot/1"]
    device: str
    events: int = Field(description="number of allocations and releases")
    base_bytes: int = Field(description="bytes allocated before the recording began")
    peak_bytes: int
    seconds: float = Field(description="time from the first event to the last")
    curve: MemoryCurve


class Measurement(Open):
    """A measurement of a plan; it has `step` or `snapshot`, as its kind says."""

    id: str
    plan: str = Field(description="path of the plan")
    kind: Literal["step", "snapshot"]
    created_at: str = Field(description="ISO 8601 time")
    step: StepMeasurement | None = None
    snapshot: SnapshotMeasurement | None = None


class Measurements(Open):
    """Measurements of a plan, newest first."""

    measurements: list[Measurement]
