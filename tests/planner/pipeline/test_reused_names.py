"""Programs that reuse names are planned like the same programs with unique names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

BIG = 1 << 20
#: One line per node. The second write of `t` may run before `wide` reads the first one: then `first` is freed before
#: `second` is allocated.
LINES = (
    "load: x -> first",
    "key: x -> t",
    "wide: t -> second",
    "key2: x -> t",
    "narrow: t first -> u",
    "end: u second -> y",
)


def document(reused: bool) -> dict[str, Any]:
    """The program; without `reused` the second version of `t` is called `t2`."""
    text = [line if reused or n < 3 else line.replace(" t", " t2") for n, line in enumerate(LINES)]
    nodes = []
    for line in text:
        name, _, operands = line.partition(": ")
        inputs, _, output = operands.partition(" -> ")
        nodes.append({"name": name, "op": f"my::{name}", "inputs": inputs.split(), "outputs": [output]})
    names = dict.fromkeys(name for node in nodes for name in (*node["inputs"], *node["outputs"]))
    values = [
        {
            "name": name,
            "bytes": BIG if name in ("first", "second") else 64,
            "role": "input" if name == "x" else "activation",
        }
        for name in names
    ]
    return {"format": "remat/1", "naming": "mutable", "values": values, "nodes": nodes, "outputs": ["y"]}


@pytest.mark.parametrize("budget", ["60%", 0])
def test_the_planned_peak_does_not_depend_on_reused_names(budget: str | int) -> None:
    request = parse_request({"budget": budget, "iterations": 100, "seed": 1})
    plans = [solve(json.dumps(document(reused)).encode(), request).report["plan"] for reused in (True, False)]
    assert plans[0]["peak_bytes"] == plans[1]["peak_bytes"] < 2 * BIG
    assert plans[0]["overhead"] == plans[1]["overhead"]
