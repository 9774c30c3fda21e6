"""`remat zoo`: write model files of well-known networks, and a manifest for `remat batch`; `remat try`: plan one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.atomic_files import CannotWrite, remedy
from app.cli.commands import plan
from app.cli.console.files import demand_writable, to_json
from app.errors import BadUsage
from app.render.text import table
from app.zoo.build import TORCH_MISSING, build_zoo, has_torch, select_networks
from app.zoo.catalogue import ZooNetwork
from app.zoo.manifest import FILE_NAME

#: Search time of `remat try`, in seconds: the first answer soon, rather than the best.
TRY_SECONDS = 2


def run(names: Sequence[str], folder: Path, only_list: bool, as_json: bool) -> int:
    """Exit code: 0. Networks that need a missing package are skipped with a message."""
    networks = select_networks(names)
    if only_list:
        print(to_json({"networks": list(map(_row, networks))}) if as_json else "\n".join(_lines(networks)))
        return 0
    _make(folder)
    manifest = build_zoo(networks, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(to_json(msgspec.to_builtins(manifest)))
    else:
        print(f"{len(manifest.models)} networks, {len(manifest.left_out)} skipped: {folder / FILE_NAME}")
    return 0


def try_network(name: str, budget: str, folder: Path) -> int:
    """Plan a network of the zoo at its largest batch, and say what to do next. Exit code: that of `remat plan`.

    Writes the model, its plan, the rewritten graph and a picture of memory over time to `folder`. Raises BadUsage for a
    network whose export needs a missing package.
    """
    (network,) = select_networks([name])
    if network.file is None and not has_torch():
        raise BadUsage(f"{name}: {TORCH_MISSING}", code="missing_extra")
    _make(folder)
    build_zoo([network], folder, lambda _: None)
    model = folder / f"{name}.onnx"
    written = plan.OutputFiles(folder / "plan.json", folder / "rewritten.onnx", None, folder / "memory.svg")
    demand_writable({}, *written.paths)
    fields = {"budget": budget, "search_seconds": TRY_SECONDS, "execute": "no", "batch": network.batches[-1]}
    fields |= {"dims": dict(network.dims)} if network.dims else {}
    exit_code = plan.run(str(model), fields, written, False)
    print("\n".join(_next_steps(written, f"{model} {_flags(network)}", budget)))
    return exit_code


def _next_steps(written: plan.OutputFiles, model: str, budget: str) -> list[str]:
    steps = (
        ("picture", f"{written.plot}"),
        ("why each repeat", f"remat explain {written.report} --top 10"),
        ("prove it again", f"remat verify {written.report}"),
        ("search longer, execute", f"remat plan {model} --budget {budget}"),
        ("other budgets", f"remat curve {model} --budgets 90%,70%,50%,30%"),
        ("in a browser", f"remat serve  # then upload {model.split()[0]} at http://localhost:8000/upload"),
    )
    return ["", "Next:", *(f"  {what:<24}{command}" for what, command in steps)]


def _flags(network: ZooNetwork) -> str:
    return " ".join(
        [f"--batch {network.batches[-1]}", *(f"--dim {name}={size}" for name, size in network.dims.items())]
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot create {folder}: {error.strerror}; {remedy(error.errno)}") from error


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
