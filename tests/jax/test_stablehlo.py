"""Modules that JAX lowers are read: as text with locations, and as the bytecode that `jax.export` stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import remat
from app.cli.typer_app import run
from graph.formats.readers import import_warnings, load
from graph.ir import Phase
from remat.jax.bytecode import text_of
from remat.steps.errors import NotCaptured
from tests.jax.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_planned_and_its_passes_are_told_apart(name: str) -> None:
    loss, arguments = MODELS[name]
    lowered = jax.jit(jax.value_and_grad(loss)).lower(*arguments)
    graph = load(lowered.as_text(debug_info=True).encode())
    phases = {node.phase for node in graph.nodes}
    (warning,) = import_warnings(graph)
    assert {Phase.FORWARD, Phase.BACKWARD} <= phases and "no rewritten StableHLO" in warning
    flops = lowered.cost_analysis()["flops"]
    assert 0.4 < sum(node.cost.flops or 0 for node in graph.nodes) / flops < 2.5
    report = remat.plan(graph, budget="80%", iterations=20)
    assert report["plan"]["peak_bytes"] <= report["baseline"]["peak_bytes"]


def exported(path: Path) -> bytes:
    loss, arguments = MODELS["perceptron"]
    module = jax.export.export(jax.jit(jax.value_and_grad(loss)))(*arguments)
    path.write_bytes(module.mlir_module_serialized)
    return path.read_bytes()


def test_bytecode_is_planned_on_the_command_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "step.mlirbc"
    data = exported(path)
    assert run(["plan", str(path), "--budget", "90%", "--iterations", "20"]) in (0, 1)
    assert "step: " in capsys.readouterr().out
    assert load(text_of(data).encode()).nodes


def test_damaged_bytecode_is_refused_in_one_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "cut.mlirbc"
    path.write_bytes(exported(path)[:200])
    assert run(["plan", str(path), "--budget", "90%"]) == 2
    assert "JAX does not read this bytecode" in capsys.readouterr().err
    with pytest.raises(NotCaptured, match="export it again"):
        text_of(b"ML\xefR")


def test_a_plan_of_stablehlo_is_in_the_report_and_not_written_as_stablehlo(tmp_path: Path, capsys: Any) -> None:
    loss, arguments = MODELS["perceptron"]
    path, saved = tmp_path / "step.mlir", tmp_path / "plan.json"
    path.write_text(jax.jit(jax.value_and_grad(loss)).lower(*arguments).as_text(debug_info=True))
    assert run(["plan", str(path), "--budget", "90%", "--iterations", "20", "-o", str(saved)]) in (0, 1)
    assert "no rewritten StableHLO" in " ".join(capsys.readouterr().out.split())
    nodes = {node.name for node in load(path.read_bytes()).nodes}
    assert {name for name, _ in json.loads(saved.read_text())["plan"]["order"]} == nodes
    assert run(["plan", str(path), "--graph", str(tmp_path / "out.mlir")]) == 2
    assert "StableHLO is read, not written" in " ".join(capsys.readouterr().err.split())
