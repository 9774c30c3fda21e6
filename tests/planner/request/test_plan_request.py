"""Plan requests: parsing, and all faults reported at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadRequest
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import FIELDS, Request, RequestField, parse_request


@pytest.mark.parametrize("row", FIELDS.values(), ids=FIELDS)
def test_every_field_reaches_the_request(row: RequestField) -> None:
    assert getattr(parse_request({}), row.attribute) == row.default
    samples: list[Any] = ["50%", 2, True, "8GiB", ["a"], ["graph"], {"x": 4}, {"x": "4x3"}, [{"batch": 2}], "v100-16gb"]
    samples += ["greedy", *(row.kind.flag.words if row.kind.flag else ())]
    parsed, needed = [], {"offload": True} if row.name == "host_memory" else {}
    for sample in samples:
        with contextlib.suppress(BadRequest):
            parsed.append(getattr(parse_request(needed | {row.name: sample}), row.attribute))
    assert any(value != row.default for value in parsed)


def test_sizes_and_shapes_are_parsed() -> None:
    request = parse_request({"inputs": {"x": "4x3"}, "reserve": "1GiB"})
    assert request.inputs == {"x": (4, 3)} and request.reserve == 1 << 30
    sets = parse_request({"shapes": [{"batch": 4}, {"inputs": {"x": "4x3"}, "dims": {"N": 2}}], "batch": 2}).shapes
    assert [one.batch for one in sets] == [4, None] and sets[1].inputs == {"x": (4, 3)} and sets[1].dims == {"N": 2}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("budget", "lots"),
        ("counts", "bytes"),
        ("order", 1),
        ("phases", "loose"),
        ("runtime", "xla"),
        ("recipe", "adam"),
        ("reserve", "10%"),
        ("planner", "magic"),
        ("search_seconds", 0),
        ("search_seconds", float("nan")),
        ("iterations", 0),
        ("seed", -1),
        ("device", 3),
        ("loss", ""),
        ("loss_chunks", 0),
        ("loss_chunks", 257),
        ("fuse_attention", 1),
        ("inputs", {"x": "4x-3"}),
        ("inputs", {"x": "²x3"}),
        ("inputs", {"x": "9" * 5000}),
        ("inputs", {"x": "４x3"}),
        ("max_overhead", 1e300),
        ("max_overhead", "9" * 400),
        ("batch", 0),
        ("dims", {"N": 1.5}),
        ("checkpoints", "a"),
        ("layout", "tight"),
        ("execute", "maybe"),
        ("return", ["plans"]),
    ],
)
def test_a_wrong_field_is_named(field: str, wrong: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request({field: wrong})
    assert caught.value.findings[0].path.startswith(field)


def test_an_unknown_field_suggests_the_near_one() -> None:
    with pytest.raises(BadRequest, match="did you mean 'budget'"):
        parse_request({"buget": "50%"})


@pytest.mark.parametrize(("parse", "near"), [(parse_curve, "budgets"), (parse_fit, "grow")])
def test_an_unknown_field_of_a_curve_or_fit_suggests_one_of_its_own(parse: Callable[..., Any], near: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse({f"{near}z": "50%"})
    (finding,) = (each for each in caught.value.findings if each.code == "unknown_field")
    assert f"did you mean '{near}'" in finding.remedy
    assert near in finding.expected and "return" not in finding.expected


def test_two_goals_contradict_each_other() -> None:
    with pytest.raises(BadRequest, match="budget and fits"):
        parse_request({"budget": "50%", "fits": "a100-80gb"})


def test_every_fault_of_a_device_is_found_at_its_field() -> None:
    device = {"like": "a100", "engine": "dma", "bandwidth": 0, "host_bandwidth": 0, "host_link": "token ring"}
    with pytest.raises(BadRequest) as refused:
        parse_request({"device": device, "offload": True, "seed": -1})
    found = {finding.path: finding for finding in refused.value.findings}
    assert found.keys() == {"device." + name for name in device} | {"seed"}
    assert found["device.bandwidth"].found == "bandwidth is 0"
    assert found["device.bandwidth"].remedy == "give a finite number above 0"
    assert "link_latency" in found["device.engine"].remedy and "duplex" in found["device.host_link"].remedy


def test_host_memory_needs_offload() -> None:
    assert parse_request({"offload": True, "host_memory": "1GiB"}).host_memory == 1 << 30
    for offload in ({}, {"offload": False}):
        with pytest.raises(BadRequest, match="host_memory without offload"):
            parse_request({"host_memory": 0, **offload})


def test_all_faults_are_reported_at_once_up_to_ten() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request({"budget": "?", "seed": -1, "batch": "two"} | {f"wrong{i}": 1 for i in range(20)})
    assert len(caught.value.findings) == 10


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "else"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_any_input_is_parsed_or_refused_with_findings(fields: dict[str, Any]) -> None:
    try:
        assert isinstance(parse_request(fields), Request)
    except BadRequest as error:
        assert error.findings
