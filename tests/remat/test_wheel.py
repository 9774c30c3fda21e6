"""The wheel owns one top-level name, so it works beside a user's own `app.py`, `graph.py` and `planner/`."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph.formats.native.writer import document
from tests.end_to_end.test_agreement import training_chain
from tests.remat.build import ROOT, build_module

pytestmark = pytest.mark.heavy
BUILD = build_module()
PACKAGES = (*BUILD.MOVED, BUILD.TARGET)
IN_THE_WAY = ("app.py", "graph.py", "planner/__init__.py")


def run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """No folder of modules beside those of each test: PYTHONPATH may name a checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def wheel(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from a source distribution of a copy of the checkout."""
    folder = tmp_path_factory.mktemp("build")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder / "checkout")
    backend = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", backend, cwd=folder / "checkout")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder / "wheel", source)
    (built,) = (folder / "wheel").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a new environment that has the wheel, and the dependencies of this one.

    A folder that a .pth file names has its own .pth files ignored, so an editable install in it stays unseen.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    for name in IN_THE_WAY:
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(f"raise ImportError('{name} of another distribution')")
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: that of a user, with modules in the way and a model.

    Compiling kernels would take minutes, so plans are made by a planner that has none.
    """
    for name in IN_THE_WAY:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise ImportError('{name} of the user')")
    (tmp_path / "model.json").write_text(json.dumps(document(training_chain())))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path


def test_the_wheel_holds_remat_with_every_file_of_the_checkout_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"remat-{importlib.metadata.version('remat')}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"remat", metadata}
    files = [file.relative_to(ROOT) for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file()]
    listed = [file.as_posix() for file in files if "__pycache__" not in file.parts]
    expected = {name if name.startswith("remat/") else f"remat/{name}" for name in listed}
    assert {name for name in names if not name.startswith(metadata)} == expected
    assert "remat/py.typed" in names
    top_level = zipfile.ZipFile(wheel).read(f"{metadata}/top_level.txt")
    assert top_level.split() == [b"remat"]
    entry_points = zipfile.ZipFile(wheel).read(f"{metadata}/entry_points.txt").decode()
    assert "[pytest11]\nremat = remat.pytest_plugin\n" in entry_points


def test_a_plan_is_made_beside_modules_of_the_same_names(binaries: Path, project: Path) -> None:
    code = (
        "import sys, remat\n"
        "report = remat.plan('model.json', '80%', planner='mirror')\n"
        "report.save('plan.json')\n"
        "assert remat.verify('plan.json')['valid']\n"
        "rows = remat.batch('model.json', ['80%'], planners=['mirror'], workers=1)\n"
        "own = sorted({name.partition('.')[0] for name in sys.modules} & {'app', 'graph', 'planner', 'remat'})\n"
        "print(report.executed_equal, rows[0]['state'], own, remat.__file__)\n"
    )
    shown = run(binaries / "python", "-c", code)
    assert shown.startswith("True over_budget ['remat'] ")
    assert str(binaries.parent) in shown


def test_the_training_tutorial_runs_as_written_beside_modules_of_the_same_names(binaries: Path, project: Path) -> None:
    page = (ROOT / "docs" / "first-training-loop.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len([line for line in blocks[0].splitlines() if line]) == 10
    assert blocks[0] in (ROOT / "README.md").read_text()
    (project / "train.py").write_text("".join(blocks))
    shown = run(binaries / "python", "train.py")
    before, after = map(int, re.findall(r"(\d+) MiB", shown))
    assert 0 < after <= 0.66 * before and re.search(r"[1-9]\d* ops recomputed, status (found|proven)", shown)


@pytest.mark.parametrize("command", [["remat"], ["python", "-m", "remat"]], ids=" ".join)
def test_the_command_line_plans(binaries: Path, project: Path, command: list[str]) -> None:
    call = (binaries / command[0], *command[1:])
    report = json.loads(run(*call, "plan", "model.json", "--planner", "mirror", "--max-overhead", "50%", "--json"))
    assert report["executed"]["status"] == "equal"
    assert "plan" in run(*call, "--help")
    assert "as_given" in run(*call, "planners")
    assert json.loads(run(*call, "schema", "request"))


def test_pytest_finds_the_fixture_of_an_installation(binaries: Path, project: Path) -> None:
    """Also where pytest rewrites the assertions of every module of a distribution with a plugin."""
    (project / "test_memory.py").write_text(
        "def test_memory(remat_check):\n"
        "    remat_check('model.json', max_overhead='50%', planner='mirror', baseline='baseline.json')\n"
    )
    command = (binaries / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    assert "1 passed" in run(*command, "--remat-update")
    assert "1 passed" in run(*command)
    assert "memory of models" in run(*command, "--help")


def test_the_service_starts_plans_and_stops(binaries: Path, project: Path) -> None:
    command = [str(binaries / "remat"), "serve", "--port", "0", "--data", "data"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            url = next(found[1] for line in lines if (found := re.search(r"listening on (\S+)", line)))
            assert urllib.request.urlopen(f"{url}/livez", timeout=30).status == 200
            graph = json.loads((project / "model.json").read_text())
            body = json.dumps({"graph": graph, "max_overhead": "50%", "planner": "mirror"}).encode()
            headers = {"content-type": "application/json", "prefer": "wait=60"}
            request = urllib.request.Request(f"{url}/v1/plans", body, headers)
            with urllib.request.urlopen(request, timeout=90) as answer:
                assert answer.status == 201 and json.load(answer)["checked"]
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read() if process.stderr else ""
            assert process.wait(60) == 0, rest


def test_the_kernels_of_an_installation_are_where_the_image_warms_them(binaries: Path, project: Path) -> None:
    command = "import remat.planner.warm as warm; print(sum(len(each.functions) for each in warm.KERNEL_SETS))"
    assert int(run(binaries / "python", "-c", command)) > 10
