"""Draws the trade-off curve of every training graph, and counts what a curve must not do.

    python bench/curves.py                        # all training instances, given order; writes docs/curves.svg
    python bench/curves.py --instances unet_b4 --seconds 20 --order free --picture /tmp/curves.svg

A line a budget: what was found and the bound. Counted are points that miss a budget a tighter one meets, pairs of
which the looser takes more time, and points below their bound: exit 1 when there is any. A curve of optima need not
be convex. Where a point lies above the line between its neighbours, the bound may as well, which proves that the curve
of optima breaks there; or the curve of bounds breaks at that budget too; or neither, and a better plan may be left.
Writes bench/results/curves.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.plots import curves
from bench.catalogue import Instance, instances
from bench.run import machine, names
from planner.asked import parse_curve
from planner.curves import curve

RESULTS = Path(__file__).parent / "results" / "curves.json"
PICTURE = Path(__file__).parents[1] / "docs" / "curves.svg"
BUDGETS = [f"{percent}%" for percent in range(100, 10, -10)]
#: Random layered graphs are no training graphs.
NO_TRAINING = "layered"
TITLE = "extra time over budget, a share of the peak without recomputation; shaded: no plan takes less"
PROVEN, AS_THE_BOUND, IN_THE_GAP = "proven by the bound", "as the bound has it", "within the gap"


def main() -> int:
    asked = arguments()
    rows, wrong = [], 0
    for instance in instances():
        if asked.instances and instance.name not in asked.instances:
            continue
        if not asked.instances and instance.name.startswith(NO_TRAINING):
            continue
        row = traced(instance, asked.seconds, asked.order)
        rows.append(row)
        wrong += row["violations"] + row["below_bound"]
        print("\n".join(lines(row)), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "order": asked.order, "rows": rows}, indent=1) + "\n")
    asked.picture.write_text(picture(rows))
    breaks = [why for row in rows for why in row["breaks"].values()]
    said = ", ".join(f"{breaks.count(why)} {why}" for why in (PROVEN, AS_THE_BOUND, IN_THE_GAP))
    print(f"{len(rows)} curves, {wrong} violations, {len(breaks)} convexity breaks ({said})")
    return 1 if wrong else 0


def traced(instance: Instance, seconds: float, order: str) -> dict[str, Any]:
    """The curve of one instance, and what is to be said of it."""
    fields = {"budgets": BUDGETS, "search_seconds": seconds, "order": order, "layout": "none"}
    document = curve(instance.bytes, parse_curve(fields)).document
    points = [{k: v for k, v in point.items() if k != "plan"} for point in document["points"]]
    met = [point for point in points if point["status"] != "over_budget"]
    return {
        "instance": instance.name, "seconds_limit": seconds, "points": points, "violations": document["violations"],
        "below_bound": sum(point["overhead"] < point["bound_overhead"] - 1e-12 for point in met),
        "breaks": breaks_of(met), "elapsed": document["elapsed"],
    }  # fmt: skip


def breaks_of(points: list[dict[str, Any]]) -> dict[str, str]:
    """Budgets at which a curve lies above the line between its neighbours, and why; points descend by budget."""
    found = {}
    for loose, here, tight in zip(points, points[1:], points[2:], strict=False):
        part = (here["budget_bytes"] - tight["budget_bytes"]) / (loose["budget_bytes"] - tight["budget_bytes"])
        line, below = (
            part * loose[what] + (1 - part) * tight[what] for what in ("overhead", "bound_overhead")
        )  # fmt: skip
        if here["overhead"] > line + 1e-12:
            why = AS_THE_BOUND if here["bound_overhead"] > below + 1e-12 else IN_THE_GAP
            found[here["budget"]] = PROVEN if here["bound_overhead"] > line else why
    return found


def lines(row: dict[str, Any]) -> list[str]:
    """One curve for people."""
    text = [f"{row['instance']}: {sum(row['elapsed'].values()):.1f} s, {row['violations']} violations"]
    for point in row["points"]:
        missed = point["status"] == "over_budget"
        reached = "missed" if missed else f"{100 * point['overhead']:.2f}%"
        bound = "" if missed else f"bound {100 * point['bound_overhead']:.2f}%"
        text.append(
            f"  {point['budget']:>5} {reached:>9}  {bound:14} {row['breaks'].get(point['budget'], '')}".rstrip()
        )
    return text


def picture(rows: list[dict[str, Any]]) -> str:
    """The curves as an SVG, a panel each: budgets to the right, extra time upwards."""
    return curves({row["instance"]: row["points"] for row in rows}, TITLE)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=names, default=[])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
