"""Programs that write names again, planned: the rewritten graph under its names computes the same."""

from __future__ import annotations

import json

import msgspec
import numpy as np
from hypothesis import given, settings

from graph.formats.document.schema import Document
from graph.formats.native.mutable_names import mutable_document
from graph.formats.readers import load
from graph.transforms.structural_equality import difference
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.graph.ssa.programs import FEEDS, interpreted, mutable_programs, ran


@settings(max_examples=15, deadline=None)
@given(mutable_programs())
def test_a_planned_program_comes_back_under_its_names_and_computes_the_same(document):
    request = parse_request({"budget": 0, "planner": "greedy", "iterations": 20, "return": ["graph"]})
    rewritten = load(json.dumps(solve(json.dumps(document).encode(), request).report["graph"]).encode())
    back = mutable_document(rewritten)
    again = load(msgspec.json.encode(back))
    assert difference(rewritten, again) is None
    assert isinstance(back, Document)
    expected = interpreted(document, FEEDS)
    for name, array in zip(document["outputs"], ran(again), strict=True):
        np.testing.assert_array_equal(array, expected[name])
