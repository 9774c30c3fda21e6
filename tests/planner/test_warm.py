"""Kernels are compiled into the disk cache ahead of the first plan, by one process per core."""

from __future__ import annotations

import dis
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner import warm
from planner.problem import jit, liveness_kernels


def test_processes_of_any_folder_compile_sets_into_the_disk_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = liveness_kernels.KERNELS
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warm.os, "cpu_count", lambda: 2)
    assert not smallest.is_on_disk()
    monkeypatch.chdir(tmp_path)
    warm.compile_to_disk([smallest, smallest])
    assert smallest.is_on_disk()


def test_the_largest_set_is_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def run(command: list[str], **options: Any) -> None:
        numbers.append(int(command[-1]))

    monkeypatch.setattr(warm.subprocess, "run", run)
    monkeypatch.setattr(warm.os, "cpu_count", lambda: 2)
    warm.compile_to_disk(warm.KERNEL_SETS)
    sizes = [len(warm.KERNEL_SETS[number].functions) for number in numbers]
    assert sizes[0] == max(sizes) and sorted(numbers) == list(range(len(warm.KERNEL_SETS)))


@pytest.mark.parametrize("cores", [1, 2])
def test_a_set_whose_process_fails_is_compiled_by_the_caller(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[jit.Kernels] = []
    started: list[int] = []

    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(int(command[-1]))
        return subprocess.CompletedProcess(command, 1)

    def compile_(kernels: jit.Kernels) -> dict[str, jit.Kernel]:
        compiled.append(kernels)
        return kernels.interpreted()

    monkeypatch.setattr(warm.subprocess, "run", fail)
    monkeypatch.setattr(warm.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(jit, "_compiled", {})
    monkeypatch.setattr(jit.Kernels, "is_on_disk", lambda kernels: False)
    monkeypatch.setattr(jit.Kernels, "_compile", compile_)
    warm.ready(lambda: None)
    assert compiled == list(warm.KERNEL_SETS)
    assert len(started) == (0 if cores == 1 else len(warm.KERNEL_SETS))


def test_no_kernel_has_an_assertion_which_pytest_would_rewrite_in_an_installation() -> None:
    functions = [kernel for kernels in warm.KERNEL_SETS for kernel in kernels.functions]
    assert len(functions) > 100
    for kernel in functions:
        assert not [step for step in dis.get_instructions(kernel) if step.opname == "LOAD_ASSERTION_ERROR"], kernel
