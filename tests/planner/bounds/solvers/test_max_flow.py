"""The minimum cut against all cuts of small networks."""

from __future__ import annotations

import itertools
import random

import pytest

from planner.bounds.solvers.max_flow import UNCUTTABLE, FlowNetwork


@pytest.mark.parametrize("largest", [9, 1 << 90])
def test_no_cut_is_smaller_and_no_smaller_side_as_good(largest: int):
    rng = random.Random(largest)
    for _ in range(60):
        nodes = rng.randint(2, 6)
        arcs = [
            (
                rng.randrange(nodes),
                rng.randrange(nodes),
                UNCUTTABLE if rng.random() < 0.15 else rng.randint(0, 9) * largest,
            )
            for _ in range(rng.randint(0, 12))
        ]
        network = FlowNetwork(nodes)
        for arc in arcs:
            network.arc(*arc)
        side = network.source_side()
        cuts = {
            chosen: sum(c for tail, head, c in arcs if chosen[tail] and not chosen[head])
            for chosen in itertools.product([False, True], repeat=nodes)
            if chosen[0] and not chosen[1]
        }
        least = min(cuts.values())
        if least >= UNCUTTABLE:
            assert network.flow >= UNCUTTABLE
            continue
        assert network.flow == cuts[tuple(side)] == least
        assert sum(side) == min(sum(chosen) for chosen, cut in cuts.items() if cut == least)
