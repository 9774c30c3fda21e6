"""Target runtimes: the allocator behaviour that a plan predicts.

A plan for one runtime predicts no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import BadRequest
from planner.request.field_parsers import nearest


@dataclass(frozen=True, slots=True)
class Runtime:
    """Allocation and launch model of one runtime."""

    name: str
    rounding_bytes: int  # every storage and workspace is rounded up to this
    kernel_seconds: float  # added to every task: launch or dispatch
    source: str
    takes_over: bool = False  # an output may overwrite an input after its last read
    returns_forward_outputs: bool = False  # at the end of the forward phase; they stay live
    places: bool = False  # values are at the addresses of the plan
    decomposes: bool = False  # ops of domain remat and ONNX functions run as the standard ops that they are exported as
    engines: bool = False  # copies to the host and back, and collectives, run beside compute
    caches: bool = False  # PyTorch's CUDA caching allocator chooses the addresses, and reserves segments


_ARENA = "our own execution: one byte array, offsets by a layout"
_TORCH_CUDA, _TORCH_CPU = "PyTorch CUDA caching allocator, c10/cuda", "PyTorch CPU allocator, c10/core"
_ORT = "onnxruntime CPU allocator, core/framework/allocator.cc"
RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("arena", 1, 0.0, _ARENA, takes_over=True, places=True, engines=True),
        # CUDACachingAllocator.cpp: kMinBlockSize = 512. Eager kernels allocate every output.
        Runtime("torch-eager", 512, 5e-6, _TORCH_CUDA, returns_forward_outputs=True, caches=True, engines=True),
        # CPUAllocator.cpp: posix_memalign of the requested size, which its profiler counts.
        Runtime("torch-eager-cpu", 1, 2e-6, _TORCH_CPU, returns_forward_outputs=True, engines=True),
        # Kernels allocate their outputs, aligned to 64 bytes (MlasGetPreferredBufferAlignment), which are freed after
        # their last use: the options of remat.ort.session leave out arena, memory pattern and memory reuse.
        Runtime("ort", 64, 3e-6, _ORT, decomposes=True),
    )
}
#: Runtimes that fuse kernels; fused groups are not modelled yet.
FUSING_RUNTIMES = ("torch-inductor", "xla")


def runtime_named(name: str) -> Runtime:
    """Runtime by name. Raises BadRequest listing the known ones."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    found = f"{name!r}, which fuses kernels: its plans are not predicted yet" if name in FUSING_RUNTIMES else repr(name)
    remedy = nearest(name, RUNTIMES, "name one of these")
    raise BadRequest.one("unknown_runtime", "runtime", found, "one of " + ", ".join(RUNTIMES), remedy)
