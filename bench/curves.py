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

from bench.catalogue import Instance, instances
from bench.run import machine, names
from planner.asked import parse_curve
from planner.curves import curve

RESULTS = Path(__file__).parent / "results" / "curves.json"
PICTURE = Path(__file__).parents[1] / "docs" / "curves.svg"
BUDGETS = [f"{percent}%" for percent in range(100, 10, -10)]
#: Random layered graphs are no training graphs.
NO_TRAINING = "layered"
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


#: Of one panel, in pixels: width, height, room for the words on the left and below; panels in a row.
WIDE, HIGH, LEFT, BELOW, ACROSS = 250, 150, 44, 34, 3


def picture(rows: list[dict[str, Any]]) -> str:
    """The curves as an SVG: found in solid lines, bounds dashed; budgets to the right, extra time upwards."""
    down = -(-len(rows) // ACROSS)
    width, height = ACROSS * (WIDE + LEFT), down * (HIGH + BELOW + 16) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="10" fill="#333">',
        f'<text x="{LEFT}" y="12">extra time (solid: found; dashed: no plan is below) by budget, a share of the peak '
        "without recomputation</text>",
    ]
    for i, row in enumerate(rows):
        parts += panel(row, LEFT + i % ACROSS * (WIDE + LEFT), 36 + i // ACROSS * (HIGH + BELOW + 16))
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(row: dict[str, Any], x: int, y: int) -> list[str]:
    """One curve with its frame and words, its upper left corner at (x, y)."""
    met = [point for point in row["points"] if point["status"] != "over_budget"]
    top = max([point["overhead"] for point in met], default=0.0) or 0.01
    low, wide = 0.2, WIDE - 20

    def at(point: dict[str, Any], what: str) -> str:
        share = int(point["budget"][:-1]) / 100
        return f"{x + wide * (share - low) / (1 - low):.1f},{y + HIGH * (1 - point[what] / top):.1f}"

    parts = [f'<rect x="{x}" y="{y}" width="{wide}" height="{HIGH}" fill="none" stroke="#ccc"/>']
    parts.append(f'<text x="{x}" y="{y - 4}">{row["instance"]}</text>')
    parts += [
        f'<text x="{x - 4}" y="{y + HIGH * (1 - part) + 4:.1f}" text-anchor="end">{100 * top * part:.1f}%</text>'
        for part in (0, 0.5, 1)
    ]
    parts += [
        f'<text x="{x + wide * (share / 100 - low) / (1 - low):.1f}" y="{y + HIGH + 14}" text-anchor="middle">{share}%'
        "</text>"
        for share in (20, 40, 60, 80, 100)
    ]
    for what, style in (("bound_overhead", ' stroke-dasharray="4 3"'), ("overhead", "")):
        drawn = " ".join(at(point, what) for point in met)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="#1f6fb4"{style}/>')
    return parts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=names, default=[])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
