"""`remat planners`, `remat devices`, `remat schema`: the catalogue."""

from __future__ import annotations

from app.catalogue import devices, planners, schema
from app.cli.console.files import to_json
from app.render.text import format_bytes, table


def run_planners(as_json: bool) -> int:
    found = planners()
    rows = [(row["name"], row["summary"]) for row in found]
    print(to_json({"planners": found}) if as_json else "\n".join(table(("planner", "summary"), rows)))
    return 0


def run_devices(as_json: bool) -> int:
    found = devices()
    rows = [
        (
            row["name"],
            format_bytes(row["memory_bytes"]),
            f"{row['bytes_per_second'] / 1e9:.0f} GB/s",
            f"{row['flops_per_second']['float32'] / 1e12:g} TFLOPS",
            row["source"],
        )
        for row in found
    ]
    head = ("device", "memory", "bandwidth", "float32", "source")
    print(to_json({"devices": found}) if as_json else "\n".join(table(head, rows, (1, 2, 3))))
    return 0


def run_schema(name: str) -> int:
    print(to_json(schema(name)))
    return 0
