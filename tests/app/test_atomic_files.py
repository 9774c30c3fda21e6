"""A file is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app import atomic_files
from app.atomic_files import CannotWrite, create_atomic, remove_partial_files, write_atomic


def test_writing_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    write_atomic(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"new")]


def test_creating_leaves_what_is_there(tmp_path: Path) -> None:
    assert create_atomic(tmp_path / "a", b"first")
    assert not create_atomic(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_the_old_content_and_says_what_to_do() -> None:
    # /dev/full answers every write as a full disk does.
    with pytest.raises(CannotWrite, match=r"No space left on device; free disk space"):
        write_through("/dev/full")


def write_through(device: str) -> None:
    with atomic_files._translate_errors(Path("plan.json")), Path(device).open("wb", buffering=0) as file:
        file.write(b"x")


def test_a_write_that_fails_halfway_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left"):
        write_atomic(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_a_missing_folder_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="create the folder first"):
        write_atomic(tmp_path / "no" / "a", b"")


def test_parts_of_a_killed_process_are_removed_and_files_of_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".a.0123456789abcdef.part").write_bytes(b"half")
    for other in ("a", ".download.part", ".a.0123.part"):
        (tmp_path / other).write_bytes(b"whole")
    assert remove_partial_files(tmp_path) == 1
    left = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert left == [".a.0123.part", ".download.part", "a"]


def test_a_part_is_one_that_would_be_removed(tmp_path: Path) -> None:
    with atomic_files._partial_file(tmp_path / "plan.json", b"half"):
        assert remove_partial_files(tmp_path) == 1


def test_a_link_remains_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    target, link = tmp_path / "plans" / "plan.json", tmp_path / "latest.json"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and not list(tmp_path.rglob("*.part"))


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, _: path != plan)  # the superuser may write to all files
    with pytest.raises(CannotWrite, match="Permission denied"):
        atomic_files.check_writable(plan)


def test_a_device_or_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    atomic_files.check_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, b"plan")
        assert os.read(reader, 9) == b"plan"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(CannotWrite, match="No space left on device"):
        write_atomic(Path("/dev/full"), b"x")
