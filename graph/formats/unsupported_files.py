"""Kinds of files that people send and no reader reads: what they are, and how to get a model file that is read."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable

_FROM_PYTORCH = (
    "export the module with torch.onnx.export, or capture its training step with remat.torch.capture(module, inputs)"
)
_FROM_EXPORT = f"plan it with `remat plan FILE.pt2`, which needs PyTorch on your machine, or {_FROM_PYTORCH}"
_FROM_KERAS = "export the model with model.export(PATH, format='onnx'), or with tf2onnx"
_WEIGHTS_ONLY = f"the file holds weights without ops; load them into their module and {_FROM_PYTORCH}"


def describe(data: bytes) -> tuple[str, str]:
    """Kind of the file by its first bytes, and what to send instead.

    Example:
        >>> describe(b"")[0]
        'an empty file'
    """
    for matches, kind, remedy in _KINDS:
        if matches(data):
            return kind, remedy
    start = data[:16]
    return f"{start!r} ... ({len(data):,} bytes)", "send a remat/1 document or a model file of a known format"


def _begins(*marks: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda data: data[at:].startswith(marks)


def _archive_with(pattern: str) -> Callable[[bytes], bool]:
    """Whether the bytes are a ZIP archive with an entry whose name matches."""

    def matches(data: bytes) -> bool:
        if not data.startswith(b"PK"):
            return False
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return any(re.search(pattern, name) for name in archive.namelist())
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
            return False

    return matches


def _is_pickle(data: bytes) -> bool:
    return len(data) > 1 and data[0] == 0x80 and 2 <= data[1] <= 5


def _is_safetensors(data: bytes) -> bool:
    return data[8:10] in (b'{"', b"{}", b"{ ") and int.from_bytes(data[:8], "little") <= len(data)


_KINDS: list[tuple[Callable[[bytes], bool], str, str]] = [
    (lambda data: not data.strip(), "an empty file", "send the model file; was the download or the export cut off?"),
    (_archive_with(r"(^|/)(archive_format|models/.*\.json)$"), "a PyTorch export archive (.pt2)", _FROM_EXPORT),
    (_archive_with(r"(^|/)code/"), "a TorchScript archive", _FROM_PYTORCH),
    (_archive_with(r"(^|/)data\.pkl$"), "a PyTorch checkpoint (.pt, .pth)", _FROM_PYTORCH),
    (_archive_with(r"^model\.weights\.h5$|^config\.json$"), "a Keras archive (.keras)", _FROM_KERAS),
    (_begins(b"PK\x03\x04", b"PK\x05\x06"), "a ZIP archive", "unpack it and send the model file"),
    (_is_pickle, "a Python pickle", f"pickles are never read; {_FROM_PYTORCH}"),
    (_is_safetensors, "a safetensors file", _WEIGHTS_ONLY),
    (_begins(b"GGUF"), "a GGUF file", _WEIGHTS_ONLY),
    (_begins(b"TFL3", at=4), "a TensorFlow Lite model", "convert it with tf2onnx --tflite FILE"),
    (_begins(b"\x89HDF"), "an HDF5 file (Keras .h5)", _FROM_KERAS),
    (_begins(b"\x93NUMPY"), "a NumPy array", "send a model; arrays have no ops"),
    (_begins(b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"), "a compressed file", "decompress it first"),
    (_begins(b"version https://git-lfs"), "a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
    (_begins(b"<!DOCTYPE", b"<!doctype", b"<html"), "an HTML page", "download the model file, not the page about it"),
]
