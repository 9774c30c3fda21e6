"""Further cases of segments, of shapes that the cases of the original system may have too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seeds.harness import check_and_corrupt
from tests.seeds.recompute_segments import AREA


def op(type: str, inputs: str, outputs: str, **attrs: Any) -> dict[str, Any]:
    return {"type": type, "inputs": inputs.split(), "outputs": outputs.split(), "attrs": attrs}


NET = [
    op("mul", "mul.x mul.y", "mul.out"),
    op("elementwise_add", "mul.out b1", "b1_out"),
    op("elementwise_add", "b1_out b2", "b2_out"),
    op("mean", "b2_out", "mean.out"),
]
FORWARD = ["mul", "elementwise_add", "elementwise_add", "mean", "fill_constant", "mean_grad"]
GIVEN = {
    "parameters": ["mul.x", "b1", "b2"],
    "optimizer": "sgd",
    "shapes": {
        "mul.x": [5, 10],
        "mul.y": [10, 8],
        "mean.out": [1],
        **{name: [5, 8] for name in ("mul.out", "b1", "b2", "b1_out", "b2_out")},
    },
    "backward_reads": {
        "mul": ["X", "Y", "Out@GRAD"],
        "elementwise_add": ["X", "Y", "Out@GRAD"],
        "mean": ["X", "Out@GRAD"],
    },
}
UPDATES = ["sgd"] * 3
ADD, ADD_GRAD = "elementwise_add", "elementwise_add_grad"


def case(expected: dict[str, Any], ops: list[dict[str, Any]] = NET, **given: Any) -> dict[str, Any]:
    return {
        "id": "further",
        "ops": ops,
        "wanted_gradients": {"targets": {ops[-1]["outputs"][0]: None}},
        "given": {**GIVEN, **given},
        "expected": expected,
    }


PLAIN = [*FORWARD, ADD_GRAD, ADD_GRAD, "mul_grad", *UPDATES]
ONE = [*FORWARD, ADD_GRAD, "mul", ADD_GRAD, "mul_grad", *UPDATES]
TWO = [*FORWARD, ADD, ADD_GRAD, ADD_GRAD, "mul_grad", *UPDATES]
CHAIN = [op("A", "x", "a"), op("B", "a", "b"), op("Cc", "b", "c"), op("D", "c a", "d"), op("E", "d", "loss")]
TAGGED = [
    op("A", "x", "a", segment="one"),
    op("B", "a", "b", segment="one"),
    op("Cc", "b", "c", segment="two"),
    op("D", "c a", "d", segment="two"),
    op("E", "d", "loss"),
]
SCATTERED = [*TAGGED[:2], op("Cc", "b", "c"), op("D", "c a", "d", segment="one"), TAGGED[4]]

FURTHER = {
    "no checkpoint": case({"op_types": PLAIN, "recomputed": {}, "unchanged": True}, checkpoints=[]),
    "a value that crosses": case(
        {"crossing": ["a"], "not_recomputed": ["a", "c"], "input_nodes": ["x"], "unchanged": False},
        CHAIN,
        checkpoints=["c"],
    ),
    "one checkpoint": case({"op_types": ONE, "recomputed": {"mul.out": "mul.out.subprog_0"}}, checkpoints=["b1_out"]),
    "two checkpoints": case({"op_types": TWO}, checkpoints=["mul.out", "b2_out"]),
    "neighbours": case({"op_types": PLAIN, "segments": []}, checkpoints=["mul.out", "b1_out"]),
    "out of order": case({"op_types": TWO}, checkpoints=["b2_out", "mul.out"]),
    "tags": case({"segments": [[0, 2], [2, 4]], "recomputed": ["c"], "held": ["x", "b", "d", "a", "loss"]}, TAGGED),
    "a segment opted out": case({"segments": [[2, 4]]}, TAGGED, no_recompute_segments=[0]),
    "ranges": case({"segments": [[1, 3]], "recomputed": ["b"]}, CHAIN, segments=[[1, 3]]),
    "a number out of range": case(
        {"error": {"kind": "segment_index_out_of_range", "message_should_name": ["7"]}},
        TAGGED,
        no_recompute_segments=[7],
    ),
    "scattered": case({"error": {"kind": "segment_not_consecutive", "message_should_name": ["one"]}}, SCATTERED),
    "an unknown loss": {
        **case({"error": {"kind": "unknown_loss", "message_should_name": ["x"]}}, CHAIN, checkpoints=["c"]),
        "wanted_gradients": {"targets": {"x": None}},
    },
}


@pytest.mark.parametrize("name", FURTHER)
def test_a_further_case_comes_out_as_expected(name):
    check_and_corrupt(AREA, FURTHER[name])
