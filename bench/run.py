"""Scores planners: every instance x budget x planner x seed, through the whole data path.

    python bench/run.py                                                    # everything, given order
    python bench/run.py --instances unet_b4,chain40 --planners greedy --seconds 5 --seeds 0,1,2
    python bench/run.py --order free --print                               # tables of what was stored

Writes bench/results/recompute-ORDER.json. Rows that were there for other instances, budgets, planners or seeds stay.
Tables have one row an instance: extra time over no recomputation in percent, the median of the seeds, with the best
known schedule and the proven bound behind it. "-" did not meet the budget.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import Instance, instances
from planner.algorithms import PLANNERS
from planner.errors import IllegalPlan
from planner.pipeline import solve as pipeline
from planner.request.plan_request import parse_request

RESULTS = Path(__file__).parent / "results"
KEY = ("instance", "budget", "planner", "seed", "seconds_limit")


def main() -> int:
    asked = arguments()
    path = asked.out or RESULTS / f"recompute-{asked.order}.json"
    rows = {key_of(row): row for row in stored(path)}
    if asked.print:
        for planner in sorted({row["planner"] for row in rows.values()}):
            print(table(planner, [row for row in rows.values() if row["planner"] == planner]))
        return 0
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


def scored(instance: Instance, budget: str, planner: str, seed: int, seconds: float, order: str) -> dict[str, Any]:
    """One row: what the planner reached within the budget, and how long all of planning took."""
    fields = {
        "budget": float(budget),
        "planner": planner,
        "seed": seed,
        "search_seconds": seconds,
        "order": order,
        "layout": "none",
        "execute": "no",
        "return": ["plan"],
    }
    row: dict[str, Any] = {
        "instance": instance.name,
        "budget": budget,
        "planner": planner,
        "seed": seed,
        "seconds_limit": seconds,
    }
    began = time.perf_counter()
    try:
        report = pipeline.solve(instance.bytes, parse_request(fields)).report
    except IllegalPlan as error:
        return {**row, "legal": False, "checked": False, "why": str(error)}
    elapsed, plan = time.perf_counter() - began, report["plan"]
    return {
        **row,
        "legal": True,
        "checked": report["checked"],
        "status": plan["status"],
        "by": plan["planner"],
        "overhead": plan["overhead"],
        "peak_bytes": plan["peak_bytes"],
        "budget_bytes": plan["budget_bytes"],
        "fits": plan["peak_bytes"] <= plan["budget_bytes"],
        "seconds": round(elapsed, 3),
        "plan_seconds": round(report["elapsed"]["plan"], 3),
        "best_known": instance.best_known(budget),
        "bound": instance.bound(budget),
    }


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


def add_only(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add the option `--only`, a list of some of the names; without it, all of them."""

    def known(text: str) -> list[str]:
        asked = text.split(",")
        if unknown := [name for name in asked if name not in names]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(names)}")
        return asked

    parser.add_argument("--only", type=known, default=list(names), metavar="NAMES", help=f"of {', '.join(names)}")


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    model = [row for row in Path("/proc/cpuinfo").read_text().splitlines() if row.startswith("model name")]
    return {
        "cpu": model[0].partition(": ")[2] if model else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def table(planner: str, rows: list[dict[str, Any]]) -> str:
    """A Markdown table of one planner's rows."""
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    lines = [
        f"### {planner}: reached (best known, bound)",
        "",
        "| instance | " + " | ".join(budgets) + " | seconds |",
        "|---|" + "---|" * (len(budgets) + 1),
    ]
    for instance in dict.fromkeys(row["instance"] for row in rows):
        of = [row for row in rows if row["instance"] == instance]
        cells = [cell([row for row in of if row["budget"] == budget]) for budget in budgets]
        slowest = max((row.get("seconds", 0.0) for row in of), default=0.0)
        lines.append(f"| {instance} | " + " | ".join(cells) + f" | {slowest:.1f} |")
    return "\n".join(lines) + "\n"


def cell(rows: list[dict[str, Any]]) -> str:
    """Median over the seeds; one seed that misses the budget makes it a miss."""
    if not rows:
        return ""
    if not all(row["legal"] for row in rows):
        return "illegal"
    met = all(row["fits"] for row in rows)
    reached = f"{100 * statistics.median(row['overhead'] for row in rows):.2f}" if met else "-"
    return f"{reached} ({percent(rows[0]['best_known'])}, {percent(rows[0]['bound'])})"


def percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f}"


def resident_bytes(reset: bool = False) -> int:
    """Most bytes this process has held at once, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=names, default=[])
    parser.add_argument("--budgets", type=names, default=[])
    parser.add_argument("--planners", type=names, default=[*PLANNERS, "auto"])
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--print", action="store_true", help="print what was stored instead")
    return parser.parse_args()


def names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
