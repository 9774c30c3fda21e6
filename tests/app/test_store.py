"""The store keeps blobs by content and records by id, across restarts, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import NotFound, Unavailable
from app.store.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    opened = FolderStore(tmp_path)
    yield opened
    opened.close()


@given(st.binary(max_size=2000))
def test_a_blob_comes_back_under_the_hash_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    opened = FolderStore(tmp_path_factory.mktemp("store"))
    key = opened.put(data)
    assert key == hashlib.sha256(data).hexdigest() == opened.put(data)
    assert opened.get(key) == data
    opened.close()


def test_a_record_is_created_once(store: FolderStore) -> None:
    assert store.create("plans", "p1", {"a": 1})
    assert not store.create("plans", "p1", {"a": 2})
    assert store.record("plans", "p1") == {"a": 1}
    store.replace("plans", "p1", {"a": 3})
    assert store.record("plans", "p1") == {"a": 3}


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    first = FolderStore(tmp_path)
    key = first.put(b"graph")
    for id in ("b", "a"):
        first.create("graphs", id, {"blob": key})
    first.close()
    second = FolderStore(tmp_path)
    assert second.ids("graphs") == ["a", "b"]
    assert second.get(second.record("graphs", "a")["blob"]) == b"graph"
    second.close()


def test_a_second_process_is_kept_out(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="served by another process"):
        FolderStore(tmp_path)


@pytest.mark.parametrize("id", ["../../etc/passwd", "", "a/b", "a\0b", "x" * 200, "."])
def test_what_a_client_sends_never_becomes_another_path(store: FolderStore, id: str) -> None:
    with pytest.raises(NotFound):
        store.record("graphs", id)
    with pytest.raises(NotFound):
        store.get(id)


def test_half_written_files_are_gone_after_a_restart(tmp_path: Path) -> None:
    FolderStore(tmp_path).close()
    (tmp_path / "blobs" / "aa").mkdir()
    (tmp_path / "blobs" / "aa" / ".aa.0000.part").write_bytes(b"half")
    FolderStore(tmp_path).close()
    assert not list(tmp_path.rglob("*.part"))
