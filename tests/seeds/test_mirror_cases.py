"""Mirroring cases of the original project, through the public path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seeds.documents import PLANNING_ATTRIBUTES, first_target_only
from tests.seeds.mirror_properties import check_property
from tests.seeds.mirrored import Mirrored

CASES = [
    case for case in json.loads((Path(__file__).parent / "cases.json").read_text()) if case["category"] == "mirror"
]
#: Fields of `expected`; `upstream_defect` only says why the original differs.
FIELDS = {
    "mirror_stage", "decisions", "mirror_ops", "backward_input", "properties", "single_step_variant", "upstream_defect",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_mirroring_case_comes_out_as_expected(case):
    check(Mirrored(case), case["expected"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_corrupted_expectation_is_noticed(case):
    run = Mirrored(case)
    check(run, case["expected"])
    corrupted = list(corruptions(case["expected"], properties=[]))
    for wrong in corrupted:
        with pytest.raises((AssertionError, KeyError, ValueError)):
            check(run, wrong)
    for sentence in case["expected"].get("properties", []):
        with pytest.raises(AssertionError, match="no check stands for"):
            check_property(f"{sentence} sometimes", run)
    assert corrupted or case["expected"].get("properties")


def corruptions(expected: Any, **rest: Any) -> Iterator[Any]:
    """`expected` with one number or word changed, once for each; sentences apart."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            if key not in ("properties", "upstream_defect"):
                for wrong in corruptions(value):
                    yield {**expected, key: wrong, **rest}
    elif isinstance(expected, list):
        for i, value in enumerate(expected):
            for wrong in corruptions(value):
                yield [*expected[:i], wrong, *expected[i + 1 :]]
    else:
        yield not expected if isinstance(expected, bool) else expected + (1 if isinstance(expected, int) else "x")


def check(run: Mirrored, expected: dict[str, Any]) -> None:
    assert expected.keys() <= FIELDS
    check_stages(run, expected.get("mirror_stage", {}))
    check_decisions(run, expected.get("decisions", []))
    if "mirror_ops" in expected:
        check_copies(run, expected["mirror_ops"])
    if "backward_input" in expected:
        check_backward_input(run, **expected["backward_input"])
    for sentence in expected.get("properties", []):
        check_property(sentence, run)
    if "single_step_variant" in expected:
        check(Mirrored(first_target_only(run.case)), expected["single_step_variant"])


def check_stages(run: Mirrored, stages: dict[str, int]) -> None:
    assert {op: run.stage(op) for op in stages} == stages


def check_decisions(run: Mirrored, decisions: list[dict[str, Any]]) -> None:
    """The groups judged are exactly the listed ones, with their prices in elements."""
    if decisions:
        groups = {group.tasks: group for group in run.decisions.groups}
        listed = {tuple(sorted(run.task(op) for op in decision["group"])): decision for decision in decisions}
        assert groups.keys() == listed.keys()
        for tasks, decision in listed.items():
            group = groups[tasks]
            assert (group.allocated_bytes, group.released_bytes) == (
                4 * decision["allocated_elements"], 4 * decision["released_elements"]
            )  # fmt: skip
            assert group.mirrored == decision.get("mirrored", group.mirrored)


def check_copies(run: Mirrored, copies: list[dict[str, Any]]) -> None:
    """The rewritten graph re-runs exactly the listed ops, with inputs and waiting redirected as listed."""
    graph = run.rewritten
    found = [node for node in graph.nodes if node.annotations["origin"][1]]
    assert [run.mirror_names(node.writes) for node in found] == [copy["outputs"] for copy in copies]
    for node, copy in zip(found, copies, strict=True):
        assert run.mirror_names(node.inputs) == copy["inputs"]
        assert node.op == f"mxnet::{copy['type']}"
        wanted = {k: v for k, v in copy["attrs"].items() if k not in PLANNING_ATTRIBUTES}
        assert dict(node.attributes) == wanted
        for waited in copy["attrs"].get("control_deps", []):
            before = found[: found.index(node)]
            assert waited in [name for earlier in before for name in run.mirror_names(earlier.writes)]


def check_backward_input(run: Mirrored, op: str, argument: int, **rest: str) -> None:
    """Argument of an op's gradient, as in `{"op": "gradient of fc", "argument": 1, "is": "z_mirror output 0"}`."""
    (node,) = run.gradient_nodes(run.rewritten, op.removeprefix("gradient of "))
    copy, _, output = rest["is"].partition(" output ")
    assert output == "0"
    assert run.mirror_names([node.inputs[argument]]) == [copy]
