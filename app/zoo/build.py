"""A zoo in a folder: a file a network, and the manifest that names them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from app.atomic_files import write_atomic
from app.errors import BadUsage
from app.zoo.catalogue import ZooNetwork, networks
from app.zoo.export import export_onnx
from app.zoo.manifest import FILE_NAME, Manifest, ManifestModel, SkippedNetwork, encode_manifest, sha256

TORCH_MISSING = "it is exported by PyTorch, which is not installed; pip install 'remat[torch]'"


def select_networks(names: Iterable[str]) -> list[ZooNetwork]:
    """The networks called so, all where there are no names. Raises BadUsage."""
    known, wanted = networks(), list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in known]:
        said = f"{', '.join(unknown)}: not in the zoo; name some of {', '.join(known)}"
        raise BadUsage(said, code="unknown_network")
    return [known[name] for name in wanted] or list(known.values())


def has_torch() -> bool:
    """Whether networks can be exported here."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "onnxscript"))


def build_zoo(wanted: Iterable[ZooNetwork], folder: Path, told: Callable[[str], object] = print) -> Manifest:
    """The manifest of `folder`, made with a file for each network that can be had here. Raises CannotWrite.

    `told` is called with a line a network.
    """
    torch, models, left_out = has_torch(), [], []
    for network in wanted:
        if network.file is None and not torch:
            left_out.append(SkippedNetwork(network.name, TORCH_MISSING))
            told(f"{network.name}: left out; {TORCH_MISSING}")
            continue
        data = network.file.read_bytes() if network.file is not None else _exported(network)
        file = f"{network.name}.onnx"
        write_atomic(folder / file, data)
        models.append(
            ManifestModel(network.name, file, sha256(data), network.source, network.batches, dims=dict(network.dims))
        )
        told(f"{network.name}: {len(data):,} bytes")
    manifest = Manifest(tuple(models), tuple(left_out))
    write_atomic(folder / FILE_NAME, encode_manifest(manifest))
    return manifest


def _exported(network: ZooNetwork) -> bytes:
    return export_onnx(network)
