"""Files that their framework reads in a process of its own.

PyTorch captures the training step of an exported program (`.pt2`); JAX writes MLIR bytecode as text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.cli.console import framework_process
from app.cli.console.files import read_bytes
from app.errors import BadUsage
from graph.formats.stablehlo.reader import BYTECODE

SUFFIX = ".pt2"
SECONDS = 600.0  # time limit of a capture
CHILD, BYTECODE_CHILD = "remat.torch.exported", "remat.jax.bytecode"


def read_model(name: str, fields: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """(bytes of the model, fields that apply to them): of an exported program the document of its step, without `loss`.

    Raises BadUsage for a program that is not captured, or not read by JAX; BadGraph, OSError.
    """
    if not (name.lower().endswith(SUFFIX) and Path(name).is_file()):
        data = read_bytes(name)
        return (_text_of_bytecode(name, data) if data.startswith(BYTECODE) else data), dict(fields)
    if changed := sorted(fields.keys() & {"batch", "inputs", "dims"}):
        raise BadUsage(
            f"{name}: an exported program has its shapes; leave out {', '.join(changed)}, or export it again"
        )
    request = {"path": name, "loss": fields.get("loss")}
    document = framework_process.answer(
        CHILD, request, name, "captures the program", code="not_captured", seconds=SECONDS
    )
    return msgspec.json.encode(document), {key: value for key, value in fields.items() if key != "loss"}


def _text_of_bytecode(name: str, data: bytes) -> bytes:
    """Text of a StableHLO module in MLIR bytecode."""
    with tempfile.NamedTemporaryFile() as file:  # standard input has no path
        file.write(data)
        file.flush()
        found = framework_process.answer(
            BYTECODE_CHILD,
            {"path": file.name},
            name,
            "reads the bytecode",
            code="not_captured",
            seconds=SECONDS,
            framework=framework_process.JAX,
        )
    return str(found["text"]).encode()
