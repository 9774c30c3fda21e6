"""Compiled kernels are kept on the disk, and told apart by every file they were compiled with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from planner.algorithms.annealing import move_kernels
from planner.algorithms.greedy import gap_kernels
from planner.problem import kernel_compiler
from planner.problem.jit import Kernels

CALLED = "def twice(x: int) -> int:\n    return {factor} * x\n"
CALLING = "def again(x: int) -> int:\n    return twice(x) + 1\n"


def written(folder: Path, name: str, text: str) -> ModuleType:
    """The text as a module of its own file."""
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels(folder: Path, factor: int) -> Kernels:
    called = written(folder, "called", CALLED.format(factor=factor))
    calling = written(folder, "calling", CALLING)
    calling.twice = called.twice
    return Kernels((calling.again,))


def test_kernels_are_on_the_disk_once_compiled(tmp_path: Path):
    assert not kernels(tmp_path, 2).is_on_disk()
    assert kernels(tmp_path, 2).compiled()["again"](5) == 11
    assert kernels(tmp_path, 2).is_on_disk()


def test_a_changed_file_of_the_set_is_compiled_again(tmp_path: Path):
    assert kernels(tmp_path, 2).compiled()["again"](5) == 11
    changed = kernels(tmp_path, 30)  # the file is longer, which no bytecode cache misses
    assert not changed.is_on_disk()
    assert changed.compiled()["again"](5) == 151


def test_a_set_contains_the_kernels_that_its_entries_call_callees_first():
    names = [kernel.__name__ for kernel in gap_kernels.KERNELS.functions]
    assert {"price", "close_best", "add_use", "count_part"} <= set(names) and names[-1] == "close_best"
    assert "count_part_loop" not in names  # compiled instead of `count_part`, not called
    assert names.index("count_part") < names.index("count_above") < names.index("price")


def test_an_entry_point_that_is_not_on_the_disk_is_compiled_beside_one_that_is(tmp_path: Path):
    compiled = two_entries(tmp_path).compiled()
    assert (compiled["again"](5), compiled["thrice"](5)) == (11, 32)
    again = next(tmp_path.glob("__pycache__/*thrice*.nbi"))
    again.unlink()
    compiled = two_entries(tmp_path).compiled()
    assert (compiled["again"](5), compiled["thrice"](5)) == (11, 32)
    assert again.exists()


def two_entries(folder: Path) -> Kernels:
    first = kernels(folder, 2).entries[0]
    second = written(folder, "second", "def thrice(x: int) -> int:\n    return twice(again(x) + x)\n")
    second.twice, second.again = first.__globals__["twice"], first
    return Kernels((first, second.thrice))


def test_kernels_are_compiled_one_by_one_where_the_compiler_of_numba_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def changed(compile_callees: object) -> None:
        raise AttributeError("no such attribute")

    monkeypatch.setattr(kernel_compiler, "module_pipelines", changed)
    assert kernels(tmp_path, 2).compiled()["again"](5) == 11


def test_kernels_let_other_threads_run():
    """Two walks of annealing are two threads: without this they take turns, on any number of cores."""
    compiled = move_kernels.KERNELS.compiled()
    assert {kernel.targetoptions["nogil"] for kernel in compiled.values()} == {True}
