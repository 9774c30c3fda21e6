"""The fixture `remat_check` in projects of users, which `pytester` writes and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remat.memory_check import problem_of
from tests.app.conftest import chain

pytest_plugins = "pytester"
TEST = """
def test_memory(remat_check):
    remat_check("model.json", budget="70%", iterations=20, planner="greedy", baseline="baseline.json")
"""


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a check imports: `pytester` unloads what its runs import, and tables are filled once."""
    folder, model = tmp_path_factory.mktemp("loaded"), json.dumps(chain(6)).encode()
    assert problem_of(folder, model, (), Path("a.json"), True, budget="70%", iterations=20, planner="greedy") == ""
    assert problem_of(folder, b"GIF89a", (), Path("a.json"), False) != ""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with `tests/model.json` and a test of its memory. Plugins are loaded by `-p` only."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.mkdir("tests")
    write_model(pytester)
    (pytester.path / "tests/test_memory.py").write_text(TEST)
    return pytester


def write_model(project: pytest.Pytester, rows: int = 64) -> None:
    document = chain(6)
    document["values"][3]["shape"] = [rows, 64]
    (project.path / "tests/model.json").write_text(json.dumps(document))


def run(project: pytest.Pytester, *arguments: str) -> tuple[dict[str, int], str]:
    """(outcomes, output) of pytest from the folder of the project."""
    result = project.runpytest_inprocess("-p", "remat.pytest_plugin", "-W", "ignore", *arguments)
    return result.parseoutcomes(), result.stdout.str()


def test_a_baseline_is_asked_for_written_and_held(project: pytest.Pytester) -> None:
    outcomes, out = run(project)
    assert outcomes == {"failed": 1}
    assert "model.json: there is no baseline baseline.json; write it with pytest --remat-update" in out
    assert run(project, "--remat-update")[0] == {"passed": 1}
    report = json.loads((project.path / "tests/baseline.json").read_text())
    assert report["format"] == "remat-report/1" and report["plan"]["recomputed"] and report["source"]
    assert run(project)[0] == {"passed": 1}


def test_growth_fails_with_the_ops_to_blame_and_no_traceback(project: pytest.Pytester) -> None:
    run(project, "--remat-update")
    write_model(project, 128)
    outcomes, out = run(project)
    assert outcomes == {"failed": 1}
    assert "model.json: over budget: the plan peaks at 96.00 KiB of 89.60 KiB; baseline peak grew by 12.50%" in out
    (row, *_) = [line.split() for line in out.splitlines() if line.split()[-2:] == ["f2", "grew"]]
    shapes = ["float32[64,64]", "→", "float32[128,64]"]
    assert row == ["h2", "16.00", "KiB", "32.00", "KiB", *shapes, "own::Block", "f2", "grew"]
    assert "If the change is intended: pytest --remat-update writes baseline.json again." in out
    assert "memory_check.py" not in out and "Traceback" not in out
    assert run(project, "--remat-update")[0] == {"passed": 1}
    assert run(project)[0] == {"passed": 1}


def test_a_larger_drift_is_allowed_by_the_test(project: pytest.Pytester) -> None:
    run(project, "--remat-update")
    write_model(project, 80)
    assert run(project)[0] == {"failed": 1}
    (project.path / "tests/test_memory.py").write_text(TEST.replace("baseline=", 'max_drift="20%", baseline='))
    assert run(project)[0] == {"passed": 1}


def test_a_baseline_of_other_fields_is_refused_by_their_names(project: pytest.Pytester) -> None:
    run(project, "--remat-update")
    (project.path / "tests/test_memory.py").write_text(TEST.replace("70%", "90%").replace("=20", "=30"))
    outcomes, out = run(project)
    assert outcomes == {"failed": 1}
    assert "baseline.json was planned with other fields: budget, iterations; plan it again with" in out


def test_a_budget_that_is_missed_writes_no_baseline(project: pytest.Pytester) -> None:
    (project.path / "tests/test_memory.py").write_text(TEST.replace("70%", "1%"))
    outcomes, out = run(project, "--remat-update")
    assert outcomes == {"failed": 1} and "; no baseline was written" in out
    assert not (project.path / "tests/baseline.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model.json", "modle.json", "no such file; did you mean model.json"),
        ("iterations", "iteration", "did you mean 'iterations'"),
        ('"70%"', '"50"', "did you mean 50%"),
        ('"baseline.json"', '"model.json"', "found 'remat/1', expected a report"),
        ("budget=", 'max_drift="2", budget=', "--max-drift 2 means 200.0%; write 2%"),
        ('"model.json"', 'b"GIF89a"', "bytes: "),
        ('"model.json"', "3", "remat_check takes a file, bytes or a PyTorch module, not int"),
        ('"model.json"', '"model.json", 3', "inputs are those of a PyTorch module"),
    ],
)
def test_a_mistake_is_named(project: pytest.Pytester, old: str, new: str, message: str) -> None:
    run(project, "--remat-update")
    (project.path / "tests/test_memory.py").write_text(TEST.replace(old, new))
    outcomes, out = run(project)
    assert outcomes == {"failed": 1}
    assert message in out


def test_a_test_without_the_fixture_loads_nothing_of_remat(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n"
        "    loaded = {'numpy', 'numba', 'onnx', 'torch', 'msgspec', 'planner', 'app', 'graph'} & {*sys.modules}\n"
        "    assert not loaded and 'remat.memory_check' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "remat.pytest_plugin", str(tmp_path)]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
