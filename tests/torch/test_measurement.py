"""`remat.torch.measure_plan` and `remat measure`: peak and time of a step with and without a plan."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remat.torch
from app.cli.typer_app import run
from app.client.blocking import Client, Unreachable
from planner.pipeline import solve_stages
from remat.torch import measurement
from remat.torch.measurement import load_target
from remat.torch.time_ratio import time_ratio
from tests.torch.modules import VOCABULARY, Decoder

TARGET = """
import torch
def decoder():
    torch.manual_seed(0)
    print("made by the user")
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    return torch.nn.Sequential(*layers), (torch.randn(512, 64),), lambda outputs: outputs.square().mean()
def broken():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)


def test_peaks_are_measured_beside_the_prediction() -> None:
    torch.manual_seed(0)
    module = Decoder(0.0, layers=4, width=64)
    args = (torch.randint(0, VOCABULARY, (8, 32)),)
    before = [parameter.clone() for parameter in module.parameters()]
    found = remat.torch.measure_plan(module, args, "50%", steps=2, iterations=30)
    assert found["format"] == "remat-measurement/1" and found["steps"] == 2 and found["device"] == "cpu"
    plan, baseline = found["plan"], found["baseline"]
    assert plan["peak_bytes"] == pytest.approx(plan["predicted_peak_bytes"], rel=0.01)
    assert plan["peak_bytes"] < 0.7 * baseline["peak_bytes"]
    assert found["overhead"] > -1 and found["overhead_error"] >= 0
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in module.parameters())


class Chain(nn.Module):
    """A module without parameters: the gradient is of an input."""

    def forward(self, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        for scale in scales:
            x = torch.tanh(torch.sin(x) * scale)
        return x.square().mean()


def test_inputs_in_lists_count_and_their_gradients_cleared() -> None:
    x, scales = torch.randn(64, 256, requires_grad=True), [torch.randn(64, 256) for _ in range(4)]
    found = remat.torch.measure_plan(Chain(), {"x": x, "scales": scales}, "90%", steps=1, iterations=30, measure=False)
    assert found["plan"]["peak_bytes"] == pytest.approx(found["plan"]["predicted_peak_bytes"], rel=0.01)
    assert x.grad is None


def small_step() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A module that returns its loss, and its inputs."""
    return Decoder(0.0, layers=1, width=16), (torch.randint(0, VOCABULARY, (2, 8)),)


@pytest.mark.parametrize(
    ("bounds", "steps", "error"),
    [
        ({}, 5, 0.0),  # five steps with the plan take 24.5 s, of 12
        ({"timing_seconds": 27}, 6, 0.0),
        ({"timing_seconds": 1000}, 9, 0.0),
        ({"steps": 1}, 1, None),
        ({"steps": 12}, 12, 0.0),
        ({"steps": 12, "timing_seconds": 27}, 6, 0.0),
    ],
)
def test_the_overhead_has_a_standard_error_and_the_timed_steps_a_bound(
    bounds: dict[str, Any], steps: int, error: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is of the day: each step without a plan takes 2 s, each with it 2.5 s."""
    now, module, args = [0.0], *small_step()

    def seconds(step: functools.partial[None], _: torch.device) -> float:
        taken = 2.0 if step.args[0] is module else 2.5
        now[0] += taken
        return taken

    monkeypatch.setattr(measurement, "_seconds", seconds)
    monkeypatch.setattr(measurement, "time_ratio", functools.partial(time_ratio, clock=lambda: now[0]))
    found = remat.torch.measure_plan(module, args, "90%", iterations=1, **bounds)
    assert (found["steps"], found["overhead"], found["overhead_error"]) == (steps, 0.25, error)
    assert (found["baseline"]["seconds"], found["plan"]["seconds"]) == (2.0, 2.5)


def test_a_timed_step_that_fails_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = small_step()
    original, timed = measurement._seconds, itertools.count(1)

    def seconds(step: measurement.Step, device: torch.device) -> float:
        taken = original(step, device)
        if next(timed) == 4:
            raise RuntimeError("not enough memory")
        return taken

    monkeypatch.setattr(measurement, "_seconds", seconds)
    with pytest.raises(RuntimeError, match="not enough memory"):
        remat.torch.measure_plan(module, args, "90%", iterations=1)
    assert next(timed) == 5
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("bounds", [{"steps": 0}, {"timing_seconds": -1.0}, {"timing_seconds": float("nan")}])
def test_bounds_of_timed_steps_that_cannot_be_are_refused(bounds: dict[str, Any]) -> None:
    module, args = small_step()
    with pytest.raises(ValueError, match=next(iter(bounds))):
        remat.torch.measure_plan(module, args, "90%", **bounds)


def test_a_module_that_returns_no_loss_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a tensor of shape \[4, 2\], not a loss"):
        remat.torch.measure_plan(nn.Sequential(nn.Linear(2, 2), nn.GELU()), (torch.ones(4, 2),), 0, iterations=1)


def test_a_target_is_a_function_that_returns_a_module_and_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def nothing():\n    return None\n")
    for target, reason in (("model", "is no target"), (f"{tmp_path}/model.py:nothing", "returns NoneType; return")):
        with pytest.raises(TypeError, match=reason):
            load_target(target)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere.py:step", "nowhere.py: no such file"),
        ("no_package.steps:step", "no_package.steps: no such Python module"),
        ("json:step", "json has no function 'step'"),
        ("step", "'step' is no target"),
    ],
)
def test_a_target_that_is_not_there_is_named_without_a_traceback(
    target: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["measure", target, "--budget", "50%"]) == 2
    error = capfd.readouterr().err
    assert reason in error and "Traceback" not in error


def test_the_command_measures_a_saved_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_model.py").write_text(TARGET)
    module, inputs, loss = load_target(f"{tmp_path}/own_model.py:decoder")
    plan = remat.torch.capture(module, *inputs, loss=loss).plan("70%", iterations=20, seed=3)
    plan.save(tmp_path / "plan.json")
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{tmp_path}")
    capsys.readouterr()
    command = ["measure", "own_model:decoder", "--plan", f"{tmp_path}/plan.json", "--steps", "1"]
    assert run([*command, "--json", "-o", f"{tmp_path}/measured.json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "measured.json").read_text())
    assert shown["plan"]["predicted_peak_bytes"] == plan.peak_bytes and shown["plan"]["peak_bytes"] > 0


def test_the_command_measures_a_step_in_an_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_model.py").write_text(TARGET)
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{tmp_path}")
    command = ["measure", "own_model:decoder", "--budget", "90%", "--seconds", "1", "--steps", "1", "--json", "--arena"]
    assert run(command) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["peak_bytes"] == pytest.approx(plan["predicted_peak_bytes"], rel=0.01)


def command_line(monkeypatch: pytest.MonkeyPatch, result: Any, *flags: str) -> int:
    """Exit code of the command, given what the process that measures writes; None: it is killed."""

    def child(command: list[str], **_: Any) -> Any:
        if result is not None:
            Path(command[-1]).write_text(json.dumps(result))
        return type("Ended", (), {"returncode": 0 if result else -9})

    monkeypatch.setattr("subprocess.run", child)
    return run(["measure", "own:model", *flags])


MEASURED = {
    "format": "remat-measurement/1",
    "model": "Decoder",
    "device": "cpu",
    "torch": "2.13.0",
    "counter": "allocator events",
    "steps": 5,
    "status": "found",
    "budget_bytes": 110,
    "baseline": {
        "peak_bytes": 200 << 20,
        "requested_bytes": None,
        "seconds": 0.1,
        "predicted_peak_bytes": 200 << 20,
        "predicted_seconds": 0.08,
    },
    "plan": {
        "peak_bytes": 99 << 20,
        "requested_bytes": None,
        "seconds": 0.11,
        "predicted_peak_bytes": 100 << 20,
        "predicted_seconds": 0.09,
    },
    "overhead": 0.1,
    "overhead_error": 0.004,
    "predicted_overhead": 0.125,
}


def test_the_table_has_measured_and_predicted_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch, MEASURED, "--budget", "50%") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["measured", "predicted", "measured", "/", "predicted"],
        ["peak", "without", "a", "plan", "200.00", "MiB", "200.00", "MiB", "+0.0%"],
        ["peak", "with", "the", "plan", "99.00", "MiB", "100.00", "MiB", "-1.0%"],
        ["time", "without", "a", "plan", "100", "ms", "80", "ms", "+25.0%"],
        ["time", "with", "the", "plan", "110", "ms", "90", "ms", "+22.2%"],
        ["overhead", "10.0%", "±", "0.4", "12.5%"],
    ]
    assert command_line(monkeypatch, {**MEASURED, "status": "over_budget"}, "--budget", "50%") == 1
    capsys.readouterr()
    assert command_line(monkeypatch, {**MEASURED, "steps": 1, "overhead_error": None}, "--budget", "50%") == 0
    assert capsys.readouterr().out.split()[-3:] == ["overhead", "10.0%", "12.5%"]


@pytest.mark.parametrize(
    ("result", "flags", "message"),
    [
        (MEASURED, (), "give --budget or --plan"),
        (MEASURED, ("--budget", "50%", "--plan", "plan.json"), "give --budget or --plan"),
        (MEASURED, ("--budget", "50%", "--server", "http://localhost:1"), "needs a plan of that service"),
        (MEASURED, ("--budget", "50%", "--timing-seconds", "inf"), "--timing-seconds inf: give a finite number"),
        (None, ("--budget", "50%"), "ended by signal 9"),
        ({"problem": "another step"}, ("--budget", "50%"), ": another step"),
    ],
)
def test_what_cannot_be_measured_is_said(
    result: Any,
    flags: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command_line(monkeypatch, result, *flags) == 2
    assert message in capsys.readouterr().err


def test_a_measurement_that_the_service_does_not_take_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, kept = tmp_path / "plan.json", tmp_path / "measured.json"
    plan.write_text('{"format": "remat-report/1", "id": "a"}')

    def refuse(client: Client, plan_id: str, document: Any) -> None:
        raise Unreachable("no response")

    monkeypatch.setattr(Client, "add_measurement", refuse)
    flags = "--plan", str(plan), "--server", "http://localhost:1", "-o", str(kept)
    assert command_line(monkeypatch, MEASURED, *flags) == 2
    shown = capsys.readouterr()
    assert "measured / predicted" in shown.out and kept.exists()
    assert "http://localhost:1: the measurement was not stored: no response" in shown.err
