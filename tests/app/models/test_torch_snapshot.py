"""Memory snapshots of PyTorch are read without unpickling: plain data only, within limits, everything else refused."""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Unparseable
from app.models import torch_snapshot
from app.models.torch_snapshot import memory_curve, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_is_read_as_pickle_reads_it(data: Any, protocol: int) -> None:
    shared = [data, data, {"again": data}]
    assert read_pickle(pickle.dumps(shared, protocol)) == shared


def test_data_that_contains_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = read_pickle(pickle.dumps(loop))
    assert found[0] is found
    with pytest.raises(Unparseable, match="no list 'device_traces'"):
        memory_curve(found)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/owned",)


def refusal(data: bytes) -> str:
    with pytest.raises(Unparseable) as refused:
        read_pickle(data)
    return f"{refused.value.findings[0].code}: {refused.value.findings[0].found}"


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_what_imports_something_is_refused_by_its_name(protocol: int) -> None:
    found = refusal(pickle.dumps({"a": Hostile()}, protocol))
    # Protocols 0 and 1 write opcodes before it that no snapshot has.
    assert found.startswith("unsafe_pickle: ")
    assert protocol < 1 or f"{os.system.__module__}.system at byte" in found


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not_a_snapshot: pickle exhausted before seeing STOP"),
        (b"\x80\x04]", "not_a_snapshot: pickle exhausted before seeing STOP"),
        (b"\x80\x04.", "not_a_snapshot: pop from empty list"),
        (b"\x80\x04h\x07.", "not_a_snapshot: 7"),  # a memo entry that does not exist
        (b"\x80\x04]e.", "not_a_snapshot: pop from empty list"),  # APPENDS without a mark
        (b"\x80\x04K\x01K\x02a.", "not_a_snapshot: items for an object that holds none"),
        (b"\x80\x04}(K\x01K\x02u.", "not_a_snapshot: a key that is no text"),
        (b"\x80\x04}(K\x01u.", "not_a_snapshot: zip"),
        (b"\x80\x04X" + struct.pack("<I", 2**31) + b"abc.", "not_a_snapshot: expected 2147483648 bytes"),
        (b"\x80\x04" + b"(" * 100 + b".", "not_a_snapshot: more than 64 containers"),
        (b"cbuiltins\neval\n(V1\ntR.", "unsafe_pickle: GLOBAL builtins.eval at byte 0"),
        (b"(ios\nsystem\n.", "unsafe_pickle: INST ios.system at byte 1".replace("ios", "os")),
        (b"\x80\x02K\x01\x82\x05.", "unsafe_pickle: EXT1 5"),
        (b"\x80\x02K\x01Q.", "unsafe_pickle: BINPERSID"),
        (b"\x80\x05\x97.", "unsafe_pickle: NEXT_BUFFER"),
        (b"PK\x03\x04archive", "not_a_snapshot: "),
    ],
)
def test_damaged_and_hostile_pickles_are_refused(data: bytes, reason: str) -> None:
    assert refusal(data).startswith(reason)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        read_pickle(data)
    except Unparseable as error:
        assert error.findings


def test_size_and_number_of_opcodes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(list(range(100)))
    monkeypatch.setattr(torch_snapshot, "MAX_OPCODES", 50)
    assert refusal(data) == "too_large: more"
    monkeypatch.setattr(torch_snapshot, "MAX_BYTES", 10)
    assert refusal(data) == f"too_large: {len(data)} bytes"


def snapshot(changes: list[int], at_end: int) -> dict[str, Any]:
    """A snapshot whose device 1 allocates and frees; `at_end` bytes are allocated when it is taken."""
    events: list[dict[str, Any]] = [
        {"action": "alloc" if size > 0 else "free_requested", "size": abs(size), "time_us": 100 + 10 * i, "frames": []}
        for i, size in enumerate(changes)
    ]
    events.insert(1, {"action": "segment_alloc", "size": 2**21, "time_us": 101})
    segments = [{"device": 1, "allocated_size": at_end}, {"device": 0, "allocated_size": 7}]
    return {"segments": segments, "device_traces": [[], events], "allocator_settings": {}}


def test_the_curve_begins_with_what_was_allocated_before_the_recording() -> None:
    #   before the recording: 1000
    #   +512 ─▶ 1512   +256 ─▶ 1768   -512 ─▶ 1256
    curve = memory_curve(read_pickle(pickle.dumps(snapshot([512, 256, -512], at_end=1256))))
    assert curve == {
        "format": "remat-snapshot/1",
        "device": "cuda:1",
        "events": 3,
        "base_bytes": 1000,
        "peak_bytes": 1768,
        "seconds": 2e-5,
        "curve": {"time_us": [0.0, 10.0, 20.0], "bytes": [1512, 1768, 1256]},
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_truncated_snapshot_is_refused_wherever_it_ends(protocol: int) -> None:
    data = pickle.dumps(snapshot([512, 256, -512], at_end=1256), protocol)
    assert {refusal(data[:end]).partition(":")[0] for end in range(len(data))} == {"not_a_snapshot"}


def test_a_long_curve_keeps_its_peaks() -> None:
    changes = [64, -64] * 5_000
    changes[6_001:6_001] = [512, -512]
    curve = memory_curve(snapshot(changes, at_end=0))
    assert curve["events"] == 10_002 and len(curve["curve"]["bytes"]) <= torch_snapshot.MAX_POINTS
    assert max(curve["curve"]["bytes"]) == curve["peak_bytes"] == 64 + 512
    assert curve["curve"]["time_us"] == sorted(curve["curve"]["time_us"])


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], "no list 'device_traces'"),
        ({"segments": [], "device_traces": []}, "no allocation events"),
        ({"segments": [], "device_traces": [[]]}, "no allocation events"),
        ({"segments": [], "device_traces": [{}]}, "no list 0"),
        ({"segments": [], "device_traces": [[1]]}, "action is no text"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": 2**64}]]}, "size is no number"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": True}]]}, "size is no number"),
        (
            {"segments": [], "device_traces": [[{"action": "alloc", "size": 1, "time_us": float("nan")}]]},
            "time_us is no number",
        ),
        ({"segments": [3], "device_traces": [[{"action": "alloc", "size": 1, "time_us": 0}]]}, "device is no number"),
    ],
)
def test_other_data_is_refused(found: Any, reason: str) -> None:
    with pytest.raises(Unparseable) as refused:
        memory_curve(found)
    assert refused.value.findings[0].found == reason
