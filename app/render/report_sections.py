"""Optional report sections as text: shape sets, other techniques, checkpoint advice, shared buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.render.text import format_bytes, format_change, format_percent, table


def optional_sections(report: Mapping[str, Any]) -> list[str]:
    """Lines of the optional sections present in the report."""
    lines = []
    if "shapes" in report:
        lines += ["", *_shapes(report["shapes"])]
    if "advice" in report:
        lines += ["", *_levers(report["advice"])]
    if "checkpoint_advice" in report:
        lines += ["", *_advice(report["checkpoint_advice"])]
    if "sharing" in report:
        lines += ["", *_sharing(report["sharing"])]
    return lines


def _shapes(section: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            ", ".join(f"{name} {'x'.join(map(str, shape or ['?']))}" for name, shape in row["inputs"].items())[:60],
            format_bytes(row["baseline"]["peak_bytes"]),
            format_bytes(row["peak_bytes"]),
            format_percent(row["overhead"]),
            format_percent(row["bound_overhead"]),
            "" if row["within"] else "over",
            "" if row["executed"]["status"] == "not executed" else f"executed: {row['executed']['status']}",
        )
        for row in section["sets"]
    ]
    lines = list(table(("inputs", "baseline", "peak", "overhead", "bound", "", ""), rows, (1, 2, 3, 4)))
    how = "in one order" if section["one_order"] else "in a separate order for sets with `order`"
    return [
        *lines,
        f"all sets share the same recomputations, {how}; figures above are those of set {section['worst'] + 1}",
    ]


def _levers(advice: Mapping[str, Any]) -> list[str]:
    names = {
        "micro_batches": "micro-batches",
        "chunked_loss": "loss chunks",
        "fused_attention": "fused attention",
        "update_as_ready": "early weight updates",
        "offload": "offload to the host",
    }
    rows = [
        (
            f"{row['parts']} {names[row['lever']]}" if row["parts"] > 1 else names[row["lever"]],
            format_bytes(row["peak_bytes"]),
            format_percent(row["overhead"]),
            "fits" if row["fits"] else f"does not fit: needs {format_bytes(row.get('needed_bytes'))}",
            "" if row["executed"]["status"] == "not executed" else f"executed: {row['executed']['status']}",
        )
        for row in advice["levers"]
    ]
    lines = list(table(("other techniques", "peak", "overhead", "", ""), rows, (1, 2))) if rows else []
    lines += [f"not {names[row['lever']]}: {row['why']}" for row in advice["left_out"]]
    return [*lines, limiting_op(advice["binding"])]


def limiting_op(binding: Mapping[str, Any]) -> str:
    """The proven minimum peak, the op that determines it, and the minimum without that op."""
    node = binding["node"] or "none (values held at the end)"
    rest = "" if binding["node"] is None else f" (without it {format_bytes(binding['next_bytes'])})"
    return f"proven minimum peak {format_bytes(binding['bytes'])}; limiting op: {node}{rest}"


def _advice(advice: Mapping[str, Any]) -> list[str]:
    given, best = advice["given"], advice["best"]
    rows = [("all given", format_bytes(given["peak_bytes"]), "", format_percent(given["overhead"]))]
    for word, kind in (("without", "dropping"), ("with", "adding")):
        rows += [
            (
                f"{word} {row['value']}",
                format_bytes(row["peak_bytes"]),
                format_change(row["peak_bytes_more"]),
                format_percent(row["overhead"]),
            )
            for row in advice[kind]
        ]
    lines = list(table(("checkpoints", "peak", "change", "overhead"), rows, (1, 2, 3)))
    if best["checkpoints"] == given["checkpoints"] or not given["checkpoints"]:
        return lines
    how = "exhaustive" if advice["all_tried"] else f"{advice['sets']} sets evaluated"
    names = ", ".join(best["checkpoints"])
    lines.append(f"best {len(best['checkpoints'])} found ({how}): {names}")
    return [*lines, f"  peak {format_bytes(best['peak_bytes'])}, {format_percent(best['overhead'])} slower"]


def _sharing(sharing: Mapping[str, Any]) -> list[str]:
    return [
        f"{len(sharing['value'])} values of {format_bytes(sharing['separate_bytes'])} share {len(sharing['buffers'])} "
        f"buffers of {format_bytes(sharing['bytes'])}; proven minimum {format_bytes(sharing['bound_bytes'])}"
    ]
