"""Schema of reports, curves and fits, as msgspec structs.

The published JSON Schema, OpenAPI and the parser of saved reports are derived from these records. A class name without
`Section` or `Document` is its name in the published schemas. A section that was not requested is absent (UNSET).
May import planner.errors. Start at `documents.py`.
"""

from planner.report.schema.documents import schema_components
from planner.report.schema.saved import parse_saved

__all__ = ["parse_saved", "schema_components"]
