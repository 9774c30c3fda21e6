"""Files that no reader reads are named, with the way to a file that is read."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile

import pytest

from graph.errors import BadGraph
from graph.formats.readers import load


def archive(*names: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as opened:
        for name in names:
            opened.writestr(name, "{}")
    return written.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


@pytest.mark.parametrize(
    ("data", "kind", "remedy"),
    [
        (b"", "an empty file", "cut off"),
        (b" \n", "an empty file", "cut off"),
        (archive("net/data.pkl", "net/version"), "PyTorch checkpoint", "torch.onnx.export"),
        (archive("net/code/__torch__.py", "net/data.pkl"), "TorchScript", "torch.onnx.export"),
        (archive("net/archive_format", "net/models/model.json"), ".pt2", "remat plan FILE.pt2"),
        (archive("config.json", "model.weights.h5"), "Keras", "model.export"),
        (archive("a.txt"), "ZIP", "unpack"),
        (b"PK\x03\x04 cut off", "ZIP", "unpack"),
        (pickle.dumps({"w": [1.0]}), "pickle", "never read"),
        (safetensors(), "safetensors", "weights without ops"),
        (b"GGUF\x03\0\0\0", "GGUF", "weights without ops"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite", "tf2onnx"),
        (b"\x89HDF\r\n\x1a\n", "HDF5", "model.export"),
        (b"\x93NUMPY\x01\0", "NumPy", "no ops"),
        (b"\x1f\x8b\x08\0", "compressed", "decompress"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "HTML", "download"),
        (b"hello", "b'hello' ... (5 bytes)", "remat/1"),
    ],
)
def test_the_kind_and_the_remedy_are_named(data: bytes, kind: str, remedy: str) -> None:
    with pytest.raises(BadGraph) as caught:
        load(data)
    (finding,) = caught.value.findings
    assert finding.code == "unknown_format"
    assert kind in finding.found
    assert remedy in finding.remedy
