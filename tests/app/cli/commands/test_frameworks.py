"""Other frameworks' files by the command line and over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.cli.typer_app import run
from bench.paddle_program import transformer
from graph.formats.readers import importer_of, load
from graph.limits import ShapeOverrides
from tests.graph.formats.caffe2.nets import LSTM_SHAPES, lstm
from tests.graph.formats.mxnet.symbols import lenet

INPUTS = [word for name, shape in LSTM_SHAPES.items() for word in ("--input", f"{name}={'x'.join(map(str, shape))}")]


def remat(*words: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "remat", *map(str, words)], capture_output=True, check=False)


def test_a_plan_of_a_symbol_is_written_as_mirroring(tmp_path: Path) -> None:
    source, target = tmp_path / "net-symbol.json", tmp_path / "planned-symbol.json"
    source.write_bytes(lenet())
    done = remat(
        "plan",
        source,
        "--batch",
        8,
        "--budget",
        "0",
        "--seconds",
        1,
        "--planner",
        "mirror",
        "--json",
        "--graph",
        target,
    )
    assert done.returncode in (0, 1), done.stderr
    again = set(json.loads(done.stdout)["plan"]["recomputed"])
    nodes = {node["name"]: node.get("attrs", {}) for node in json.loads(target.read_bytes())["nodes"]}
    said = {name: attrs["force_mirroring"] for name, attrs in nodes.items() if "force_mirroring" in attrs}
    assert set(said) == {"conv1", "bn1", "act1", "pool1", "fc1", "softmax"}
    assert {name for name, word in said.items() if word == "True"} == again & set(said)
    assert load(target.read_bytes(), shapes=ShapeOverrides(batch=8)).nodes


@pytest.mark.parametrize(
    ("name", "data", "flags"),
    [
        ("a-symbol.json", lenet(), ["--batch", "8"]),
        ("a.pb", lstm().SerializeToString(), INPUTS),
        ("a.pbtxt", lstm().SerializeToString(), INPUTS),
        ("a.pdmodel", transformer(blocks=1, batch=2, tokens=8, width=8, heads=2, words=16), []),
    ],
)
def test_files_are_converted_by_their_names(tmp_path: Path, name: str, data: bytes, flags: list[str]) -> None:
    source, rows, back = tmp_path / "model", tmp_path / "rows.json", tmp_path / name
    source.write_bytes(data)
    assert run(["convert", str(source), str(rows), *flags]) == 0
    assert run(["convert", str(rows), str(back)]) == 0
    assert importer_of(back.read_bytes()) == importer_of(data)
    assert run(["diff", str(rows), str(back)]) == 0


@pytest.mark.parametrize(
    ("media_type", "data", "query"),
    [
        ("application/vnd.mxnet.symbol+json", lenet(), {"batch": 8}),
        (
            "application/vnd.caffe2.net",
            lstm().SerializeToString(),
            {"input": [f"{name}={'x'.join(map(str, shape))}" for name, shape in LSTM_SHAPES.items()]},
        ),
        ("application/vnd.paddle.program", transformer(blocks=1, batch=2, tokens=8, width=8, heads=2, words=16), {}),
    ],
)
def test_models_come_and_go_by_content_type(client: TestClient, media_type: str, data: bytes, query: dict) -> None:
    sent = client.post("/v1/graphs", content=data, params=query, headers={"content-type": media_type})
    assert sent.status_code == 201, sent.text
    got = client.get(sent.headers["location"], headers={"accept": media_type})
    assert got.status_code == 200 and got.headers["content-type"].startswith(media_type)
    again = client.post("/v1/graphs", content=got.content, headers={"content-type": media_type})
    assert again.json()["id"] == sent.json()["id"]


def test_what_a_format_has_no_words_for_is_refused_by_name(client: TestClient) -> None:
    headers = {"content-type": "application/octet-stream"}
    sent = client.post("/v1/graphs", content=lenet(), params={"batch": 8}, headers=headers)
    got = client.get(sent.headers["location"], headers={"accept": "application/vnd.paddle.program"})
    assert got.status_code == 422
    assert got.json()["code"] == "not_representable"
