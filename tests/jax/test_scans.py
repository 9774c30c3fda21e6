"""Bodies of `lax.scan` are planned as pairs: what an iteration saves, against what the backward pass recomputes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat.jax
from planner.formulation.formulation import Formulation
from planner.pipeline import solve_stages
from planner.problem.plan import Candidate
from remat.jax import planning
from tests.jax.models import NO_REWRITES, WIDTH

QUICK = {"iterations": 20}


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)


def weights(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape) * 0.2, "float32")


ROWS = weights(256, WIDTH)
STACKED = (weights(6, WIDTH, 4 * WIDTH), weights(6, 4 * WIDTH, WIDTH))


def layers(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Equal layers with dropout, whose keys are split by the loop."""

    def layer(state: Any, weights: Any) -> Any:
        x, key = state
        key, own = jax.random.split(key)
        inner = jax.nn.gelu(x @ weights[0])
        inner = jnp.where(jax.random.bernoulli(own, 0.9, inner.shape), inner / 0.9, 0.0)
        return (x + inner @ weights[1], key), None

    (x, _), _ = jax.lax.scan(layer, (x, key), params)
    return jnp.mean(x * x)


def reversed_layers(params: Any, x: jax.Array) -> jax.Array:
    """From the last layer to the first, with a result of each."""

    def layer(x: jax.Array, weights: Any) -> Any:
        x = x + jnp.tanh(jnp.sin(x @ weights[0]) @ weights[1])
        return x, jnp.mean(x)

    x, means = jax.lax.scan(layer, x, params, reverse=True)
    return jnp.mean(x * x) + jnp.sum(means)


def one_layer_often(params: Any, x: jax.Array) -> jax.Array:
    """One layer five times: a loop without sequences, that counts."""

    def body(i: Any, x: jax.Array) -> jax.Array:
        return x + jnp.sin(jnp.sin(x @ params[0]) @ params[1]) * jnp.cos(i * 0.1)

    return jnp.mean(jax.lax.fori_loop(0, 5, body, x) ** 2)


def grouped(params: Any, x: jax.Array) -> jax.Array:
    """A scan in a scan."""

    def group(x: jax.Array, weights: Any) -> Any:
        return jax.lax.scan(lambda x, w: (x + jnp.sin(jnp.sin(x @ w[0]) @ w[1]), None), x, weights)

    x, _ = jax.lax.scan(group, x, jax.tree.map(lambda w: w.reshape(2, 3, *w.shape[1:]), params))
    return jnp.mean(x * x)


LOOPS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layers": (layers, (STACKED, ROWS, jax.random.key(3))),
    "reversed": (reversed_layers, (STACKED, ROWS)),
    "counted": (one_layer_often, ((STACKED[0][0], STACKED[1][0]), ROWS)),
    "grouped": (grouped, (STACKED, ROWS)),
}


def results(function: Any, args: Any, options: dict[str, Any]) -> list[bytes]:
    found = jax.jit(function).lower(*args).compile(compiler_options=options)(*args)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found)]


def saved_bytes(report: Any) -> int:
    return sum(row["saved_bytes"] for row in report["plan"]["choices"])


@pytest.mark.parametrize("name", LOOPS)
def test_iterations_save_less_and_no_bit_changes(name: str) -> None:
    function, args = LOOPS[name]
    captured = remat.jax.capture(function, *args)
    unplanned = captured.plan("100%", **QUICK)
    report = captured.plan(0, **QUICK)
    assert [row["of"] > 1 for row in report["plan"]["choices"]] == [True]
    assert saved_bytes(report) < 0.7 * saved_bytes(unplanned) and report.overhead > 0
    planned = remat.jax.optimize(function, *args, plan=report)
    same = remat.jax.optimize(function, *args, plan=unplanned)
    options = remat.jax.compiler_options()
    assert results(planned, args, options) == results(same, args, options)
    assert results(planned, args, NO_REWRITES) == results(jax.value_and_grad(function), args, NO_REWRITES)


def test_memory_of_a_scan_over_layers_falls_as_predicted(tmp_path: Path) -> None:
    function, args = LOOPS["layers"]
    captured = remat.jax.capture(function, *args, measure=True)
    for budget in ("100%", "50%"):
        captured.plan(budget, **QUICK).save(tmp_path / "plan.json")
        report = captured.plan(budget, **QUICK)
        planned = remat.jax.optimize(function, *args, plan=tmp_path / "plan.json")
        found = planned.lower(*args).compile(remat.jax.compiler_options()).memory_analysis()
        size = found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes
        assert size == pytest.approx(report.peak_bytes, rel=0.05)


def test_a_while_loop_and_branches_are_one_task_each() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        count = jax.lax.while_loop(lambda n: n < 5.0, lambda n: n + 1.0, jax.lax.stop_gradient(jnp.sum(x)))
        return jnp.sum(jax.lax.cond(count > 3.0, jnp.sin, jnp.cos, x @ w))

    document = remat.jax.capture(loss, weights(WIDTH, WIDTH), ROWS).document
    ops = [node["op"] for node in document["nodes"]]
    assert ops.count("jax::while") == 1 and 1 <= ops.count("jax::cond") <= 2 and "Scan" not in ops
    (warning,) = document["annotations"]["import_warnings"]
    assert "while at " in warning and "cond at " in warning and "test_scans.py" in warning


def test_a_report_names_a_scan_inside_of_a_scan_and_no_other() -> None:
    function, args = LOOPS["grouped"]
    (warning,) = remat.jax.capture(function, *args).plan("100%", **QUICK).warnings
    assert "one task each" in warning and "scan at " in warning
    function, args = LOOPS["layers"]
    assert not remat.jax.capture(function, *args).plan("100%", **QUICK).warnings


def test_a_plan_saves_the_same_values_under_other_bytes_of_the_step() -> None:
    document = remat.jax.capture(layers, STACKED, ROWS, jax.random.key(0)).document
    before = planning._formulation(json.dumps(document).encode(), {})
    (group,) = before.lowered.groups

    def saved(formulation: Formulation, plan: Candidate) -> list[str]:
        graph = formulation.lowered.under(plan.choices).graph
        return [graph.values[v].name for v in graph.nodes[group.pair.forward].outputs if v >= 0]

    moved, lacking = 0, 0
    stacks = [name for node in document["nodes"] if node["op"] == "Scan" for name in node["outputs"][2:] if name]
    for stack in stacks[:4]:
        values = [v | {"bytes": 0, "fixed_bytes": True} if v["name"] == stack else v for v in document["values"]]
        other = planning._formulation(json.dumps({**document, "values": values}).encode(), {})
        for choice in range(len(group.savings)):
            plan = Candidate(np.arange(0), "", (choice,))
            found = planning._in_another(other, plan, before)
            lacking += found is None
            if found is not None:
                moved += found.choices != plan.choices
                assert saved(other, found) == saved(before, plan)
    assert moved and lacking


def test_a_scan_of_few_bytes_is_planned() -> None:
    def loss(weight: jax.Array, rows: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, row: (jnp.tanh(x @ weight + row), None), rows[0], rows)[0].sum()

    args = weights(8, 8), weights(8, 8)
    planned = remat.jax.optimize(loss, *args, budget=0, over_budget="train", measure=False, **QUICK)
    assert planned.report is not None and planned.report.overhead
    for found, plain in zip(planned(*args), jax.value_and_grad(loss)(*args), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-5)
