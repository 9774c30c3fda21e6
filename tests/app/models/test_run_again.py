"""Segments run again, seeds and shared names, as transforms over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.testclient import TestClient

from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.transforms.structural_equality import difference
from tests.app.models.test_transforms import code, drawn, mutable, post, transformed


def dropped_chain() -> dict[str, Any]:
    """x ── Tanh ── Dropout ── Tanh ── Tanh ── mean."""
    values = [{"name": "x", "shape": [8, 16], "dtype": "float32", "role": "input"}]
    values += [
        {"name": "ratio", "shape": [], "dtype": "float32", "role": "constant", "data": "zczMPg=="},
        {"name": "on", "shape": [], "dtype": "bool", "role": "constant", "data": "AQ=="},
    ]
    nodes = [
        {"name": "t1", "op": "Tanh", "inputs": ["x"], "outputs": ["a"]},
        {"name": "drop", "op": "Dropout", "inputs": ["a", "ratio", "on"], "outputs": ["b", "mask"]},
        {"name": "t2", "op": "Tanh", "inputs": ["b"], "outputs": ["c"]},
        {"name": "t3", "op": "Tanh", "inputs": ["c"], "outputs": ["d"]},
        {"name": "mean", "op": "ReduceMean", "inputs": ["d"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
    ]
    return {"format": "remat/1", "values": values, "nodes": nodes, "outputs": ["loss"]}


def graph_of(client: TestClient, id: str) -> Any:
    return load(client.get(f"/v1/graphs/{id}").content)


def test_a_seeded_training_graph_runs_its_segments_again(client: TestClient) -> None:
    seeded = transformed(client, post(client, dropped_chain()), **{"pass": "seed"})["id"]
    wanted = {"of": ["loss"], "with_respect_to": ["x"]}
    training = transformed(client, seeded, **{"pass": "differentiate", "differentiate": wanted})["id"]
    made = transformed(client, training, **{"pass": "run_again", "loss": "loss", "checkpoints": ["d", "zz"]})
    assert set(made["held"]) == {"d", "seed/drop", "x"}
    assert {"c", "mask"} <= made["renamed"].keys()
    assert made["copied"] and "zz" in made["notes"][0]
    before, after = graph_of(client, training), graph_of(client, made["id"])
    assert difference(before, after, repeats=True) is None
    one, other = execute(before, seed=3).outputs, execute(after, seed=3).outputs
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    named = transformed(
        client, training, **{"pass": "run_again", "loss": "loss", "segments": [[0, 4]], "style": "paddle"}
    )
    assert all(copy.endswith(".subprog_0") for copy in named["renamed"].values())


def test_what_cannot_be_segmented_is_refused(client: TestClient) -> None:
    id = post(client, dropped_chain())
    asked = {"pass": "run_again", "loss": "loss"}
    assert code(client, id, **asked, checkpoints=["zz"], unknown_checkpoints="error") == (422, "unknown_checkpoint")
    assert code(client, id, **{**asked, "loss": "x"}, checkpoints=["d"]) == (422, "unknown_loss")
    assert code(client, id, **asked, segments=[[0, 9]]) == (422, "bad_segment")
    assert code(client, id, **asked, segments=[[0, 3], [2, 4]]) == (422, "bad_segment")
    assert code(client, id, **asked, segments=[[0, 3]], opt_out=[4]) == (422, "unknown_segment")


def test_values_take_turns_in_shared_names(client: TestClient) -> None:
    program = mutable("A: x -> a", "B: a -> b", "C: b -> c", "D: c -> d", outputs=["d"])
    made = transformed(client, post(client, program), **{"pass": "share_buffers"})
    assert drawn(client, made["id"]) == ["x -> a", "a -> d", "d -> a", "a -> d"]
    assert made["sharing"]["bytes"] == 8 and made["sharing"]["separate_bytes"] == 16
    kept = transformed(client, post(client, program), **{"pass": "share_buffers", "keep": ["b"]})
    assert drawn(client, kept["id"]) == ["x -> a", "a -> b", "b -> a", "a -> d"]
