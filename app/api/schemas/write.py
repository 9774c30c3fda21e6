"""The JSON Schemas by name, and the command that writes the checked-in ones: `python -m app.api.schemas.write`."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from app.api.schemas.plans import Operation, Problem
from app.api.schemas.request import request_schema
from app.api.schemas.transforms import Transform
from app.atomic_files import write_atomic
from app.catalogue import SCHEMA_FOLDER
from graph.formats.document.schema import json_schemas as of_graphs
from planner.report.schema import schema_components

#: Name on the wire -> record. "document" and "columns" come from `graph.formats`; "request" and "report" from tables.
NAMED: dict[str, type[BaseModel]] = {"operation": Operation, "problem": Problem, "transform": Transform}


def json_schemas() -> dict[str, dict[str, Any]]:
    """Every JSON Schema by name, as checked in under `app/api/schemas/json`."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    records = {name: dialect | record.model_json_schema(by_alias=True) for name, record in NAMED.items()}
    sections = schema_components("#/$defs/{name}")
    del sections["Curve"], sections["CurvePoint"], sections["Fit"], sections["FitTry"]
    report = {"$defs": sections, **sections.pop("Report")}
    return of_graphs() | {"request": dialect | request_schema()} | records | {"report": dialect | report}


def main() -> None:
    """Write the checked-in schemas."""
    for name, schema in json_schemas().items():
        write_atomic(SCHEMA_FOLDER / f"{name}.json", (json.dumps(schema, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
