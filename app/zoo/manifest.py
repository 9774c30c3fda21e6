"""A manifest: a JSON file that names models, the sizes to plan them at, and where they come from."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import msgspec

from app.errors import BadUsage

FORMAT = "remat-zoo/1"
FILE_NAME = "manifest.json"


class ManifestModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model. `file` is beside the manifest, or absolute; `batches` are leading lengths, none: as it stands."""

    name: str
    file: str
    sha256: str | None = None
    source: str = ""
    batches: tuple[int, ...] = ()
    inputs: dict[str, tuple[int, ...]] = {}
    dims: dict[str, int] = {}
    loss: str | None = None


class SkippedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network the manifest is without, and why."""

    name: str
    why: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `remat zoo` writes and `remat batch` reads."""

    models: tuple[ManifestModel, ...]
    left_out: tuple[SkippedNetwork, ...] = ()
    format: str = FORMAT


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as a file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def parse(data: bytes, name: str) -> Manifest:
    """The manifest in `data`; `name` is what errors call it. Raises BadUsage."""
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = f"{name}: {error}; write a manifest with `remat zoo -o FOLDER` and begin from that"
        raise BadUsage(said, code="bad_manifest") from error
    if found.format != FORMAT:
        raise BadUsage(f"{name}: its format is {found.format!r}, not {FORMAT!r}", code="bad_manifest")
    for model, count in Counter(model.name for model in found.models).items():
        if count > 1:
            said = f"{name}: {count} models are called {model!r}; give each a name of its own"
            raise BadUsage(said, code="bad_manifest")
    return found


def is_manifest(path: Path) -> bool:
    """Whether the file calls itself one."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return FORMAT.encode() in head and b'"models"' in head


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
