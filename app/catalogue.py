"""Catalogue of planners, devices, schemas and versions."""

from __future__ import annotations

import importlib.metadata
import json
from functools import cache
from pathlib import Path
from typing import Any

from app.errors import NotFound
from graph.analysis.cost import DEVICES
from planner.algorithms import PLANNERS, module_of

SCHEMA_FOLDER = Path(__file__).parent / "api" / "schemas" / "json"
PROBLEM_CODES = Path(__file__).parent / "api" / "wire" / "problem_codes.json"  # written by `python -m docs.generate`
SCHEMA_NAMES = ("document", "columns", "request", "report", "transform", "operation", "problem")
AUTO_SUMMARY = "every planner of the table in turn, each started from the best plan so far"


@cache
def planners() -> list[dict[str, str]]:
    """Name and first sentence of every planner, `auto` first."""
    rows = [{"name": "auto", "summary": AUTO_SUMMARY}]
    for name in PLANNERS:
        first = (module_of(name).__doc__ or "").strip().split("\n", 1)[0]
        rows.append({"name": name, "summary": first})
    return rows


@cache
def devices() -> list[dict[str, Any]]:
    """Every device profile: memory, bandwidth, peak FLOPS and the data sheet they come from."""
    return [
        {
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "bytes_per_second": device.bytes_per_second,
            "flops_per_second": dict(device.flops_per_second),
            "kernel_seconds": device.kernel_seconds,
            "host_bytes_per_second": device.host_bytes_per_second,
            "source": device.source,
        }
        for device in DEVICES.values()
    ]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema called `name`. Raises NotFound, which lists the known names."""
    if name not in SCHEMA_NAMES:
        raise NotFound(f"no schema {name[:80]!r}; known schemas: {', '.join(SCHEMA_NAMES)}")
    document: dict[str, Any] = json.loads((SCHEMA_FOLDER / f"{name}.json").read_text())
    return document


@cache
def versions() -> dict[str, str]:
    """Versions of remat, the API, the graph format, and the libraries that plans depend on."""
    libraries = {name: importlib.metadata.version(name) for name in ("numpy", "onnx", "numba")}
    return {"remat": importlib.metadata.version("remat"), "api": "v1", "format": "remat/1", **libraries}


@cache
def problem_codes() -> dict[str, dict[str, Any]]:
    """Error code -> {"status", "meaning", "remedy"}; status or remedy may be null."""
    codes: dict[str, dict[str, Any]] = json.loads(PROBLEM_CODES.read_text())
    return codes
