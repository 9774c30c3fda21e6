"""Measures every goal of the planner, floor and aim, and says which are met; exit 1 under a floor.

    python bench/table.py                      # median of three seeds; most of an hour on a quiet machine
    python bench/table.py --quick              # one seed
    python bench/table.py --only LSTM,curve    # goals and cases whose name contains one of these
    python bench/table.py --published FOLDER   # where the published graphs are (bench/instances/README.md)

Published graphs are read from that folder, else from the one REMAT_PUBLISHED names, else from
`../shared/instances/published`; rows of graphs that are not there are skipped, with a message.
Writes bench/results/targets.json. What is measured stands in `bench/targets.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import PUBLISHED, PUBLISHED_SOURCE, PUBLISHED_VARIABLE, find_published, published_folder
from bench.run import machine
from bench.targets import ALLOWED_OVERRUN, Measure, Target, overruns, targets
from planner.warm import warm

RESULT = Path(__file__).parent / "results" / "targets.json"
SEEDS = (0, 1, 2)
#: The part of the goals whose aim is to be met.
PART = 2 / 3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""])
    parser.add_argument("--published", type=Path, metavar="FOLDER", help="folder of the published graphs")
    asked = parser.parse_args()
    folder = published_folder(asked.published)
    published = find_published(folder)
    if missing := skipped(folder, published):
        print(missing, file=sys.stderr)
    warm()
    rows = []
    for target in targets(published):
        if any(word in f"{target.goal}: {target.case}" for word in asked.only):
            rows.append(measured(target, SEEDS[:1] if asked.quick else SEEDS))
            print(line(rows[-1]), flush=True)
    print(f"\n{table(rows)}\n{verdict(rows)}\n{lateness(rows)}")
    if asked.only == [""]:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"machine": machine(), "quick": asked.quick, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["floor_met"] is False for row in rows) else 0


def skipped(folder: Path, published: dict[str, Path]) -> str:
    """The message about published graphs that are not in the folder; empty when all are."""
    missing = [name for name in PUBLISHED if name not in published]
    if not missing:
        return ""
    return (
        f"{folder}: no published graphs {', '.join(missing)}; their rows are skipped. Source: {PUBLISHED_SOURCE}. "
        f"Name their folder with --published or {PUBLISHED_VARIABLE}; bench/instances/README.md describes the files."
    )


def measured(target: Target, seeds: tuple[int, ...]) -> dict[str, Any]:
    """One case: median values beside floor and aim; None where it has none."""

    def middle(measure: Measure) -> float:
        return statistics.median(measure(seed) for seed in seeds)

    known = len(overruns)
    floor = None if target.floor is None else middle(target.at_floor)
    aim = None if target.aim is None else middle(target.at_aim)
    return {
        "goal": target.goal,
        "case": target.case,
        "floor": target.floor,
        "at_floor": floor,
        "floor_met": None if floor is None or target.floor is None else floor <= target.floor,
        "aim": target.aim,
        "at_aim": aim,
        "aim_met": None if aim is None or target.aim is None else aim <= target.aim,
        "overruns": overruns[known:],  # of its reports, in seconds
    }


def line(row: dict[str, Any]) -> str:
    """One case for people who wait."""
    said = {True: "met", False: "MISSED", None: ""}
    floor, aim = (f"{said[row[f'{level}_met']]} {part(row, level)}" for level in ("floor", "aim"))
    return f"{row['goal'][:44]:44} {row['case'][:48]:48} floor {floor:24} aim {aim}"


def part(row: dict[str, Any], level: str) -> str:
    """ "measured (wanted)" of a level."""
    return "" if row[level] is None else f"{number(row[f'at_{level}'])} ({number(row[level])})"


def number(value: float) -> str:
    if math.isinf(value):
        return "missed"
    return "any" if value >= 1e9 else f"{value:.2f}"


def goals_of(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Goal -> its cases."""
    return {goal: [row for row in rows if row["goal"] == goal] for goal in dict.fromkeys(row["goal"] for row in rows)}


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: a goal, how many of its cases meet floor and aim, and what was measured where they miss."""
    lines = ["| goal | floor | aim | missed: measured (wanted) |", "|---|---|---|---|"]
    for goal, cases in goals_of(rows).items():
        cells = []
        for level in ("floor", "aim"):
            known = [case[f"{level}_met"] for case in cases if case[f"{level}_met"] is not None]
            cells.append(f"{sum(known)} of {len(known)}")
        missed = [
            f"{case['case']}: {part(case, level)}"
            for case in cases
            for level in ("floor", "aim")
            if case[f"{level}_met"] is False
        ]
        lines.append(f"| {goal} | {' | '.join(cells)} | {'; '.join(dict.fromkeys(missed))} |")
    return "\n".join(lines)


def lateness(rows: list[dict[str, Any]]) -> str:
    """How much later than requested reports came: the median, and the worst with its case."""
    every = [(late, f"{row['goal']}: {row['case']}") for row in rows for late in row["overruns"]]
    if not every:
        return "no report was timed"
    worst, case = max(every)
    middle, count = statistics.median(late for late, _ in every), sum(late > ALLOWED_OVERRUN for late, _ in every)
    return (
        f"reports after the time requested: median {middle:+.2f} s, worst {worst:+.2f} s ({case}), "
        f"{count} of {len(every)} later than {ALLOWED_OVERRUN} s"
    )


def verdict(rows: list[dict[str, Any]]) -> str:
    """How many goals meet their floor and their aim in every case."""
    goals = goals_of(rows).values()
    floors, aims = (
        sum(all(case[f"{level}_met"] is not False for case in cases) for cases in goals) for level in ("floor", "aim")
    )
    wanted = math.ceil(PART * len(goals))
    return f"floor met by {floors} of {len(goals)} goals, aim by {aims}; wanted: all, and {wanted}"


if __name__ == "__main__":
    sys.exit(main())
