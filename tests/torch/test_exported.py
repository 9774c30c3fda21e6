"""Small models exported by torch: planned, executed, loaded by onnxruntime, with PyTorch's gradients."""

from __future__ import annotations

import numpy as np
import pytest

from bench.exported import EXPORTERS, MODELS, Case, Row, by_content, cases, check
from graph.autodiff.gradients.registry import GRADIENT_RULES, GradientRule

#: Both exporters, modes and ends; `bench/exported.py` runs all combinations.
CASES = [
    Case("perceptron", "legacy", "eval", "scores"),
    Case("gated", "dynamo", "eval", "loss"),
    Case("convolutional", "legacy", "train", "loss"),
    Case("normalized", "dynamo", "train", "scores"),
    Case("residual", "legacy", "train", "scores"),
    Case("squeezed", "legacy", "eval", "loss"),
    Case("grouped", "legacy", "train", "scores"),
    Case("unet", "legacy", "eval", "scores"),
    Case("segmented", "legacy", "train", "scores"),
    Case("volumes", "legacy", "train", "scores"),
    Case("lstm", "legacy", "eval", "scores"),
    Case("gru", "legacy", "train", "loss"),
    Case("encoder", "dynamo", "train", "loss"),
    Case("decoder", "dynamo", "eval", "scores"),
    Case("attention", "legacy", "train", "scores"),
    Case("experts", "legacy", "eval", "scores"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join((case.model, case.exporter, case.mode, case.ends)))
def test_every_parameter_has_the_gradient_of_torch(case: Case) -> None:
    row = check(case)
    assert row.result == "right", row
    assert row.parameters > 0


def test_four_models_in_a_row_cover_every_exporter_mode_and_end() -> None:
    drawn = list(cases(list(MODELS)[:4], list(EXPORTERS)))
    assert len(drawn) == len({(case.exporter, case.mode, case.ends) for case in drawn}) == 8
    assert len(list(cases(["unet"], ["legacy"], everything=True))) == 4


def test_a_wrong_gradient_is_told_with_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRADIENT_RULES, "Sigmoid", GradientRule(lambda emit, node, dz: (dz,), zeros=False))
    row = check(Case("squeezed", "legacy", "eval", "loss"))
    assert row.is_fault and row.why.startswith("gradient of ")


def test_a_model_that_cannot_be_exported_says_why_in_one_line() -> None:
    row = check(Case("bilinear", "legacy", "eval", "loss"))
    assert isinstance(row, Row) and row.result == "refused" and not row.is_fault
    assert "aten::bilinear" in row.why and "\n" not in row.why


def test_gradients_are_found_by_content_wherever_an_exporter_puts_it() -> None:
    contents = {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([5.0, 6.0])}
    transposed = (np.array([[1.0, 3.0], [2.0, 4.0]]), np.array([[10.0, 30.0], [20.0, 40.0]]))
    copy, other = (np.array([4.0]), np.array([2.0])), (np.array([7.0]), np.array([9.0]))
    gradients, seen = by_content(contents, [transposed, copy, other])
    assert gradients["w"].tolist() == [[10.0, 20.0], [30.0, 42.0]]
    assert seen["w"].all() and not seen["b"].any()
