"""`remat zoo`: write model files of well-known networks, and a manifest for `remat batch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.atomic_files import CannotWrite, remedy
from app.cli.console.files import to_json
from app.render.text import table
from app.zoo.build import build_zoo, has_torch, select_networks
from app.zoo.catalogue import ZooNetwork
from app.zoo.manifest import FILE_NAME


def run(names: Sequence[str], folder: Path, only_list: bool, as_json: bool) -> int:
    """Exit code: 0. Networks that need a missing package are skipped with a message."""
    networks = select_networks(names)
    if only_list:
        print(to_json({"networks": list(map(_row, networks))}) if as_json else "\n".join(_lines(networks)))
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot create {folder}: {error.strerror}; {remedy(error.errno)}") from error
    manifest = build_zoo(networks, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(to_json(msgspec.to_builtins(manifest)))
    else:
        print(f"{len(manifest.models)} networks, {len(manifest.left_out)} skipped: {folder / FILE_NAME}")
    return 0


def _row(network: ZooNetwork) -> dict[str, object]:
    return {
        "name": network.name,
        "source": network.source,
        "batches": network.batches,
        "dims": network.dims,
        "available": network.file is not None or has_torch(),
    }


def _lines(networks: Sequence[ZooNetwork]) -> list[str]:
    rows = [
        (
            network.name,
            ",".join(map(str, network.batches)),
            "" if network.file is not None or has_torch() else "needs torch",
            network.source,
        )
        for network in networks
    ]
    return table(("network", "batches", "", "source"), rows)
