"""Manifest: a JSON file that lists models, the sizes to plan, and sources."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import msgspec

from app.errors import BadUsage, about_file

FORMAT = "remat-zoo/1"
FILE_NAME = "manifest.json"


class ManifestModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model. `file` is absolute, or relative to the manifest."""

    name: str
    file: str
    sha256: str | None = None
    source: str = ""
    batches: tuple[int, ...] = ()  # batch sizes; default: the model's own
    inputs: dict[str, tuple[int, ...]] = {}
    dims: dict[str, int] = {}
    loss: str | None = None


class SkippedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network missing from the manifest, with the reason."""

    name: str
    why: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Manifest written by `remat zoo` and read by `remat batch`."""

    models: tuple[ManifestModel, ...]
    left_out: tuple[SkippedNetwork, ...] = ()
    format: str = FORMAT


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON text."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def parse(data: bytes, name: str) -> Manifest:
    """The manifest in `data`; `name` identifies it in errors. Raises BadUsage."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{name}: {error}; start from a manifest written by `remat zoo -o FOLDER`"
        raise BadUsage(message, code="bad_manifest") from error
    if manifest.format != FORMAT:
        raise BadUsage(f"{name}: its format is {manifest.format!r}, not {FORMAT!r}", code="bad_manifest")
    for model, count in Counter(model.name for model in manifest.models).items():
        if count > 1:
            message = f"{name}: {count} models are called {model!r}; use unique names"
            raise BadUsage(message, code="bad_manifest")
    return manifest


def is_manifest(path: Path) -> bool:
    """Whether the file is a manifest, by its format field."""
    if path.suffix != ".json":
        return False
    with about_file(path), path.open("rb") as file:
        head = file.read(1 << 20)
    return FORMAT.encode() in head and b'"models"' in head


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
