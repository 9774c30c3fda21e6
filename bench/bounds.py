"""Prints our bounds beside those of `instances/README.md`, and checks each certificate by the verifier.

    python bench/bounds.py [--order given] [--instances chain40,unet_b4] [--plans FILE]

One row per instance and budget, extra time in percent: our bound, the listed one, the best plan known (listed or stored
by `bench/run.py`) and the CPU seconds of bound and verification. Exits 1 when a certificate is refused, or a bound lies
above a plan or under the listed one less 0.1 point. Listed bounds hold in the given order only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import Instance, instances
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.proven_bound import with_lower_bound
from planner.request.plan_request import parse_request

#: Points under the listed bound that are allowed, and what floats of the listed figures may be off.
ALLOWED, ROUNDING = 0.001, 1e-6


@dataclass(frozen=True)
class Row:
    """Overheads as shares; None where nothing is known."""

    instance: str
    budget: str
    bound: float
    listed: float | None
    best: float | None
    kind: str
    proof: str
    seconds: float

    @property
    def holds(self) -> bool:
        enough = self.listed is None or self.bound >= self.listed - ALLOWED
        return enough and self.proof == "certified" and (self.best is None or self.bound <= self.best + ROUNDING)

    def line(self) -> str:
        known, best = (" none" if share is None else f"{100 * share:6.3f}" for share in (self.listed, self.best))
        return (
            f"| {self.instance} | {self.budget} | {100 * self.bound:6.3f} | {known} | {best} | {self.kind} | "
            f"{self.proof} | {self.seconds:.2f} |{'' if self.holds else ' FAILS'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--order", choices=["given", "free"], default="given")
    parser.add_argument("--instances", type=lambda text: text.split(","), default=[])
    parser.add_argument("--plans", type=Path)
    asked = parser.parse_args()
    plans = asked.plans or Path(__file__).parent / "results" / f"recompute-{asked.order}.json"
    found = reached(plans)
    print("| instance | budget | bound | listed | best | kind | proof | seconds |\n|---|---|---|---|---|---|---|---|")
    failed = 0
    for instance in instances():
        if asked.instances and instance.name not in asked.instances:
            continue
        for budget in instance.budgets:
            row = bounded(instance, budget, asked.order, found.get((instance.name, budget)))
            print(row.line(), flush=True)
            failed += not row.holds
    print(f"\n{failed} fail" if failed else "\nall hold")
    return 1 if failed else 0


def bounded(instance: Instance, budget: str, order: str, plan: float | None) -> Row:
    """Our bound for an instance at a budget, beside what is known and the best plan that was stored."""
    request = parse_request({"budget": float(budget), "order": order, "layout": "none", "execute": "no"})
    question = formulate(load(instance.bytes), request)
    began = time.process_time()
    question = with_lower_bound(question)
    seconds = time.process_time() - began
    given = order == "given"
    known = [share for share in (plan, instance.best_known(budget)) if share is not None]  # legal in free order too
    return Row(
        instance.name,
        budget,
        question.overhead(question.bound.cost),
        instance.bound(budget) if given else None,
        min(known, default=None),
        question.bound.kind,
        question.bound.proof,
        seconds,
    )


def reached(path: Path) -> dict[tuple[str, str], float]:
    """Least overhead of the stored plans that met the budget, by instance and budget."""
    best: dict[tuple[str, str], float] = {}
    for row in json.loads(path.read_text())["rows"] if path.exists() else []:
        if row.get("legal") and row.get("fits"):
            key = (row["instance"], row["budget"])
            best[key] = min(row["overhead"], best.get(key, row["overhead"]))
    return best


if __name__ == "__main__":
    sys.exit(main())
