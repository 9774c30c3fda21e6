"""Exported programs of PyTorch (`.pt2`): their training step is captured by PyTorch in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.cli.console import torch_process
from app.cli.console.files import read_bytes
from app.errors import BadUsage

SUFFIX = ".pt2"
SECONDS = 600.0  # time limit of a capture
CHILD = "remat.torch.exported"


def read_model(name: str, fields: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """(bytes of the model, fields that apply to them): of an exported program the document of its step, without `loss`.

    Raises BadUsage for a program that is not captured; BadGraph, OSError.
    """
    if not (name.lower().endswith(SUFFIX) and Path(name).is_file()):
        return read_bytes(name), dict(fields)
    if changed := sorted(fields.keys() & {"batch", "inputs", "dims"}):
        raise BadUsage(
            f"{name}: an exported program has its shapes; leave out {', '.join(changed)}, or export it again"
        )
    request = {"path": name, "loss": fields.get("loss")}
    document = torch_process.answer(CHILD, request, name, "captures the program", code="not_captured", seconds=SECONDS)
    return msgspec.json.encode(document), {key: value for key, value in fields.items() if key != "loss"}
