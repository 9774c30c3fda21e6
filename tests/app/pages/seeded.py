"""Stores with random plans for tests of pages; the rows are written without planning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from app.store.store import Store
from app.store.tables import graphs, plans, result_plans, results, to_timestamp

GIB = 2**30
NETWORKS = ("resnet50", "vit_base", "bert_large", "gpt2_medium", "unet", "convnext_tiny", "llama_decoder", "lstm")
BUDGETS = ("90%", "70%", "50%", "30%", "8GiB")
PLANNERS = {"auto": 0.05, "blocks": 0.06, "segments": 0.25, "greedy": 0.12}  # planner -> its overhead
PLANS_PER_MODEL = len(BUDGETS) * len(PLANNERS)


def fill(store: Store, count: int, names: Sequence[str] = NETWORKS, seed: int = 0) -> None:
    """Store `count` plans of models with the given names, created over the last thirty days."""
    draw, began = random.Random(seed), datetime.now(UTC) - timedelta(days=30)
    rows_of_graphs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for place in range(count):
        which, within = divmod(place, PLANS_PER_MODEL)
        if within == 0:
            name = names[which] if which < len(names) else f"{names[which % len(names)]}_b{which // len(names)}"
            graph_id = f"{which:064x}"
            at = to_timestamp(began + (datetime.now(UTC) - began) * (place / count))
            rows_of_graphs.append(
                {
                    "id": graph_id,
                    "name": name,
                    "nodes": draw.randrange(50, 3000),
                    "values": 100,
                    "format": "native",
                    "forward_only": False,
                    "blob": "0" * 64,
                    "created_at": at,
                    "seen_at": at,
                }
            )
            baseline, seconds = int(GIB * draw.uniform(2, 40)), draw.uniform(0.05, 0.6)
        budget, (planner, paid) = BUDGETS[within % len(BUDGETS)], list(PLANNERS.items())[within // len(BUDGETS)]
        part = 8 * GIB / baseline if budget == "8GiB" else float(budget[:-1]) / 100
        reached = max(part, draw.uniform(0.2, 0.45)) if part < 1 else 1.0
        overhead = paid * max(0.0, 1 - reached) * draw.uniform(0.5, 1.5)
        at = to_timestamp(began + (datetime.now(UTC) - began) * (place / count))
        executed = draw.choice(["equal", "not executed"])
        rows.append(
            {
                "id": f"{place:063x}f",
                "graph_id": graph_id,
                "planner": planner,
                "status": "over_budget" if reached > part else draw.choice(["found", "proven"]),
                "runtime": "torch-eager",
                "device": "a100-80gb",
                "counts": "everything",
                "budget": budget,
                "budget_bytes": int(part * baseline),
                "max_overhead": None,
                "fits": None,
                "baseline_peak_bytes": baseline,
                "peak_bytes": int(baseline * reached),
                "arena_bytes": int(baseline * reached),
                "saved_bytes": baseline - int(baseline * reached),
                "saved": 1 - reached,
                "baseline_seconds": seconds,
                "seconds": seconds * (1 + overhead),
                "overhead": overhead,
                "bound_overhead": overhead * 0.9,
                "bound_peak_bytes": int(baseline * 0.2),
                "gap": draw.choice([0.0, 0.01, None]),
                "seed": "0",
                "reproducible": True,
                "executed": executed,
                "solver_seconds": 2.0,
                "figures": "0" * 64,
                "executed_peak_bytes": int(baseline * reached) if executed == "equal" else None,
                "created_at": at,
                "seen_at": at,
            }
        )
    with store.writing() as connection:
        connection.execute(sa.insert(graphs), rows_of_graphs)
        connection.execute(sa.insert(plans), rows)


def fit(store: Store, model: str, planner: str, size: int | None, grow: str = "batch") -> str:
    """Store a fit with a plan of that model and planner; returns the plan's id."""
    which = sa.select(plans.c.id).join(graphs).where(graphs.c.name == model, plans.c.planner == planner)
    at, id = to_timestamp(datetime.now(UTC)), f"{model}{planner}{size}{grow}"
    row = {"id": id, "kind": "fit", "grow": grow, "size": size, "blob": "0" * 64, "created_at": at, "seen_at": at}
    with store.writing() as connection:
        plan: str = connection.execute(which.order_by(plans.c.id)).scalars().first()  # type: ignore[assignment]
        connection.execute(sa.insert(results), [row])
        connection.execute(sa.insert(result_plans), [{"result_id": id, "plan_id": plan}])
    return plan
