"""Kernels of the installation are loaded instead of compiled where they fit, and compiled where they do not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import prebuilt_kernels, warm
from planner.problem.jit import Kernels
from tests.planner.problem.test_jit import kernels


@pytest.fixture
def prebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The one file of an installation that has a kernel; the disk cache is empty."""
    assert kernels(tmp_path, 2).compiled()["again"](5) == 11
    monkeypatch.setattr(prebuilt_kernels, "FOLDER", tmp_path / "prebuilt")
    assert prebuilt_kernels.collect(tmp_path, prebuilt_kernels.FOLDER) == 1
    shutil.rmtree(tmp_path / "__pycache__")
    prebuilt_kernels.folder.cache_clear()
    yield next(prebuilt_kernels.FOLDER.glob("*/*.nbc"))
    prebuilt_kernels.folder.cache_clear()


def loaded_and_compiled(set_of_kernels: Kernels) -> tuple[int, int]:
    stats = set_of_kernels.compiled()["again"].stats  # type: ignore[attr-defined]
    return sum(stats.cache_hits.values()), sum(stats.cache_misses.values())


def test_a_kernel_of_the_installation_is_loaded(prebuilt: Path, tmp_path: Path) -> None:
    again = kernels(tmp_path, 2)
    assert again.is_on_disk()
    assert again.compiled()["again"](5) == 11
    assert loaded_and_compiled(again) == (1, 0)


@pytest.mark.parametrize("content", [b"", b"not a pickle"])
def test_a_file_that_is_cut_off_or_damaged_is_compiled_instead(prebuilt: Path, tmp_path: Path, content: bytes) -> None:
    prebuilt.write_bytes(content)
    again = kernels(tmp_path, 2)
    assert again.compiled()["again"](5) == 11
    assert loaded_and_compiled(again) == (0, 1)


def test_a_kernel_whose_source_changed_is_compiled(prebuilt: Path, tmp_path: Path) -> None:
    changed = kernels(tmp_path, 30)
    assert not changed.is_on_disk()
    assert changed.compiled()["again"](5) == 151


def test_a_processor_without_the_features_has_none(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding

    machine = prebuilt_kernels.platform.machine()
    monkeypatch.setitem(prebuilt_kernels.FEATURES, machine, ("popcnt",))
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: {"popcnt": True, "avx2": False})
    prebuilt_kernels.folder.cache_clear()
    assert prebuilt_kernels.folder() == prebuilt.parent
    monkeypatch.setitem(prebuilt_kernels.FEATURES, machine, ("popcnt", "avx2"))
    prebuilt_kernels.folder.cache_clear()
    assert prebuilt_kernels.folder() is None


def test_another_version_of_numba_has_none(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt_kernels, "version", lambda name: "0.1")
    prebuilt_kernels.folder.cache_clear()
    assert prebuilt_kernels.folder() is None


def test_kernels_are_prebuilt_for_the_processors_of_the_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_all(command: list[str], env: dict[str, str], check: bool) -> None:
        assert command[1:] == ["-m", "planner.warm"] and check
        assert env["NUMBA_CPU_NAME"] == prebuilt_kernels.PROCESSORS[prebuilt_kernels.platform.machine()]
        folder = Path(env["NUMBA_CACHE_DIR"]) / "annealing_21c1d4"
        folder.mkdir()
        (folder / "move_kernels.anneal_390b86d895fa-243.py311.1.nbc").write_bytes(b"code")

    monkeypatch.setattr(warm.subprocess, "run", compile_all)
    assert warm.prebuild(tmp_path) == 1
    assert (tmp_path / prebuilt_kernels.folder_of_target() / "anneal_390b86d895fa.nbc").read_bytes() == b"code"
