"""Kernels are compiled into the disk cache ahead of the first plan, by one process per core."""

from __future__ import annotations

import dis
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


class CompilingProcess:
    """Stands in for a process: answers each set, or ends without an answer."""

    def __init__(self, numbers: list[int], answers: bool):
        self.numbers, self.answers = numbers, answers
        self.stdin = self.stdout = self

    def __enter__(self) -> CompilingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, line: str) -> None:
        self.numbers.append(int(line))

    def flush(self) -> None:
        pass

    def readline(self) -> str:
        return "\n" if self.answers else ""


def test_the_largest_set_is_compiled_first_by_one_process_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    started: list[CompilingProcess] = []

    def start(*command: Any, **options: Any) -> CompilingProcess:
        started.append(CompilingProcess(numbers, answers=True))
        return started[-1]

    monkeypatch.setattr(warm.subprocess, "Popen", start)
    monkeypatch.setattr(warm.os, "cpu_count", lambda: 2)
    warm.compile_to_disk(warm.KERNEL_SETS)
    sizes = [warm.KERNEL_SETS[number].code_bytes() for number in numbers]
    assert sizes[0] == max(sizes) and sorted(numbers) == list(range(len(warm.KERNEL_SETS)))
    assert len(started) == 2


@pytest.mark.parametrize("cores", [1, 2])
def test_a_set_whose_process_fails_is_compiled_by_the_caller(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[jit.Kernels] = []
    tried: list[int] = []

    def compile_(kernels: jit.Kernels) -> dict[str, jit.Kernel]:
        compiled.append(kernels)
        return kernels.interpreted()

    monkeypatch.setattr(warm.subprocess, "Popen", lambda *_, **options: CompilingProcess(tried, answers=False))
    monkeypatch.setattr(warm.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(jit, "_compiled", {})
    monkeypatch.setattr(jit.Kernels, "is_on_disk", lambda kernels: False)
    monkeypatch.setattr(jit.Kernels, "_compile", compile_)
    warm.ready(lambda: None)
    assert compiled == list(warm.KERNEL_SETS)
    assert len(tried) == (0 if cores == 1 else 2)


def test_no_kernel_has_an_assertion_which_pytest_would_rewrite_in_an_installation() -> None:
    functions = [kernel for kernels in warm.KERNEL_SETS for kernel in kernels.functions]
    assert len(functions) > 100
    for kernel in functions:
        assert not [step for step in dis.get_instructions(kernel) if step.opname == "LOAD_ASSERTION_ERROR"], kernel
