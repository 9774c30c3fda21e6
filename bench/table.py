"""Prints the tables of our planners from what `bench/run.py` stored.

    python bench/table.py [--order given] [--planner auto]

One table a planner: extra time over no recomputation in percent, the median of the seeds, per instance
and budget, with the best known schedule and the proven bound behind it. "-" did not meet the budget.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--planner")
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    path = asked.results or RESULTS / f"recompute-{asked.order}.json"
    if not path.exists():
        print(f"{path} does not exist; run bench/run.py --order {asked.order} first", file=sys.stderr)
        return 2
    document = json.loads(path.read_text())
    print(f"Order {asked.order}; {document['machine']['cpu']}, {document['machine']['cores']} cores.\n")
    for planner in sorted({row["planner"] for row in document["rows"]}):
        if asked.planner in (None, planner):
            print(table(planner, [row for row in document["rows"] if row["planner"] == planner]))
    return 0


def table(planner: str, rows: list[dict[str, Any]]) -> str:
    """A Markdown table of one planner's rows."""
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    lines = [
        f"### {planner}: reached (best known, bound)", "",
        "| instance | " + " | ".join(budgets) + " | seconds |", "|---|" + "---|" * (len(budgets) + 1),
    ]  # fmt: skip
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


if __name__ == "__main__":
    sys.exit(main())
