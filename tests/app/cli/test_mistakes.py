"""Typical mistakes, each answered by a line that says what to type; no broken file is answered in Python's words."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from app.cli.typer_app import run
from app.telemetry import logs
from tests.app.cli.shown_text import FOREIGN
from tests.app.conftest import chain

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a graph document and an ONNX model of symbolic sizes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(chain(6)))
    (tmp_path / "report.json").write_text('{"format": "remat-report/1", "model": {"nodes": 1, "values": 2}}')
    shutil.copy(MODELS / "decoder.onnx", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("plan", "`remat plan model.onnx`"),
        ("model.json", "`remat plan model.json`"),
        ("paln model.json", "'plan'"),
        ("plan modle.json", "did you mean model.json?"),
        ("plan model.json 50%", "`--budget 50%`"),
        ("plan model.json --budget 50", "did you mean 50%?"),
        ("plan model.json --budget 8GBi", "did you mean 8GB or 8GiB?"),
        ("plan model.json --budgt 50%", "--budget"),
        ("plan model.json --planner anneall", "did you mean 'anneal'?"),
        ("plan model.json --runtime tourch-eager", "did you mean 'torch-eager'?"),
        ("plan model.json --batch eight", "a whole number, such as 8"),
        ("plan decoder.onnx", "--batch 8"),
        ("plan model.json --device a100", "did you mean 'a100-80gb'?"),
        ("plan no_such.json --device a100", "did you mean 'a100-80gb'?"),
        ("curve model.json --budget 50%", "--budgets"),
        ("plan .", "`remat batch`"),
        ("batch model.json", "--budgets 90%,50%"),
        ("batch model.json decoder.onnx --budgets 50%", "quote the pattern"),
        ("serve --port 99999", "65535. See remat serve --help."),
        ("serve --host no.such.host.invalid --no-auth --port 0", "name an address of this machine"),
        ("info report.json", "`remat explain` reads a report"),
        ("top --server localhost:8000", "did you mean http://localhost:8000?"),
        ("top --server http://[::1", "give a URL such as http://"),
        ("top --server http://here:one", "give a URL such as http://"),
        ("top --server htp://localhost:8000", "did you mean http://localhost:8000?"),
        ("top --server http://:8000", "no host; give a URL such as http://"),
    ],
)
def test_a_mistake_is_answered_by_what_to_type(
    folder: Path, typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    said = capsys.readouterr().err
    assert answer in said
    assert not FOREIGN.search(said)


@pytest.mark.parametrize("typed", ["info {}", "plan model.json --request {}", "layout {}", "batch {} --budgets 50%"])
def test_a_file_that_cannot_be_read_is_named(folder: Path, typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The memory of a process opens, and address 0 cannot be read.
    assert run(typed.format("/proc/self/mem").split()) == 2
    said = capsys.readouterr().err
    assert "/proc/self/mem: input/output error; name another file" in said and not FOREIGN.search(said)


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("localhost:8000", "did you mean http://localhost:8000?"),
        ("http://localhost:one", "give a URL such as http://"),
        ("http://[::1", "give a URL such as http://"),
    ],
)
@pytest.mark.parametrize("typed", ["top --once", "batch model.json --budgets 50% --engine server"])
def test_a_url_of_the_environment_that_cannot_be_used_is_named(
    folder: Path, typed: str, url: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMAT_URL", url)
    assert run(typed.split()) == 2
    said = capsys.readouterr().err
    assert f"REMAT_URL: found {url}" in said and answer in said


@pytest.mark.parametrize(
    "typed", ["serve --host no.such.host.invalid --no-auth --port 0", "worker --data data --solve-on nowhere"]
)
def test_a_misspelled_setting_is_warned_of(
    folder: Path, typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "start", lambda level: None)
    for name in ("REMAT_WORKRES", "REMAT_DATABASE", "REMAT_URL", "REMAT_OF_ANOTHER_PROGRAM"):
        monkeypatch.setenv(name, "1")
    assert run(typed.split()) == 2
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warned == [
        "warning: REMAT_DATABASE is no setting; did you mean REMAT_DATABASE_URL?",
        "warning: REMAT_WORKRES is no setting; did you mean REMAT_WORKERS?",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_file_is_refused_without_words_of_python(
    folder: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut off, overwritten or with a byte changed; a file that is still a model may be planned."""
    chance = random.Random(seed)
    data = bytearray((folder / chance.choice(["model.json", "decoder.onnx"])).read_bytes())
    at = chance.randrange(len(data))
    match seed % 4:
        case 0:
            del data[at:]
        case 1:
            data[at : at + 40] = bytes(chance.randrange(256) for _ in range(40))
        case 2:
            data[at] ^= 1 << chance.randrange(8)
        case _:
            data[at:at] = data[:at]
    (folder / "broken").write_bytes(data)
    code = run(["plan", "broken", "--batch", "2", "--budget", "80%", "--iterations", "2", "--execute", "no"])
    said = capsys.readouterr()
    assert code in (0, 1, 2)
    assert not FOREIGN.search(said.err), said.err
    assert (said.err.count("\n") > 0) if code == 2 else said.out
