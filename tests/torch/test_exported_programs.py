"""`.pt2` files: the step of an exported program is that of its module, and nothing of the archive is run."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat
import remat.torch
from app.cli.typer_app import run
from remat.torch import exported
from remat.torch.exported import exported_step
from remat.torch.step.errors import NotCaptured
from tests.torch.modules import VOCABULARY, Cells, Convolutions, Decoder, Views

IMAGES, CLASSES = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
BUDGET = "90%"
REQUEST = {"runtime": "torch-eager-cpu", "execute": "no", "planner": "greedy", "iterations": 5}
MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "decoder": (lambda: Decoder(layers=1), torch.randint(0, VOCABULARY, (4, 32))),
    "convolutions": (lambda: Convolutions(2), IMAGES),
    "cells": (Cells, torch.ones(2, 4, 8)),
    "views": (Views, torch.ones(8, 16)),
}


def saved(folder: Path, module: nn.Module, *args: torch.Tensor, **options: Any) -> str:
    path = str(folder / "program.pt2")
    torch.export.save(torch.export.export(module.train(), args, **options), path)
    return path


def rewritten(path: str, change: Callable[[dict[str, Any]], Any]) -> str:
    """The archive with nothing but its graph, changed."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        record = json.loads(archive.read(name))
    change(record["graph_module"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, json.dumps(record))
    return path


def peaks(document: dict[str, Any]) -> tuple[int, int]:
    report = remat.plan(json.dumps(document).encode(), BUDGET, **REQUEST)  # type: ignore[arg-type]
    return report.baseline_peak_bytes, report.peak_bytes


@pytest.mark.parametrize("name", MODULES)
def test_an_exported_program_has_the_peaks_of_its_module_without_its_weights(name: str, tmp_path: Path) -> None:
    make, batch = MODULES[name]
    module = make()
    path = rewritten(saved(tmp_path, module, batch), lambda _: None)
    assert peaks(exported_step(path)) == peaks(remat.torch.capture(module.train(), batch).document)


@pytest.mark.parametrize("axis", ["", ":1", ":-1"])
def test_a_cross_entropy_of_an_output_is_the_loss(axis: str, tmp_path: Path) -> None:
    module = Convolutions(1)
    path = saved(tmp_path, module, IMAGES)
    captured = remat.torch.capture(module, IMAGES, loss=lambda scores: functional.cross_entropy(scores, CLASSES))
    assert peaks(exported_step(path, f"cross_entropy:linear{axis}")) == peaks(captured.document)


@pytest.mark.parametrize(
    ("change", "loss", "told"),
    [
        (lambda record: record["graph"]["nodes"][0].update(target="torch.os.system"), None, "op torch.os.system"),
        (lambda record: record["graph"]["nodes"][0].update(target="torch.ops.own.op.default"), None, "torch.capture"),
        (
            lambda record: record["signature"]["input_specs"][0]["parameter"].update(parameter_name="w')+f('"),
            None,
            "no name of a parameter",
        ),
        (
            lambda record: record["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
                0, {"as_expr": {"expr_str": "f()"}}
            ),
            None,
            "x: a dynamic shape",
        ),
        (lambda record: record["graph"].pop("nodes"), None, "no 'nodes' in it"),
        (lambda _: None, "scores", "the program returns linear"),
        (lambda _: None, "linear", "not a scalar; try cross_entropy:linear"),
        (lambda _: None, "cross_entropy:linear:2", "classes are on axis 1 or the last"),
    ],
)
def test_what_is_not_captured_is_named(
    change: Callable[[Any], Any], loss: str | None, told: str, tmp_path: Path
) -> None:
    path = rewritten(saved(tmp_path, Convolutions(1), IMAGES), change)
    with pytest.raises(NotCaptured) as caught:
        exported_step(path, loss)
    assert told in str(caught.value)


def test_a_program_of_inference_ops_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "program.pt2")
    torch.export.save(torch.export.export(Convolutions(1).train(), (IMAGES,)).run_decompositions(), path)
    with pytest.raises(NotCaptured, match="without run_decompositions"):
        exported_step(path)


def test_a_graph_over_the_size_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, nn.Linear(2, 2), torch.ones(2, 2))
    monkeypatch.setattr(exported, "PROGRAM_BYTES", 1000)
    with pytest.raises(NotCaptured, match="more than 1,000 bytes"):
        exported_step(path)


def test_the_command_line_plans_and_checks_an_exported_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = Convolutions(1)
    path = saved(tmp_path, module, IMAGES)
    flags = [f"--{name}={value}" for name, value in REQUEST.items()]
    assert run(["plan", path, "--loss", "cross_entropy:linear", "--budget", BUDGET, "--json", *flags]) == 0
    report = json.loads(capfd.readouterr().out)
    captured = remat.torch.capture(module, IMAGES, loss=lambda scores: functional.cross_entropy(scores, CLASSES))
    assert (report["baseline"]["peak_bytes"], report["plan"]["peak_bytes"]) == peaks(captured.document)
    saved_plan = str(tmp_path / "plan.json")
    assert run(["plan", path, "--loss", "cross_entropy:linear", "--budget", BUDGET, "-o", saved_plan, *flags]) == 0
    assert run(["check", saved_plan, path, "--max-drift", "0%"]) == run(["verify", saved_plan]) == 0
    capfd.readouterr()
    (tmp_path / "other").mkdir()
    assert run(["check", saved_plan, saved(tmp_path / "other", Convolutions(2), IMAGES)]) == 1
    assert "nodes to blame" in capfd.readouterr().out
    assert run(["plan", path, "--batch", "2"]) == 2
    assert "leave out batch" in capfd.readouterr().err


def test_without_pytorch_the_command_line_says_what_to_install(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(b"PK")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run(["plan", str(path)]) == 2
    assert f"{path}: needs PyTorch; install it with pip install 'remat[torch]'" in capfd.readouterr().err
