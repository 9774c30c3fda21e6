"""Target runtimes: what each does with bytes that a plan must foresee.

A plan made for one runtime is a prediction for no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Runtime:
    """How one runtime allocates and runs."""

    name: str
    rounding_bytes: int  # every storage and workspace is rounded up to this
    takes_over: bool  # an output may be written over an input that dies
    returns_forward_outputs: bool  # forward outputs leave at the end of the forward phase and stay
    places: bool  # values lie at the addresses of a plan
    kernel_seconds: float  # added to every task: launch or dispatch
    source: str


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("arena", 1, True, False, True, 0.0, "our own execution: one byte array, offsets by a layout"),
        # CUDACachingAllocator.cpp: kMinBlockSize = 512. Eager kernels allocate every output.
        Runtime("torch-eager", 512, False, True, False, 5e-6, "PyTorch CUDA caching allocator, c10/cuda"),
        # BFCArena rounds to kMinAllocationSize = 256; allocation planner reuses inputs of may-inplace kernels.
        Runtime("ort", 256, True, False, False, 3e-6, "onnxruntime core/framework/bfc_arena.h"),
    )
}
#: Runtimes that fuse kernels: their tasks are fused groups, which nothing here forms yet.
FUSING_RUNTIMES = ("torch-inductor", "xla")


def runtime_named(name: str) -> Runtime:
    """The runtime called `name`. Raises BadRequest listing those there are."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    fuses = f"{name!r}, which fuses kernels: its plans are not predicted yet" if name in FUSING_RUNTIMES else repr(name)
    raise BadRequest.one("unknown_runtime", "runtime", fuses, "one of " + ", ".join(RUNTIMES), "name one of these")
