"""The zoo of the onnx wheel: files, manifest, and what is said where torch is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import typer_app
from app.errors import BadUsage
from app.zoo import build
from app.zoo.catalogue import networks
from app.zoo.manifest import Manifest, ManifestModel, encode_manifest, is_manifest, parse, sha256


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "has_torch", lambda: False)


def test_the_nine_of_the_wheel_are_in_the_zoo_and_ten_written_from_papers() -> None:
    found = networks()
    assert sum(network.file is not None for network in found.values()) == 9
    assert [name for name, network in found.items() if network.file is None] == [
        "resnet18",
        "resnet50",
        "resnet101",
        "vit_base",
        "convnext_tiny",
        "unet",
        "bert_base",
        "gpt2_small",
        "llama_1b",
        "lstm_medium",
    ]
    assert all(network.source and len(network.batches) > 1 for network in found.values())


def test_a_zoo_is_files_and_a_manifest_with_their_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "zoo"
    assert typer_app.run(["zoo", "light_squeezenet", "light_zfnet512", "-o", str(folder)]) == 0
    assert capsys.readouterr().out == f"2 networks, 0 skipped: {folder / 'manifest.json'}\n"
    manifest = parse((folder / "manifest.json").read_bytes(), "manifest")
    assert [model.name for model in manifest.models] == ["light_squeezenet", "light_zfnet512"]
    for model in manifest.models:
        assert sha256((folder / model.file).read_bytes()) == model.sha256
        assert model.batches == (1, 16)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_what_it_exports_is_left_out_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typer_app.run(["zoo", "resnet18", "light_squeezenet", "-o", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    manifest = json.loads(said.out)
    assert [left["name"] for left in manifest["left_out"]] == ["resnet18"]
    assert "pip install 'remat[torch]'" in manifest["left_out"][0]["why"]
    assert "resnet18: skipped" in said.err
    assert not (tmp_path / "resnet18.onnx").exists()


def test_a_list_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["zoo", "--list", "-o", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(networks())
    assert "He, Zhang, Ren, Sun" in next(line for line in lines if line.startswith("resnet50"))
    assert not list(tmp_path.iterdir())


def test_a_network_nobody_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["zoo", "alexnett", "--list"]) == 2
    assert "alexnett: not in the zoo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"models": [], "format": "remat-zoo/9"}', "remat-zoo/9"),
        (b'{"models": [{"name": "a"}]}', "file"),
        (b'{"models": [{"name": "a", "file": "a.onnx", "size": 3}]}', "size"),
        (b"[", "remat zoo"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_told(data: bytes, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        parse(data, "m.json")


def test_a_manifest_is_known_by_its_format(tmp_path: Path) -> None:
    manifest, model = tmp_path / "a.json", tmp_path / "b.json"
    manifest.write_bytes(encode_manifest(Manifest((ManifestModel("m", "m.onnx"),))))
    model.write_text('{"format": "remat/1", "values": [], "nodes": [], "outputs": []}')
    assert is_manifest(manifest)
    assert not is_manifest(model)
