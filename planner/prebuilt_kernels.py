"""Kernels that a wheel brings in machine code, for one version of Python and numba and one processor architecture.

    remat/planner/prebuilt/cpython-311-linux-x86_64-numba0.68.1/anneal_390b86d895fa.nbc

An installation for which the wheel has none compiles its kernels at the first plan. `python -m planner.warm --prebuild`
makes the files; `REMAT_PREBUILD_KERNELS=1` makes them part of a wheel (docs/design/packaging.md).
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).with_name("prebuilt")
#: Architecture -> LLVM's name of the processor that kernels are compiled for.
PROCESSORS = {"x86_64": "x86-64-v3", "aarch64": "generic", "arm64": "generic"}
#: LLVM's names of the features of an x86-64-v3 processor (System V ABI for AMD64, section 3.1.1) that kernels may use.
FEATURES = {"x86_64": ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")}


def folder_of_target() -> str:
    """Name of the folder with kernels for this version of Python and numba, and this architecture."""
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = "unknown"
    return f"{sys.implementation.cache_tag}-{sys.platform}-{platform.machine()}-numba{numba}"


def compiler_environment() -> dict[str, str]:
    """Environment variables of numba with which kernels run on every usual processor of this architecture."""
    return {"NUMBA_CPU_NAME": PROCESSORS.get(platform.machine(), "generic"), "NUMBA_CPU_FEATURES": ""}


@cache
def folder() -> Path | None:
    """Folder with kernels that this machine can run; None if the installation has none."""
    found = FOLDER / folder_of_target()
    return found if found.is_dir() and _processor_has_features() else None


def _processor_has_features() -> bool:
    import llvmlite.binding  # heavy: a tenth of a second, not needed where nothing is prebuilt

    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name) for name in FEATURES.get(platform.machine(), ()))


def file_of(name: str) -> Path | None:
    """File of the kernel with this qualified name and digest; None if it is not prebuilt for this machine."""
    file = None if (found := folder()) is None else found / f"{name}.nbc"
    return file if file is not None and file.is_file() else None


def collect(caches: Path, into: Path) -> int:
    """Copy the kernels below `caches`, a NUMBA_CACHE_DIR, to the folder of this target in `into`; returns how many."""
    target = into / folder_of_target()
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(caches.glob("*/*.nbc"))
    for file in files:
        # numba calls it MODULE.NAME-LINE.PYTHON.NUMBER.nbc
        kernel = file.name.split(".")[1].rpartition("-")[0]
        (target / f"{kernel}.nbc").write_bytes(file.read_bytes())
    return len(files)
