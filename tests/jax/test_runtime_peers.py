"""`bench/runtime_peers.py` on small networks, with a stand-in for ONNX Runtime's training build."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import remat
import remat.ort
from bench import runtime_peers
from bench.jax_networks import Network
from bench.ort_training import MIB, Trained
from graph.ir import Graph


def test_gradients_are_equal_close_or_wrong() -> None:
    one = [np.ones(3, np.float32)]
    assert runtime_peers.compared(one, one) == "equal"
    assert runtime_peers.compared([one[0] + np.float32(1e-5)], one) == "close"
    assert runtime_peers.compared([one[0] + np.float32(1e-2)], one) == "WRONG"


@pytest.mark.heavy
def test_the_rows_of_jax_have_a_way_each_and_a_plan_at_the_lowest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(wrap: Any, _: bool) -> Network:
        def loss(weights: list[Any], batch: Any) -> Any:
            for weight in weights:
                batch = wrap(lambda x, w: jnp.tanh(x @ w))(batch, weight)
            return jnp.mean(batch * batch)

        draw = np.random.default_rng(0)
        weights = [jnp.asarray(draw.normal(size=(16, 16)) / 4, "float32") for _ in range(4)]
        return Network(loss, (weights, jnp.asarray(draw.normal(size=(256, 16)), "float32")))

    ways = [each for each in runtime_peers.JAX_WAYS if each[0] in ("XLA", "checkpoint")]
    monkeypatch.setattr(runtime_peers, "JAX_WAYS", ways)
    monkeypatch.setitem(runtime_peers.NETWORKS, "small", network)
    rows = runtime_peers.jax_rows("small", 0.1)
    assert [row[1].partition(" (")[0] for row in rows] == ["XLA", "checkpoint", "plan at the lowest peak"]
    assert rows[0][3:] == ("+0.0%", "equal") and all(row[4] in ("equal", "close") for row in rows)
    assert all(float(row[2]) > 0 for row in rows)


def gradients(model: Path, data: Path, graph: Graph | None = None) -> dict[str, np.ndarray]:
    """Gradients of the first step by the name of their parameter, unplanned without a graph."""
    if graph is None:
        graph = remat.plan(model, "100%", iterations=1, loss="loss", execute="no").graph
    session = remat.ort.session(graph, model)
    results = session.run(dict(np.load(data)))
    return {parameter: results[gradient].copy() for parameter, gradient in session.gradients.items()}


@pytest.mark.heavy
def test_the_rows_of_onnxruntime_have_a_way_each_with_recomputed_nodes_and_equal_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("LAYERS", 3), ("WIDTH", 8), ("ROWS", 64)):
        monkeypatch.setattr(runtime_peers, name, size)

    def training_build(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        python, script, model, data, out, way = command
        assert (python, Path(script).name) == ("python", "ort_memory_optimizer.py")
        np.savez(out, **gradients(Path(model), Path(data)))
        found = {"version": "0", "growth": 2 * MIB, "recomputed": 2 * way.startswith("Gelu")}
        return subprocess.CompletedProcess(command, 0, json.dumps(found), "")

    monkeypatch.setattr(runtime_peers.subprocess, "run", training_build)
    monkeypatch.setattr(
        runtime_peers, "train", lambda graph, model, data: Trained([0.0], MIB, gradients(model, data, graph))
    )
    rows = runtime_peers.ort_rows("python", 0.1)
    assert [len(row) for row in rows] == [len(runtime_peers.HEADS)] * 6
    assert [row[2] for row in rows] == ["2.0"] * 4 + ["1.0"] * 2
    assert [row[3].partition(" ")[0] for row in rows[:5]] == ["0", "2", "0", "2", "0"]
    assert int(rows[5][3].partition(" ")[0]) > 0
    assert [row[4] for row in rows] == ["equal"] * 6


@pytest.mark.heavy
def test_a_training_build_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no GradientGraphBuilder\n")
    monkeypatch.setattr(runtime_peers.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match="venv/bin/python: ImportError: no GradientGraphBuilder"):
        runtime_peers.ort_rows("venv/bin/python", 0.1)
