"""What a shell is offered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.catalogue import SCHEMA_NAMES
from app.cli import typer_app
from app.cli.options import completion
from graph.analysis.cost import DEVICES
from planner.algorithms import PLANNERS


def offered(line: str) -> list[str]:
    """What bash is told for the last word of a command line."""
    words = line.split(" ")
    told = {"_REMAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "import sys, app.cli.typer_app; sys.argv = ['remat']; app.cli.typer_app.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **told}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("remat pl", ["plan", "planners"]),
        ("remat plan model.onnx --plo", ["--plot"]),
        ("remat plan model.onnx --planner gr", ["greedy"]),
        ("remat curve model.onnx --device rtx", ["rtx4090", "rtx3090"]),
        ("remat schema re", ["request", "report"]),
        ("remat fit model.onnx --grow s", ["sequence"]),
        ("remat info model.onnx --runtime t", ["torch-eager", "torch-eager-cpu"]),
    ],
)
def test_a_shell_is_offered_what_there_is(line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_every_planner_device_and_schema_is_offered() -> None:
    assert completion.complete_from("yes", "no")("n") == ["no"]
    assert completion.planner("") == ["auto", *PLANNERS]
    assert completion.device("") == list(DEVICES)
    assert completion.schema("") == list(SCHEMA_NAMES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_is_shown(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    with pytest.raises(SystemExit) as ended:
        typer_app.run(["--show-completion"])
    assert ended.value.code == 0
    assert "_REMAT_COMPLETE" in capsys.readouterr().out
