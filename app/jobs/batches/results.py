"""Items of a batch with the figures of their plans, as JSON, CSV or Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from app.errors import NotAcceptable
from app.jobs.batches import repository
from app.render.csv_table import as_csv
from app.store.store import Store

# Imports inside functions: pyarrow is an optional dependency.

MEDIA_TYPES = {"json": "application/json", "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
PAGE_SIZE = 1000
#: Columns in order -> Parquet type.
COLUMNS = {
    "number": "int64",
    "graph_id": "string",
    "model": "string",
    "batch": "int64",
    "budget": "string",
    "planner": "string",
    "seed": "int64",
    "state": "string",
    "plan": "string",
    "operation": "string",
    "cached": "bool",
    "started_at": "string",
    "ended_at": "string",
    "status": "string",
    "fits": "bool",
    "within_budget": "bool",
    "budget_bytes": "int64",
    "baseline_peak_bytes": "int64",
    "peak_bytes": "int64",
    "arena_bytes": "int64",
    "saved_bytes": "int64",
    "saved": "float64",
    "overhead": "float64",
    "bound_overhead": "float64",
    "gap": "float64",
    "reproducible": "bool",
    "solver_seconds": "float64",
    "error": "string",
}


def item_json(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item in the wire format; `error` is a problem object."""
    plan, operation = item["plan_id"], item["operation_id"]
    is_judged = item["status"] is not None and bool(item["budget_bytes"])  # 0: the lowest peak was requested
    made = {
        "within_budget": item["status"] != "over_budget" if is_judged else None,
        "plan": None if plan is None else f"/v1/plans/{plan}",
        "operation": None if operation is None else f"/v1/operations/{operation}",
    }
    return {name: made[name] if name in made else item[name] for name in COLUMNS}


def flat_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as a table row: the budget as text, the error as code and detail."""
    row, error, budget = item_json(item), item["error"], item["budget"]
    message = None if error is None else f"{error.get('code')}: {error.get('detail')}"
    text = budget if budget is None or isinstance(budget, str) else json.dumps(budget)
    return row | {"budget": text, "error": message}


def item_pages(
    page: Callable[[int, int], list[dict[str, Any]]], after: int, limit: int
) -> Iterator[list[dict[str, Any]]]:
    """Pages of items with numbers above `after`, `limit` items at most."""
    while limit > 0:
        some = page(after, min(limit, PAGE_SIZE))
        if some:
            yield some
        if len(some) < min(limit, PAGE_SIZE):
            return
        after, limit = some[-1]["number"], limit - len(some)


def export_table(store: Store, batch_id: str, form: str, after: int, limit: int, state: str | None) -> bytes:
    """The items as a file of format "csv" or "parquet". Raises NotAcceptable if pyarrow is not installed."""
    pages = item_pages(lambda last, most: repository.items_of(store, batch_id, last, most, state), after, limit)
    if form == "parquet":
        return _parquet(pages)
    return as_csv(COLUMNS, (flat_row(item) for page in pages for item in page)).encode()


def _parquet(pages: Iterator[list[dict[str, Any]]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        message = "Parquet needs pyarrow on the server (pip install 'remat[parquet]'); request json or csv instead"
        raise NotAcceptable(message, code="no_parquet") from error
    types = {"int64": pyarrow.int64, "string": pyarrow.string, "bool": pyarrow.bool_, "float64": pyarrow.float64}
    schema = pyarrow.schema([(name, types[kind]()) for name, kind in COLUMNS.items()])
    file = io.BytesIO()
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for page in pages:
            writer.write_table(pyarrow.Table.from_pylist([flat_row(item) for item in page], schema))
    return file.getvalue()


def as_json(items: list[dict[str, Any]], limit: int) -> bytes:
    """A page of at most `limit` items, and the cursor of the next page if `items` has one more."""
    after = items[limit - 1]["number"] if len(items) > limit else None
    return msgspec.json.encode(
        {"items": list(map(item_json, items[:limit])), "next": None if after is None else str(after)}
    )
