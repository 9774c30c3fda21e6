"""Random legal graphs go the whole way: plans are legal, checked, and executed equal in their arena."""

from __future__ import annotations

import os
import random

import pytest

from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.strategies import random_graph

BUDGETS = ("0", "60%", "80%", "100%")


def goes_the_whole_way(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, nodes=rng.choice([3, 8, 20]))
    fields = {
        "budget": rng.choice(BUDGETS),
        "planner": rng.choice(["as_given", "mirror", "segments", "greedy", "auto"]),
        "counts": rng.choice(["everything", "activations"]),
        "order": rng.choice(["free", "given"]),
        "layout": rng.choice(["fast", "best", "none"]),
        "runtime": rng.choice(["arena", "arena", "torch-eager", "ort"]),
        "execute": "yes",
        "search_seconds": 2,
    }
    outcome = solve(graph, parse_request(fields))
    assert outcome.report["executed"]["status"] == "equal", (seed, outcome.report["executed"])
    assert outcome.report["plan"]["peak_bytes"] >= outcome.report["plan"]["bound"]["peak_bytes"]
    again = solve(outcome.graph, parse_request({**fields, "planner": "as_given", "execute": "no"}))
    assert again.report["plan"]["peak_bytes"] == outcome.report["plan"]["peak_bytes"], seed


@pytest.mark.parametrize("seed", range(60))
def test_a_random_graph_goes_the_whole_way(seed: int) -> None:
    goes_the_whole_way(seed)


@pytest.mark.heavy
def test_many_random_graphs_go_the_whole_way() -> None:
    first = int(os.environ.get("REMAT_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"REMAT_TEST_SEED={first}")
    for seed in range(first, first + 500):
        goes_the_whole_way(seed)
