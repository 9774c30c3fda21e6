"""`remat zoo`: real networks as files of their shapes, and a manifest that `remat batch` reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.atomic_files import CannotWrite, remedy
from app.cli.commands.files import to_json
from app.render.text import table
from app.zoo.build import build_zoo, has_torch, select_networks
from app.zoo.catalogue import ZooNetwork
from app.zoo.manifest import FILE_NAME


def run(names: Sequence[str], folder: Path, only_list: bool, as_json: bool) -> int:
    """Exit code: 0 done. Networks that cannot be had here are left out, and it says so."""
    wanted = select_networks(names)
    if only_list:
        print(to_json({"networks": [_said(network) for network in wanted]}) if as_json else "\n".join(_lines(wanted)))
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot make {folder}: {error.strerror}; {remedy(error.errno)}") from error
    manifest = build_zoo(wanted, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(to_json(msgspec.to_builtins(manifest)))
    else:
        print(f"{len(manifest.models)} networks, {len(manifest.left_out)} left out: {folder / FILE_NAME}")
    return 0


def _said(network: ZooNetwork) -> dict[str, object]:
    return {
        "name": network.name,
        "source": network.source,
        "batches": network.batches,
        "dims": network.dims,
        "available": network.file is not None or has_torch(),
    }


def _lines(wanted: Sequence[ZooNetwork]) -> list[str]:
    rows = [
        (
            network.name,
            ",".join(map(str, network.batches)),
            "" if network.file is not None or has_torch() else "needs torch",
            network.source,
        )
        for network in wanted
    ]
    return table(("network", "batches", "", "from"), rows)
