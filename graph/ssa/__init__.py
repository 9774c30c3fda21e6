"""Programs whose names are written more than once: which write each read sees, and ways to single definition and back.

    Document, "naming": "mutable" ──single_definition──▶ Document ──▶ Graph
                ▲                                                       │
                ╰──────────────────── mutable_document ◀────────────────╯

One table, `VersionTable`, stands behind all of it. A name given from outside is version 0 and every write adds
one, so the first write of a new name is version 1.
"""

from __future__ import annotations

from graph.ssa.to_ssa import convert_to_ssa
from graph.ssa.version_table import VersionTable, versions_of, versions_of_each

__all__ = ["VersionTable", "convert_to_ssa", "versions_of", "versions_of_each"]
