"""Draws the trade-off curve of every training graph, and counts what a curve must not do.

    python bench/curves.py                        # all training instances, given order; writes docs/pictures/curves.svg
    python bench/curves.py --instances unet_b4 --seconds 20 --order free --picture /tmp/curves.svg
    python bench/curves.py --told                 # nothing is planned: the last run is counted and told again
    python bench/curves.py --models               # models of the onnx wheel and exported ones at batch 32, executed

A line a budget: what was found and the bound. Counted are plans that pass the budget they are said to meet, points
that miss a budget a tighter one meets or take more time than it, and points below their bound: exit 1 when there is
any. A curve of optima need not be convex. Where a point lies above the line between its neighbours, the bound may as
well, which proves that the curve of optima breaks there; or the curve of bounds breaks at that budget too; or neither,
and a better plan may be left: how much better it has to be for the break to go is told beside the gap to the bound.
Writes bench/results/curves.json. With `--models` plans are executed on cut-down shapes as well, where `auto` would;
those that computed something else are counted, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.render.svg import curves
from bench.catalogue import Instance, instances
from bench.run import machine, names
from planner.pipeline.curve import curve
from planner.request.curve_and_fit_request import parse_curve
from tests.end_to_end.models import MODELS

RESULTS = Path(__file__).parent / "results" / "curves.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "curves.svg"
BUDGETS = [f"{percent}%" for percent in range(100, 10, -10)]
BATCH = 32
#: Random layered graphs are no training graphs.
NO_TRAINING = "layered"
TITLE = "overhead over budget, a share of the peak without recomputation; shaded: proven impossible"
#: Less extra time than this is none.
LEAST = 1e-12
PROVEN, AS_THE_BOUND, IN_THE_GAP = "proven by the bound", "as the bound has it", "within the gap"


def main() -> int:
    asked = arguments()
    if asked.told:
        rows = json.loads(RESULTS.read_text())["rows"]
        asked.picture.write_text(picture(rows))
        return told(rows)
    if asked.models:
        return of_models(asked.instances, asked.seconds, asked.order)
    rows = []
    for instance in instances():
        if asked.instances and instance.name not in asked.instances:
            continue
        if not asked.instances and instance.name.startswith(NO_TRAINING):
            continue
        row = traced(instance, asked.seconds, asked.order)
        rows.append(row)
        print("\n".join(lines(row)), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "order": asked.order, "rows": rows}, indent=1) + "\n")
    asked.picture.write_text(picture(rows))
    return told(rows)


def told(rows: list[dict[str, Any]]) -> int:
    """Print what was counted over all curves, and a line for each convexity break; 1 where something must not be."""
    over = sum(is_over(point) for row in rows for point in row["points"])
    pairs, below = (sum(row[name] for row in rows) for name in ("violations", "below_bound"))
    points = sum(len(row["points"]) for row in rows)
    said = f"{over} over the budget they are said to meet, {pairs} pairs not monotone, {below} below their bound"
    print(f"{len(rows)} curves, {points} points: {said}")
    found = [(row["instance"], *one) for row in rows for one in breaks(met_of(row["points"]))]
    counts = ", ".join(f"{sum(one[2] == why for one in found)} {why}" for why in (PROVEN, AS_THE_BOUND, IN_THE_GAP))
    print(f"{len(found)} convexity breaks ({counts})")
    if found:
        print("| instance | budget | above the line | gap to the bound | the curve of bounds | explained |")
        print("| --- | --- | --- | --- | --- | --- |")
    for instance, budget, why, above, gap, bound_above in found:
        bends = "breaks too" if bound_above > LEAST else "does not"
        print(
            f"| {instance} | {budget} | {above:.2%} | {gap:.2%} | {bends}, {round(bound_above, 6) + 0.0:+.2%} | {why} |"
        )
    return 1 if over or pairs or below else 0


def is_over(point: dict[str, Any]) -> bool:
    """The plan passes a budget that it is said to meet."""
    return bool(point["status"] != "over_budget" and point["peak_bytes"] > point["budget_bytes"])


def met_of(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [point for point in points if point["status"] != "over_budget"]


def of_models(chosen: list[str], seconds: float, order: str) -> int:
    """Trace real models and tell of them; 1 where `told` says so, or a plan was not executed equal."""
    rows, different = [], 0
    for name, (path, fields) in MODELS.items():
        if not chosen or name in chosen:
            asked = {**fields, "batch": BATCH, "budgets": BUDGETS[1:], "search_seconds": seconds, "order": order}
            made = curve(path.read_bytes(), parse_curve({**asked, "execute": "auto"}))
            rows.append(row_of(name, made.document, seconds))
            print("\n".join(lines(rows[-1])), flush=True)
            said = [outcome.report["executed"]["status"] for outcome in made.outcomes]
            different += said.count("different")
            print(f"  {said.count('equal')} of {len(said)} plans executed equal", flush=True)
    print(f"{different} plans computed something else")
    return told(rows) or int(different > 0)


def traced(instance: Instance, seconds: float, order: str) -> dict[str, Any]:
    """The curve of one instance, and what is to be said of it."""
    fields = {"budgets": BUDGETS, "search_seconds": seconds, "order": order, "layout": "none"}
    return row_of(instance.name, curve(instance.bytes, parse_curve(fields)).document, seconds)


def row_of(name: str, document: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What is to be said of a curve."""
    points = [{k: v for k, v in point.items() if k != "plan"} for point in document["points"]]
    met = met_of(points)
    return {
        "instance": name,
        "seconds_limit": seconds,
        "points": points,
        "violations": document["violations"],
        "below_bound": sum(point["overhead"] < point["bound_overhead"] - 1e-12 for point in met),
        "breaks": breaks_of(met),
        "elapsed": document["elapsed"],
    }


def breaks_of(points: list[dict[str, Any]]) -> dict[str, str]:
    """Budgets at which a curve lies above the line between its neighbours, and why; points descend by budget."""
    return {budget: why for budget, why, *_ in breaks(points)}


def breaks(points: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, float, float]]:
    """Of each (budget, why, how far above the line, gap to the bound, how far the bound is above its own line)."""
    for loose, here, tight in zip(points, points[1:], points[2:], strict=False):
        part = (here["budget_bytes"] - tight["budget_bytes"]) / (loose["budget_bytes"] - tight["budget_bytes"])
        line, below = (part * loose[what] + (1 - part) * tight[what] for what in ("overhead", "bound_overhead"))
        if here["overhead"] > line + LEAST:
            above = here["bound_overhead"] - below
            why = PROVEN if here["bound_overhead"] > line else AS_THE_BOUND if above > LEAST else IN_THE_GAP
            yield here["budget"], why, here["overhead"] - line, here["overhead"] - here["bound_overhead"], above


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
    parser.add_argument("--models", action="store_true", help="real models; `--instances` chooses among them")
    parser.add_argument("--told", action="store_true", help="plan nothing, tell of the last run")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
