"""Write a zoo to a folder: one model file per network, and a manifest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from app.atomic_files import write_atomic
from app.errors import BadUsage
from app.zoo.catalogue import ZooNetwork, networks
from app.zoo.export import export_onnx
from app.zoo.manifest import FILE_NAME, Manifest, ManifestModel, SkippedNetwork, encode_manifest, sha256

TORCH_MISSING = "its export needs PyTorch, which is not installed; pip install 'remat[torch]'"


def select_networks(names: Iterable[str]) -> list[ZooNetwork]:
    """Networks by name; all without names. Raises BadUsage."""
    known, selected = networks(), list(dict.fromkeys(names))
    if unknown := [name for name in selected if name not in known]:
        message = f"{', '.join(unknown)}: not in the zoo; known networks: {', '.join(known)}"
        raise BadUsage(message, code="unknown_network")
    return [known[name] for name in selected] or list(known.values())


def has_torch() -> bool:
    """Whether the packages that export networks are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "onnxscript"))


def build_zoo(selected: Iterable[ZooNetwork], folder: Path, log: Callable[[str], object] = print) -> Manifest:
    """Write a model file for each available network, and the manifest. Raises CannotWrite.

    `log` is called with one line per network.
    """
    torch, models, left_out = has_torch(), [], []
    for network in selected:
        if network.file is None and not torch:
            left_out.append(SkippedNetwork(network.name, TORCH_MISSING))
            log(f"{network.name}: skipped; {TORCH_MISSING}")
            continue
        data = network.file.read_bytes() if network.file is not None else _exported(network)
        file = f"{network.name}.onnx"
        write_atomic(folder / file, data)
        models.append(
            ManifestModel(network.name, file, sha256(data), network.source, network.batches, dims=dict(network.dims))
        )
        log(f"{network.name}: {len(data):,} bytes")
    manifest = Manifest(tuple(models), tuple(left_out))
    write_atomic(folder / FILE_NAME, encode_manifest(manifest))
    return manifest


def _exported(network: ZooNetwork) -> bytes:
    return export_onnx(network)
