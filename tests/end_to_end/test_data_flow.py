"""Whatever a planner does, the rewritten graph computes what the planned one does; shared names change nothing."""

from __future__ import annotations

import random

import msgspec
import pytest

from graph.buffer_sharing.shared_program import shared_document
from graph.buffer_sharing.sharing import share_buffers
from graph.formats.readers import load
from graph.transforms.structural_equality import difference
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.app.conftest import chain
from tests.strategies import random_graph


@pytest.mark.parametrize("planner", ["as_given", "mirror", "segments", "greedy", "longest_path"])
@pytest.mark.parametrize("seed", range(8))
def test_rewritten_graphs_have_the_data_flow_of_their_source(planner: str, seed: int) -> None:
    graph = random_graph(random.Random(seed), 16) if seed else load(msgspec.json.encode(chain(9)))
    outcome = solve(graph, parse_request({"budget": "60%", "planner": planner, "search_seconds": 1}))
    assert difference(outcome.source, outcome.graph, repeats=True) is None
    document = shared_document(outcome.graph, share_buffers(outcome.graph).names)
    assert difference(outcome.graph, load(msgspec.json.encode(document))) is None
