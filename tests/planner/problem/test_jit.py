"""Compiled kernels are kept on the disk, and told apart by every file they were compiled with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from planner.algorithms.annealing import move_kernels
from planner.algorithms.greedy import gap_kernels
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
    assert {"price_all", "close_best", "add_use", "count_part"} <= set(names) and names[-1] == "close_best"
    assert "count_part_loop" not in names  # compiled instead of `count_part`, not called
    assert names.index("count_part") < names.index("count_above") < names.index("price_all")


def test_kernels_let_other_threads_run():
    """Two walks of annealing are two threads: without this they take turns, on any number of cores."""
    compiled = move_kernels.KERNELS.compiled()
    assert {kernel.targetoptions["nogil"] for kernel in compiled.values()} == {True}
