"""Bodies planned against storing everything and recomputing everything.

    python bench/bodies.py                    # a transformer of 32 layers and a recurrence of 1,000 steps
    python bench/bodies.py --layers 4 --steps 50 --execute

For each model: memory and time of storing what every trip makes, of storing the states alone, and of the
plan at budgets between; for the recurrence also the trips run, against the least that Revolve's rows allow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.scans import recurrence, transformer
from graph.autodiff.differentiate import differentiate
from graph.ir import Graph
from graph.loop_remat import find_pairs, with_saved_values
from graph.ops.control_flow import SNAPSHOT_GRAD, CheckpointedGrad
from planner.algorithms.checkpointing.revolve import forward_steps
from planner.formulation.formulate import formulate
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

#: Budgets, as shares of the way from recomputing everything to storing everything.
SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
#: Budgets of the recurrence below that, as shares of the activations that recomputing everything holds.
BELOW = (0.5, 0.25, 0.1, 0.05)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run a step."""

    name: str
    peak_bytes: int
    seconds: float
    trips: int | None = None  # forward, altogether
    least_trips: int | None = None  # with as many rows, by Revolve
    executed: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="widths that can be executed")
    parser.add_argument("--execute", action="store_true", help="run each plan and compare bit for bit")
    parser.add_argument("--parts", action="store_true", help="also the planner `recurrent`, which cuts the recurrence")
    parser.add_argument("--seconds", type=float, default=20.0, help="search time a plan")
    asked = parser.parse_args()
    small = asked.small or asked.execute
    models = [
        transformer(asked.layers, 16, 32, 2) if small else transformer(asked.layers),
        recurrence(asked.steps, 4, 16) if small else recurrence(asked.steps),
    ]
    for model in models:
        print(f"\n{model.name}")
        print(f"{'':34}{'peak':>12}{'activations':>14}{'seconds':>12}{'overhead':>10}{'trips':>8}{'Revolve':>9}")
        step = step_of(model)
        found = list(rows(step, asked.seconds, asked.execute, below=BELOW if model is models[-1] else ()))
        show(step, [*found, *(in_parts(step, asked.seconds) if asked.parts and model is models[-1] else ())])
    return 0


def step_of(model: Graph) -> Graph:
    return differentiate(model, ["loss"])


def show(step: Graph, found: list[Row]) -> None:
    resident = resident_bytes(step)
    for row in found:
        trips = "" if row.trips is None else f"{row.trips:8}{row.least_trips or '':>9}"
        extra = row.seconds / found[0].seconds - 1
        print(
            f"{row.name:34}{row.peak_bytes:>12,}{row.peak_bytes - resident:>14,}{row.seconds:>12.6f}{extra:>10.2%}"
            f"{trips} {row.executed}"
        )


def rows(
    step: Graph,
    seconds: float = 20.0,
    execute: bool = False,
    shares: Sequence[float] = SHARES,
    below: Sequence[float] = (),
) -> Iterator[Row]:
    """Storing everything, recomputing everything, and plans at budgets between, both ends included."""
    (pair,) = find_pairs(step)
    most, least = as_given(step), as_given(with_saved_values(step, pair, []))
    yield Row("store everything", *most)
    yield Row("recompute everything", *least)
    for share in shares:
        budget = round(least[0] + share * (most[0] - least[0]))
        yield planned(step, budget, f"planned, {share:.0%} of the way", seconds, execute)
    for share in below:
        budget = round(least[0] - (1 - share) * (least[0] - resident_bytes(step)))
        yield planned(step, budget, f"planned, {share:.0%} of the least", seconds, execute)


def in_parts(step: Graph, seconds: float) -> Iterator[Row]:
    """What the planner `recurrent` makes of the budgets below recomputing everything."""
    (pair,) = find_pairs(step)
    least = as_given(with_saved_values(step, pair, []))
    for share in (1.0, *BELOW):
        budget = round(least[0] - (1 - share) * (least[0] - resident_bytes(step)))
        yield planned(step, budget, f"recurrent, {share:.0%} of the least", seconds, False, "recurrent")


def resident_bytes(step: Graph) -> int:
    return sum(value.nbytes for value in step.values if value.role.value != "activation")


def as_given(step: Graph) -> tuple[int, float]:
    """(bytes needed before addresses, seconds) of a graph in its own order."""
    formulation = formulate(step, parse_request({"budget": "100%"}))
    return formulation.baseline_bytes, formulation.baseline_cost * formulation.lowered.problem.tick


def planned(step: Graph, budget: int, name: str, seconds: float, execute: bool, planner: str = "auto") -> Row:
    began = time.monotonic()
    asked = {"budget": budget, "planner": planner, "search_seconds": seconds, "execute": "yes" if execute else "no"}
    outcome = solve(step, parse_request(asked))
    report = outcome.report
    took = f"planned in {time.monotonic() - began:.1f} s"
    if execute:
        took += f", {report['executed']['status']}"
    trips, least = trips_run(outcome.graph)
    return Row(name, report["plan"]["peak_bytes"], report["plan"]["seconds"], trips, least, took)


def trips_run(graph: Graph) -> tuple[int | None, int | None]:
    """(trips run forward, the least that Revolve needs with as many rows) of a net that keeps some of its states."""
    for node in graph.nodes:
        if node.op != SNAPSHOT_GRAD:
            continue
        parts = CheckpointedGrad.of(node)
        count, kept = parts.trips(), graph.values[node.inputs[parts.gradients]].type
        forward = next(other for other in graph.nodes if other.name == node.annotations["gradient_of"])
        names = {inner.name for inner in forward.bodies["body"].graph.nodes}
        # within each trip back
        again = count if any(inner.name in names for inner in parts.body("body").graph.nodes) else 0
        assert kept is not None
        return count + parts.runs()["advance"] + again, forward_steps(count, kept.shape[0]) + again
    return None, None


if __name__ == "__main__":
    sys.exit(main())
