"""Further cases of liveness, of shapes that the cases of the original systems may have too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seeds.harness import check_and_corrupt
from tests.seeds.liveness import AREA


def op(type: str, inputs: str, outputs: str) -> dict[str, Any]:
    return {"type": type, "inputs": inputs.split(), "outputs": outputs.split(), "attrs": {}}


def layers(chain: str, start: str = "data") -> list[dict[str, Any]]:
    """Dense layers one after the other, each under the name given."""
    names = chain.split()
    return [op("FC", f"{x} {y}_w {y}_b", y) for x, y in zip([start, *names], names, strict=False)]


def loss(of: str, number: str) -> list[dict[str, Any]]:
    return [
        op("Relu", of, f"relu{number}"),
        op("Softmax", f"relu{number}", f"pred{number}"),
        op("LabelCrossEntropy", f"pred{number} label", f"xent{number}"),
        op("AveragedLoss", f"xent{number}", f"loss{number}"),
    ]


LIVES = {"b1": [1, 3, 10], "b2": [3, 4, 1], "b3": [5, 6, 1], "b4": [5, 7, 10]}
TREE = [
    *layers("fc1 fc2 fc3 fc4 fc5"),
    *layers("fc3b fc4b fc5b", "fc2"),
    op("Sum", "fc5 fc5b", "fc5sum"),
    *loss("fc5sum", "1"),
    *layers("fc6", "fc5"),
    *loss("fc6", "2"),
]
TWO = [op("FC", "data 1_w 1_b", "x"), op("FC", "x 2_w 2_b", "y"), op("FC", "x 3_w 3_b", "z"), op("Sum", "y z", "out")]


def case(ops: list[dict[str, Any]], given: dict[str, Any], expected: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    return {"id": "further", "ops": ops, "wanted_gradients": wanted, "given": given, "expected": expected}


FURTHER = {
    "intervals by name": case([], {"ranges": LIVES}, {"assignments": [["b1", "b4"], ["b2", "b3"]], "memory_usage": 11}),
    "intervals as objects": case(
        [],
        {"ranges": [{"name": n, "defined": a, "used": b, "size": c} for n, (a, b, c) in LIVES.items()]},
        {"memory": 11},
    ),
    "in-place chain": case([op("Copy", "b1", "b1")] * 3, {}, {"edges": [[0, 1], [0, 2], [1, 2]]}),
    "longest path": case(
        [op("Copy", "w0", "w"), op("Conv", "data w", "c0"), op("Copy", "w2", "w2"), op("Conv", "c0 w2", "c2")],
        {},
        {"plain_order": [2, 0, 1, 3], "longest_path_first_order": [0, 1, 2, 3]},
    ),
    "one op": case([op("Copy", "a", "b")], {}, {"plain_order": [0], "longest_path_first_order": [0]}),
    "other temporaries": case(
        TWO,
        {
            "second_graph": [
                op("FC", "data 1_w 1_b", "p"),
                op("FC", "p 2_w 2_b", "q"),
                op("FC", "p 3_w 3_b", "r"),
                op("Sum", "q r", "out"),
            ]
        },
        {"equal": True},
    ),
    "other weights' names": case(
        TWO,
        {
            "second_graph": [
                op("FC", "data p_w p_b", "p"),
                op("FC", "p q_w q_b", "q"),
                op("FC", "p r_w r_b", "r"),
                op("Sum", "q r", "out"),
            ]
        },
        {"equal": True},
    ),
    "a name taken too early": case(
        TWO, {"second_graph": [*TWO[:2], op("FC", "x 3_w 3_b", "y"), op("Sum", "y y", "out")]}, {"equal": False}
    ),
    "a tree with two losses": case(
        TREE,
        {"must_stay": ["loss1", "loss2"]},
        {"properties": ["fewer distinct blob names than before", "loss1 and loss2 unchanged"]},
    ),
    "gradients of a tree": case(
        TREE,
        {"must_stay": ["loss1", "loss2", "gradient of fc1_w"]},
        {"properties": ["fewer blob names", "loss1, loss2 and gradient of fc1_w unchanged"]},
        targets={"loss1": None, "loss2": None},
        wrt=["fc1_w"],
    ),
}


@pytest.mark.parametrize("name", FURTHER)
def test_a_further_case_comes_out_as_expected(name):
    check_and_corrupt(AREA, FURTHER[name])
