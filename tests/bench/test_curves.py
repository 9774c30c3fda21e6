"""What the bench counts over curves, and whether a bound explains a convexity break."""

from __future__ import annotations

from typing import Any

import pytest

from bench.curves import AS_THE_BOUND, IN_THE_GAP, PROVEN, breaks, breaks_of, is_over, told


def points(*rows: tuple[float, float]) -> list[dict[str, Any]]:
    """Overhead and bound at budgets of 90%, 80%, 70%."""
    return [
        {
            "budget": f"{90 - 10 * i}%",
            "budget_bytes": 90 - 10 * i,
            "peak_bytes": 90 - 10 * i,
            "status": "found",
            "overhead": found,
            "bound_overhead": bound,
        }
        for i, (found, bound) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("middle", "why"), [((0.5, 0.0), None), ((0.7, 0.0), IN_THE_GAP), ((0.7, 0.4), AS_THE_BOUND), ((0.7, 0.6), PROVEN)]
)
def test_a_break_is_explained_by_a_bound_above_the_line(middle: tuple[float, float], why: str | None):
    #   overhead  0 ── middle ── 1      the line at 80% is at 0.5, and that of the bounds at 0.3
    curve = points((0.0, 0.0), middle, (1.0, 0.6))
    assert breaks_of(curve) == ({} if why is None else {"80%": why})
    if why is not None:
        (found,) = breaks(curve)
        assert found[2:] == pytest.approx((middle[0] - 0.5, middle[0] - middle[1], middle[1] - 0.3))


def test_a_plan_past_the_budget_it_is_said_to_meet_is_counted(capsys: pytest.CaptureFixture[str]):
    curve = points((0.0, 0.0), (0.4, 0.0), (1.0, 0.6))
    row = {"instance": "drawn", "points": curve, "violations": 0, "below_bound": 0}
    assert told([row]) == 0 and not any(map(is_over, curve))
    curve[1]["peak_bytes"] += 1
    assert is_over(curve[1]) and told([row]) == 1
    assert "1 over the budget" in capsys.readouterr().out
    curve[1]["status"] = "over_budget"
    assert not is_over(curve[1])
