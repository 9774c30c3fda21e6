"""Target runtimes: the allocator behaviour that a plan predicts.

A plan for one runtime predicts no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Runtime:
    """Allocation and launch model of one runtime."""

    name: str
    rounding_bytes: int  # every storage and workspace is rounded up to this
    takes_over: bool  # an output may overwrite an input after its last read
    returns_forward_outputs: bool  # forward outputs are returned at the end of the forward phase and stay live
    places: bool  # values are at the addresses of the plan
<<<<<<< HEAD
    decomposes: bool  # ops of domain remat and ONNX functions run as the standard ops that they are exported as
=======
    caches: bool  # PyTorch's CUDA caching allocator chooses the addresses, and reserves segments
>>>>>>> 70b10d0 (Reports for torch-eager state what PyTorch's caching allocator reserves)
    kernel_seconds: float  # added to every task: launch or dispatch
    source: str


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("arena", 1, True, False, True, False, 0.0, "our own execution: one byte array, offsets by a layout"),
        # CUDACachingAllocator.cpp: kMinBlockSize = 512. Eager kernels allocate every output.
<<<<<<< HEAD
        Runtime("torch-eager", 512, False, True, False, False, 5e-6, "PyTorch CUDA caching allocator, c10/cuda"),
        # CPUAllocator.cpp: posix_memalign of the requested size, which its profiler counts.
        Runtime("torch-eager-cpu", 1, False, True, False, False, 2e-6, "PyTorch CPU allocator, c10/core"),
        # Kernels allocate their outputs, aligned to 64 bytes (MlasGetPreferredBufferAlignment), which are freed after
        # their last use: the options of remat.ort.session leave out arena, memory pattern and memory reuse.
        Runtime("ort", 64, False, False, False, True, 3e-6, "onnxruntime CPU allocator, core/framework/allocator.cc"),
=======
        Runtime("torch-eager", 512, False, True, False, True, 5e-6, "PyTorch CUDA caching allocator, c10/cuda"),
        # CPUAllocator.cpp: posix_memalign of the requested size, which its profiler counts.
        Runtime("torch-eager-cpu", 1, False, True, False, False, 2e-6, "PyTorch CPU allocator, c10/core"),
        # BFCArena rounds to kMinAllocationSize = 256; allocation planner reuses inputs of may-inplace kernels.
        Runtime("ort", 256, True, False, False, False, 3e-6, "onnxruntime core/framework/bfc_arena.h"),
>>>>>>> 70b10d0 (Reports for torch-eager state what PyTorch's caching allocator reserves)
    )
}
#: Runtimes that fuse kernels; fused groups are not modelled yet.
FUSING_RUNTIMES = ("torch-inductor", "xla")


def runtime_named(name: str) -> Runtime:
    """Runtime by name. Raises BadRequest listing the known ones."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    found = f"{name!r}, which fuses kernels: its plans are not predicted yet" if name in FUSING_RUNTIMES else repr(name)
    raise BadRequest.one("unknown_runtime", "runtime", found, "one of " + ", ".join(RUNTIMES), "name one of these")
