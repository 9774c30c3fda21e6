"""Values in buffers of results, and plans whose predictions depend on them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import remat.jax
from planner.formulation.formulation import Formulation
from planner.pipeline import solve_stages
from remat.facade import solved
from remat.jax import planning
from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.document import results_of
from tests.jax.models import decoder, decoder_arguments

WIDE = jax.ShapeDtypeStruct((64, 64), "float32")


def placed(captured: remat.jax.Capture, order: list[str] | None = None) -> set[str]:
    named = {task.name: task for task in captured.tasks}
    tasks = None if order is None else [named[name] for name in order]
    return {value.name for value in in_buffers_of_results(captured.tasks, results_of(captured.program), tasks)}


def test_a_partial_sum_takes_the_place_of_the_gradient_that_it_becomes() -> None:
    def tied(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ weight) @ weight)

    captured = remat.jax.capture(tied, WIDE, jax.ShapeDtypeStruct((4, 64), "float32"))
    sizes = {value["name"]: value.get("bytes") for value in captured.document["values"]}
    total = next(node for node in captured.document["nodes"] if node["outputs"] == captured.document["outputs"][-1:])
    partial = [name for name in total["inputs"] if sizes[name] == 0]
    assert total["op"] == "jax::add_any" and len(partial) == 1 and partial[0] in placed(captured)


def test_a_value_lies_in_a_gradient_only_while_that_is_not_written() -> None:
    captured = remat.jax.capture(
        lambda w, x: jnp.sum(jnp.sin(x @ w) ** 2), WIDE, jax.ShapeDtypeStruct((64, 64), "float32")
    )
    order = [task.name for task in captured.tasks]
    product = order[0]
    assert captured.tasks[0].root.primitive == "dot_general" and product in placed(captured)
    assert product not in placed(captured, [*order, product, order[-1]])  # again, when the gradient is there


def tied(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """A cross-entropy of scores of the embedding: the gradient of the loss fits into that of the table."""
    scores = (jnp.sin(table[tokens]) @ table.T)[:-1]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[1:, None], -1).mean()


TIED = jax.ShapeDtypeStruct((2048, 64), "float32"), jax.ShapeDtypeStruct((48,), "int32")


def test_a_scatter_computes_the_zeros_that_it_writes_into() -> None:
    captured = remat.jax.capture(tied, *TIED)
    scatters = [task for task in captured.tasks if task.root.primitive == "scatter-add"]
    assert len(scatters) == 2
    for task in scatters:
        assert task.root.inputs[0] in {value for equation in task.equations for value in equation.writes}
        assert task.root.inputs[0] not in task.reads


def test_zeros_that_another_task_reads_are_no_part_of_a_scatter() -> None:
    def loss(x: jax.Array, rows: jax.Array) -> jax.Array:
        zeros = jnp.zeros((64, 64))
        return jnp.sum(zeros.at[rows].add(x) * jnp.dot(zeros, x))

    captured = remat.jax.capture(loss, WIDE, jax.ShapeDtypeStruct((64,), "int32"))
    first = next(task for task in captured.tasks if task.root.primitive == "scatter-add")
    assert first.root.inputs[0] in first.reads


def test_a_scatter_lies_in_the_gradient_that_is_not_written_yet() -> None:
    captured = remat.jax.capture(tied, *TIED)
    loss, table = (task.name for task in captured.tasks if task.root.primitive == "scatter-add")
    assert loss in placed(captured) and table not in placed(captured)
    planned = remat.jax.optimize(tied, *TIED, plan=captured.plan("100%", iterations=1))
    assert planned.report is not None
    found = planned.lower(*TIED).compile(remat.jax.compiler_options()).memory_analysis()
    taken = found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes
    assert taken == pytest.approx(planned.report.peak_bytes, rel=0.02)


def test_a_report_counts_the_buffers_of_results_as_its_order_fills_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)
    captured = remat.jax.capture(decoder, *decoder_arguments(layers=3))
    report = captured.plan("75%", iterations=30)
    filled = placed(captured, [name for name, _ in report.order])
    held = {value.name for value in results_of(captured.program)}
    counted = {
        value["name"]: value.get("bytes") != 0
        for value in remat.steps.planning.saved_plan(report)["source"]["values"]
        if value.get("role", "activation") == "activation"
    }
    made = {name for task in captured.tasks if not task.is_reshape for name in (value.name for value in task.writes)}
    assert report.recomputed
    assert {name for name in made - held if not counted[name]} == filled - held


def test_all_searches_of_a_plan_take_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = []

    def noted(model: Any, fields: Any, **more: Any) -> Any:
        seconds.append(fields["search_seconds"])
        return solved(model, fields, **more)

    monkeypatch.setattr(planning, "solved", noted)
    remat.jax.capture(decoder, *decoder_arguments(layers=3)).plan("75%", search_seconds=0.5)
    assert len(seconds) > 1 and sum(seconds) <= 0.5


def test_a_search_is_not_repeated_once_all_that_it_counted_on_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Formulation, "counted_peak", lambda formulation, plan: 2**62)
    report = remat.jax.capture(decoder, *decoder_arguments(layers=3)).plan("75%", search_seconds=0.3)
    assert report.status in ("found", "proven", "over_budget")
