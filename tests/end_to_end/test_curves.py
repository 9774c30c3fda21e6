"""Curves of real models at batch 4: never more time at a looser budget, every plan executed equal."""

from __future__ import annotations

import pytest

from planner.pipeline.curve import curve
from planner.request.curve_and_fit_request import parse_curve
from tests.end_to_end.models import MODELS

pytestmark = pytest.mark.usefixtures("bounds")

BUDGETS = ["90%", "50%", "20%"]
#: Small enough for every run of the tests, with two budgets.
QUICK = ("decoder",)
#: One image of it takes longer to execute than `auto` allows itself.
TOO_SLOW = ("vgg19",)
NAMES = [name for name in MODELS if name not in (*QUICK, *TOO_SLOW)]


def traced(name: str, budgets: list[str], **more: object) -> None:
    path, fields = MODELS[name]
    asked = {**fields, "batch": 4, "budgets": budgets, "execute": "auto", **more}
    made = curve(path.read_bytes(), parse_curve(asked))
    assert made.document["violations"] == 0
    assert made.document["checked"]
    for outcome, point in zip(made.outcomes, made.document["points"], strict=True):
        assert outcome.report["executed"]["status"] == "equal", outcome.report["executed"]
        assert point["overhead"] >= point["bound_overhead"]
        assert point["status"] == "over_budget" or point["peak_bytes"] <= point["budget_bytes"]


@pytest.mark.parametrize("name", QUICK)
def test_a_small_curve_of_a_real_model_is_executed_equal(name: str) -> None:
    traced(name, ["90%", "60%"], iterations=20)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*QUICK, *NAMES])
def test_curves_of_real_models_are_executed_equal(name: str) -> None:
    traced(name, BUDGETS, search_seconds=1)
