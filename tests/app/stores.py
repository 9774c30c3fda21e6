"""Stores for tests, and what is kept in them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from app.jobs import repository
from app.jobs.interface import Operation
from app.settings import Settings
from app.store.records import save_graph
from app.store.store import Store


def graph_read(document: bytes = b"{}", name: str = "net") -> dict[str, Any]:
    """What a child says of a graph it has read."""
    return {
        "document": document,
        "id": hashlib.sha256(document).hexdigest(),
        "name": name,
        "graph_name": None,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}],
        "batch": 4,
        "nodes": 3,
        "values": 4,
        "format": "native",
        "forward_only": False,
    }


def solved(order: Any = "plan", budget: str = "50%", planner: str = "greedy", **plan: Any) -> dict[str, Any]:
    """What a child says of a plan it has made: half of 100 bytes saved for a tenth more time."""
    report = {
        "id": "",
        "model": {"name": "chain"},
        "runtime": "arena",
        "device": "a100-80gb",
        "fits": True,
        "request": {"budget": budget},
        "baseline": {"peak_bytes": 100, "seconds": 1.0},
        "plan": {
            "status": "found",
            "planner": planner,
            "seed": 0,
            "reproducible": True,
            "budget_bytes": 50,
            "max_overhead": None,
            "counts": "everything",
            "peak_bytes": 50,
            "arena_bytes": 64,
            "saved_bytes": 50,
            "saved": 0.5,
            "seconds": 1.1,
            "overhead": 0.1,
            "gap": 0.05,
            "bound": {"overhead": 0.05, "peak_bytes": 40},
            "order": order,
        }
        | plan,
        "executed": {"status": "equal"},
        "elapsed": {"read": 0.5, "plan": 1.5},
    }
    sections = {"timeline": json.dumps({"step_bytes": [order]}).encode()}
    return {"report": json.dumps(report).encode(), "sections": sections, "exit_code": 0}


def opened(data: Path, **settings: Any) -> Store:
    """A store with one graph, to serve."""
    store = Store.open_for_serving(Settings(data=data, **settings))
    save_graph(store, graph_read())
    return store


def add(store: Store, operation: Operation) -> Operation:
    """The operation as a row, which a worker would claim if it is queued."""
    return repository.submit(store, operation, 1, 100)


GRAPH_ID = graph_read()["id"]
