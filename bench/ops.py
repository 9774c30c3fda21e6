"""Coverage of the newest ai.onnx and of onnxruntime's fused ops: types, kernel, flops, gradient, aliasing.

    python bench/ops.py                # every operator and a summary
    python bench/ops.py --gaps         # operators with a numeric gap only

Exits 1 for a gap: an operator from floats to floats without a gradient, if `REASONS` does not say why; so is a
reason that is not needed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnx import defs
from onnx.reference.ops import load_op

from graph.autodiff.differentiate import differentiate  # noqa: F401  registers every gradient rule
from graph.autodiff.gradients.control_flow.registry import BODY_RULES
from graph.autodiff.gradients.registry import GradientStatus, gradient_status
from graph.formats.onnx.read.node_walk import INLINED
from graph.ops.registry import all_ops, find_op

#: Operators from floats to floats that have no gradient, with the reason.
REASONS = {"OptionalGetElement": "graphs have no optional values"}
_FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"}
_GRADIENT = {GradientStatus.RULE: "rule", GradientStatus.NOT_NEEDED: "ends", GradientStatus.REFUSED: "refused"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """One row of the table."""

    op: str
    since: int
    types: str  # own, onnx
    kernel: str  # own, reference, none
    flops: str  # own, default (one per output element)
    gradient: str  # rule, body (of the node or of its definition), ends (by nature), refused, missing, no floats
    aliasing: str  # view, takeover or nothing
    numeric: bool  # floats in, floats out


def coverage() -> list[Coverage]:
    """Every operator of the newest opset that is not deprecated, and the fused ones, by name."""
    newest: dict[str, defs.OpSchema] = {}
    for schema in defs.get_all_schemas_with_history():
        known = newest.get(schema.name)
        if schema.domain == "" and (known is None or known.since_version < schema.since_version):
            newest[schema.name] = schema
    standard = [_row(schema) for _, schema in sorted(newest.items()) if not schema.deprecated]
    fused = [op for op, record in sorted(all_ops().items()) if record.body is not None and op.startswith("com.")]
    return [*standard, *(Coverage(op, 1, "own", "own", "own", "body", "", True) for op in fused)]


def _row(schema: defs.OpSchema) -> Coverage:
    name, record = schema.name, find_op(schema.name)
    numeric = _takes_floats(schema.inputs) and _takes_floats(schema.outputs)
    return Coverage(
        name,
        schema.since_version,
        "own" if record is not None and record.infer is not None else "onnx",
        "own" if record is not None and record.kernel is not None else _reference(schema),
        "own" if record is not None and record.work is not None else "default",
        _gradient(name, numeric),
        "" if record is None else "view" if record.views else "takeover" if record.takeover else "",
        numeric,
    )


def _gradient(op: str, numeric: bool) -> str:
    record = find_op(op)
    if op in BODY_RULES or op in INLINED or (record is not None and record.body is not None):
        return "body"
    return _GRADIENT.get(gradient_status(op), "missing" if numeric else "no floats")


def _takes_floats(formals: list[defs.OpSchema.FormalParameter]) -> bool:
    return any(_FLOATS & set(formal.types) for formal in formals)


def _reference(schema: defs.OpSchema) -> str:
    """Whether `onnx.reference` implements the operator."""
    try:
        load_op("", schema.name, schema.since_version)
    except Exception:  # its exception is not public
        return "none"
    return "reference"


def gaps(rows: list[Coverage]) -> list[str]:
    """Numeric operators without a gradient or a reason, and reasons without need."""
    missing = {row.op for row in rows if row.gradient == "missing"}
    return [
        *(f"{op}: no gradient, and no reason in REASONS" for op in sorted(missing - REASONS.keys())),
        *(f"{op}: its reason in REASONS is not needed" for op in sorted(REASONS.keys() - missing)),
    ]


def summary(rows: list[Coverage]) -> list[str]:
    """One line per column: how many operators have each entry."""
    lines = []
    for column in ("types", "kernel", "flops", "gradient", "aliasing"):
        counts = Counter(getattr(row, column) or "none" for row in rows)
        lines.append(f"{column:9} " + ", ".join(f"{count} {entry}" for entry, count in counts.most_common()))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gaps", action="store_true", help="operators from floats to floats without a gradient only")
    asked = parser.parse_args()
    rows = coverage()
    shown = [row for row in rows if not asked.gaps or (row.gradient == "missing")]
    heads = [field.name for field in fields(Coverage)][:-1]
    table = [heads, *([str(cell) for cell in astuple(row)[:-1]] for row in shown)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"{line}  {REASONS.get(cells[0], '')}".rstrip())
    print(f"\n{len(rows)} operators of ai.onnx {defs.onnx_opset_version()} and com.microsoft", *summary(rows), sep="\n")
    found = gaps(rows)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
