"""Prints which plans are proven optimal, how soon, and what the verifier says of each certificate.

    python bench/proofs.py                      # the eight named cases, 2 seconds each
    python bench/proofs.py --small              # also every instance to 100 tasks, fcn8, vgg16, unet; 5 seconds each
    python bench/proofs.py --only vgg16,unet    # cases whose name contains one of these
    python bench/proofs.py --cpu                # time in CPU seconds, where other processes share the cores
    python bench/proofs.py --published FOLDER   # where the published graphs are (bench/instances/README.md)

With --cpu, time passes as the CPU seconds of the main thread, as if every other thread had a core of its own, and as
those of the bound where the main thread waits for it. Exits 1 if a certificate is refused or a row misses: `proven`, or
with --small a gap of at most 0.001 points, in its seconds. A budget below the smallest one proven holds too.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.catalogue import find_published, instances, published_folder, read_published
from planner.pipeline import bound_beside
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.request.plan_request import parse_request
from planner.warm import warm

NAMED = [
    *(("fcn8_b32", budget) for budget in ("0.90", "0.80", "0.70")),
    ("layered_n100_s1", "0.70"),
    ("vgg16_b32", "0.90"),
    ("vgg16_b32", "0.80"),
    ("unet_b4", "0.90"),
    ("resnet50_b256", "0.90"),
]
NAMED_SECONDS, SMALL_SECONDS = 2.0, 5.0
#: Tasks of a small instance, and the gap allowed as a share; other small cases and their budgets.
SMALL_TASKS, SMALL_GAP = 100, 1e-5
ALSO_SMALL, SMALL_BUDGETS = ("fcn8_b32", "vgg16_b32", "unet_b4"), ("0.90", "0.80", "0.70", "0.60", "0.50")


@dataclass(frozen=True)
class Row:
    """One case as `remat plan` answers it."""

    case: str
    budget: str
    status: str
    gap: float | None  # share of the step's time; None: over the budget
    none_fits: bool  # it is proven that no plan is within the budget
    seconds: float
    accepted: bool
    allowed: float
    limit: float  # of the seconds

    @property
    def holds(self) -> bool:
        proven = self.none_fits if self.gap is None else self.gap <= self.allowed
        return self.accepted and proven and self.seconds <= self.limit

    def line(self) -> str:
        gap = ("no plan fits" if self.none_fits else "none") if self.gap is None else f"{self.gap:.1e}"
        verifier = "accepted" if self.accepted else "REFUSED"
        missed = "" if self.holds else " MISSED"
        return f"| {self.case} | {self.budget} | {self.status} | {gap} | {self.seconds:.2f} | {verifier} |{missed}"


class CpuClock:
    """CPU seconds of the main thread, and of the thread that tightens a bound while the main thread waits for it."""

    def __init__(self) -> None:
        self.main = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self.waited = 0.0  # CPU seconds of bounds that the main thread has waited for
        self.bound: Callable[[], float] = lambda: 0.0  # CPU seconds of the running bound
        self.since: float | None = None  # those of the bound when the main thread began to wait

    def __call__(self) -> float:
        waiting = 0.0 if self.since is None else self.bound() - self.since
        return time.clock_gettime(self.main) + self.waited + waiting

    def install(self) -> None:
        """Replace the monotonic clock of the planner."""
        run, tightened = bound_beside.BoundBeside.run, bound_beside.BoundBeside.tightened

        def timed(beside: bound_beside.BoundBeside, *given: Any) -> None:
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self.bound = lambda: time.clock_gettime(clock)
            run(beside, *given)
            ended = time.thread_time()
            self.bound = lambda: ended

        def waited(beside: bound_beside.BoundBeside, *given: Any) -> Any:
            self.since = self.bound()
            try:
                return tightened(beside, *given)
            finally:
                self.waited += self.bound() - self.since
                self.since = None

        bound_beside.BoundBeside.run = timed  # type: ignore[method-assign]
        bound_beside.BoundBeside.tightened = waited  # type: ignore[method-assign]
        time.monotonic = self


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="also all small instances, 5 seconds each")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""])
    parser.add_argument("--cpu", action="store_true", help="CPU seconds")
    parser.add_argument("--published", type=Path, metavar="FOLDER", help="folder of the published graphs")
    asked = parser.parse_args()
    published = find_published(published_folder(asked.published))
    documents = {name: read_published(path) for name, path in published.items()}
    documents |= {instance.name: instance.bytes for instance in instances()}
    warm()
    if asked.cpu:
        CpuClock().install()
    cases = [(*case, NAMED_SECONDS, 0.0) for case in NAMED]
    cases += [(*case, SMALL_SECONDS, SMALL_GAP) for case in small_cases()] if asked.small else []
    print("| case | budget | status | gap | seconds | verifier |\n|---|---|---|---|---|---|")
    failed = 0
    for name, budget, seconds, allowed in cases:
        if name not in documents:
            print(f"{name}: no published graph of this name; the row is skipped", file=sys.stderr)
        elif any(word in name for word in asked.only):
            row = measured(documents[name], name, budget, seconds, allowed)
            print(row.line(), flush=True)
            failed += not row.holds
    print(f"\n{failed} missed" if failed else "\nall hold")
    return 1 if failed else 0


def small_cases() -> list[tuple[str, str]]:
    """Instances of at most SMALL_TASKS tasks at the budgets that are known, and others at SMALL_BUDGETS."""
    small = [i for i in instances() if i.name not in ALSO_SMALL and i.tasks <= SMALL_TASKS]
    known = [(instance.name, budget) for instance in small for budget in instance.budgets]
    return known + [(name, budget) for name in ALSO_SMALL for budget in SMALL_BUDGETS]


def measured(document: bytes, name: str, budget: str, seconds: float, allowed: float) -> Row:
    """A case with its time from document to report, and the verifier's answer to the saved report."""
    request = {"budget": float(budget), "search_seconds": seconds, "execute": "no", "return": ["plan", "source"]}
    began = time.monotonic()
    report: dict[str, Any] = solve(document, parse_request(request)).report
    elapsed = time.monotonic() - began
    plan = report["plan"]
    accepted = plan["bound"]["proof"] == "certified" and saved_report.verify(report)["valid"]
    none_fits = plan["status"] == "over_budget" and plan["smallest_budget_proven"]
    return Row(name, budget, plan["status"], plan["gap"], none_fits, elapsed, bool(accepted), allowed, seconds)


if __name__ == "__main__":
    sys.exit(main())
