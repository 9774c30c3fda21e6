"""Scores planners: every instance x budget x planner x seed, through the whole data path.

    python bench/run.py                                                    # everything, given order
    python bench/run.py --instances unet_b4,chain40 --planners greedy --seconds 5 --seeds 0,1,2

Writes bench/results/recompute-ORDER.json; `bench/table.py` prints it. Rows that were there for other
instances, budgets, planners or seeds stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import Instance, instances
from planner import pipeline
from planner.algorithms import PLANNERS
from planner.errors import IllegalPlan
from planner.request import parse_request

RESULTS = Path(__file__).parent / "results"
KEY = ("instance", "budget", "planner", "seed", "seconds_limit")


def main() -> int:
    asked = arguments()
    path = asked.out or RESULTS / f"recompute-{asked.order}.json"
    rows = {key_of(row): row for row in stored(path)}
    for instance in instances():
        if asked.instances and instance.name not in asked.instances:
            continue
        for budget in asked.budgets or instance.budgets:
            for planner in asked.planners:
                for seed in asked.seeds:
                    row = scored(instance, budget, planner, seed, asked.seconds, asked.order)
                    rows[key_of(row)] = row
                    print(line(row), flush=True)
        write(path, list(rows.values()))
    return 0 if all(row["legal"] and row["checked"] for row in rows.values()) else 1


def scored(
    instance: Instance, budget: str, planner: str, seed: int, seconds: float, order: str
) -> dict[str, Any]:  # fmt: skip
    """One row: what the planner reached within the budget, and how long all of planning took."""
    fields = {
        "budget": float(budget), "planner": planner, "seed": seed, "search_seconds": seconds, "order": order,
        "layout": "none", "execute": "no", "return": ["plan"],
    }  # fmt: skip
    row: dict[str, Any] = {
        "instance": instance.name, "budget": budget, "planner": planner, "seed": seed, "seconds_limit": seconds,
    }  # fmt: skip
    began = time.perf_counter()
    try:
        report = pipeline.solve(instance.bytes, parse_request(fields)).report
    except IllegalPlan as error:
        return {**row, "legal": False, "checked": False, "why": str(error)}
    elapsed, plan = time.perf_counter() - began, report["plan"]
    return {
        **row, "legal": True, "checked": report["checked"], "status": plan["status"],
        "by": plan["planner"], "overhead": plan["overhead"], "peak_bytes": plan["peak_bytes"],
        "budget_bytes": plan["budget_bytes"], "fits": plan["peak_bytes"] <= plan["budget_bytes"],
        "seconds": round(elapsed, 3), "plan_seconds": round(report["elapsed"]["plan"], 3),
        "best_known": instance.best_known(budget), "bound": instance.bound(budget),
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    head = f"{row['instance']:24} {row['budget']:>5} {row['planner']:>12} seed {row['seed']}"
    if not row["legal"]:
        return f"{head}  illegal: {row['why']}"
    known = "none" if row["best_known"] is None else f"{100 * row['best_known']:.2f}"
    reached = (
        f"{100 * row['overhead']:7.2f}%" if row["fits"] else f"misses, {row['peak_bytes'] / row['budget_bytes']:.3f}x"
    )
    return f"{head}  {reached:>15}  best known {known:>6}  {row['seconds']:7.2f} s"


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def stored(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows sorted by key under the machine they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "rows": sorted(rows, key=lambda row: tuple(map(str, key_of(row))))}
    path.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    model = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {
        "cpu": model[0].partition(": ")[2] if model else platform.machine(), "cores": os.cpu_count(),
        "python": platform.python_version(),
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=names, default=[])
    parser.add_argument("--budgets", type=names, default=[])
    parser.add_argument("--planners", type=names, default=[*PLANNERS, "auto"])
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
