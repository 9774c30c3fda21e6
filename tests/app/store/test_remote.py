"""Blobs in an object store: the same as in a folder, and one that does not answer is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.errors import NotFound, Unavailable
from app.store import records
from app.store.blobs import GRACE, Blobs
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from tests.app.stores import GRAPH_ID, opened, solved
from tests.s3 import Objects, serving

URL = "s3://bucket/some/prefix"


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """What the object store holds while it answers."""
    held: Objects = {}
    with serving(held) as url:
        names = {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "s"}
        for name, value in {**names, "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield held


def test_blobs_lie_under_the_prefix_and_not_in_the_folder(objects: Objects, tmp_path: Path) -> None:
    store = opened(tmp_path, blobs_url=URL)
    plan_id = records.save_plan(store, solved(), GRAPH_ID)
    assert json.loads(records.report_of(store, plan_id))["timeline"] == {"step_bytes": ["plan"]}
    assert len(objects) == 3 and f"/bucket/some/prefix/{GRAPH_ID[:2]}/{GRAPH_ID}.zst" in objects
    assert not (tmp_path / "blobs").exists()
    store.check()
    assert check_integrity(store).faults == []
    with pytest.raises(NotFound):
        store.blobs.get("0" * 64)
    store.close()


def test_what_no_row_names_goes_once_it_is_old(objects: Objects, tmp_path: Path) -> None:
    store = opened(tmp_path, blobs_url=URL)
    keys = [store.blobs.put(f"unnamed {n}".encode()) for n in range(8)]
    for path, (data, at) in objects.items():
        objects[path] = data, at - 2 * GRACE
    assert store.blobs.put(b"unnamed 7") == keys[7]
    assert (store.blobs.age(keys[0]) or timedelta()) > GRACE
    assert collect(store, None, 1).blobs == 7
    assert store.blobs.has(keys[7]) and store.blobs.get(records.document_key(store, GRAPH_ID)) == b"{}"
    store.close()


@pytest.mark.heavy
def test_an_object_store_that_does_not_answer_is_told(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    blobs = Blobs(URL, tmp_path)
    for ask in (lambda: blobs.put(b"x"), lambda: blobs.get("0" * 64), lambda: list(blobs.scan())):
        with pytest.raises(Unavailable, match="s3://bucket/some/prefix does not respond"):
            ask()


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_with_rows_and_blobs_elsewhere_no_folder_is_needed(objects: Objects, store_settings: dict[str, Any]) -> None:
    folder = store_settings["data"] / "none"
    store = opened(**store_settings | {"data": folder, "blobs_url": URL})
    records.save_plan(store, solved(), GRAPH_ID)
    store.check()
    assert check_integrity(store).faults == []
    assert not folder.exists()
    store.close()
