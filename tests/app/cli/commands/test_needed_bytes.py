"""Tables of fits and curves show the memory that decides, where the peak alone is within the budget."""

from __future__ import annotations

from typing import Any

from app.cli.commands import curve, fit

PLAN = {"peak_bytes": 900, "needed_bytes": 1024, "overhead": 0.05, "planner": "greedy"}


def test_a_size_that_does_not_fit_is_shown_with_the_memory_it_needs() -> None:
    row = PLAN | {"size": 3, "why": "not_found", "said": "the best plan found is 24 bytes over the memory"}
    shown = fit.lines(
        {"dimension": None, "size": None, "budget_bytes": 1000, "max_overhead": 0.1, "tried": [row], "warnings": []}
    )
    assert shown[2].split() == ["batch", "peak", "memory", "needed", "overhead"]
    assert shown[3].split()[:7] == ["3", "900", "B", "1.00", "KiB", "5.0%", "no"]


def test_a_budget_missed_by_the_addresses_is_shown_with_the_memory_needed() -> None:
    def outcome(**fields: Any) -> str:
        point = {"budget": "1000", "budget_bytes": 1000, "status": "over_budget", "bound_overhead": 0.0, "plan": PLAN}
        model, baseline = {"name": "net", "nodes": 1, "values": 1}, {"peak_bytes": 2000, "seconds": 0.1}
        document = {"model": model, "baseline": baseline, "points": [point | PLAN | fields], "warnings": []}
        return curve.lines(document, draw=False)[-1]

    assert "over budget: needs 1.00 KiB" in outcome()
    assert "needs" not in outcome(peak_bytes=1001)
    assert "needs" not in outcome(status="found", budget_bytes=2000)
