"""A zoo in a folder: a file a network, and the manifest that names them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from app.atomic_files import write_whole
from app.errors import BadUsage
from app.zoo.catalogue import Network, networks
from app.zoo.export import exported
from app.zoo.manifest import NAME, LeftOut, Manifest, Model, sha256, written

NO_TORCH = "it is exported by PyTorch, which is not installed; pip install 'remat[torch]'"


def chosen(names: Iterable[str]) -> list[Network]:
    """The networks called so, all where there are no names. Raises BadUsage."""
    known, wanted = networks(), list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in known]:
        said = f"{', '.join(unknown)}: not in the zoo; name some of {', '.join(known)}"
        raise BadUsage(said, code="unknown_network")
    return [known[name] for name in wanted] or list(known.values())


def with_torch() -> bool:
    """Whether networks can be exported here."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "onnxscript"))


def build(wanted: Iterable[Network], folder: Path, told: Callable[[str], object] = print) -> Manifest:
    """The manifest of `folder`, made with a file for each network that can be had here. Raises CannotWrite.

    `told` is called with a line a network.
    """
    torch, models, left_out = with_torch(), [], []
    for network in wanted:
        if network.file is None and not torch:
            left_out.append(LeftOut(network.name, NO_TORCH))
            told(f"{network.name}: left out; {NO_TORCH}")
            continue
        data = network.file.read_bytes() if network.file is not None else _exported(network)
        file = f"{network.name}.onnx"
        write_whole(folder / file, data)
        models.append(Model(network.name, file, sha256(data), network.source, network.batches, dims=dict(network.dims)))
        told(f"{network.name}: {len(data):,} bytes")
    manifest = Manifest(tuple(models), tuple(left_out))
    write_whole(folder / NAME, written(manifest))
    return manifest


def _exported(network: Network) -> bytes:
    return exported(network)
