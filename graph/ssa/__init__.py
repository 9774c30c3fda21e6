"""SSA form: versions of names that are written more than once, conversion to SSA, and names of the values of a graph.

May import graph.analysis, errors, formats.document, ir and ops.registry. Start at `version_table.py`, then `to_ssa.py`.

    Document, "naming": "mutable" ──convert_to_ssa──▶ Document ──▶ Graph
                ▲                                                    │
                ╰──────────────── mutable_document ◀─────────────────╯

`mutable_document` is in `graph.formats.native.mutable_names`. A name that exists from the start (input, parameter,
constant, state) is version 0. Each write adds one, so the first write of a new name is version 1.
"""

from __future__ import annotations

from graph.ssa.to_ssa import convert_to_ssa
from graph.ssa.version_table import VersionTable, versions_of, versions_of_each

__all__ = ["VersionTable", "convert_to_ssa", "versions_of", "versions_of_each"]
