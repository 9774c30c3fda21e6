"""Reports as text for people: sizes, tables, and how a search goes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH = 40, 200, 100  # columns


def format_bytes(count: float | None) -> str:
    """Bytes as people say them: `3.91 GiB`; `unknown` for None."""
    if count is None:
        return "unknown"
    amount, unit = float(count), 0
    while abs(amount) >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.2f} {UNITS[unit]}"


def format_percent(fraction: float | None) -> str:
    """A fraction as percentage: `3.4%`."""
    return "unknown" if fraction is None else f"{100 * fraction:.1f}%"


def format_seconds(span: float | None) -> str:
    """A time in the unit that leaves one to three digits before the point."""
    if span is None:
        return "unknown"
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(span) < limit:
            return f"{span * scale:.3g} {unit}"
    return f"{span:.3g} s"


def line_width() -> int:
    """Columns to write in: those of the terminal, within what can be read."""
    return min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table, columns as wide as their widest cell; those in `right` stand to the right."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    to_the_right = set(right)
    return [
        "  ".join(
            cell.rjust(wide) if i in to_the_right else cell.ljust(wide)
            for i, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def plan_lines(report: Mapping[str, Any], picture: Sequence[str] = ()) -> list[str]:
    """The report of a plan, the answer in the first line; `picture` are lines that show its timeline."""
    model = report["model"]
    lines = [headline(report)]
    lines.append(
        f"{model.get('name') or 'model'}: {model['nodes']} nodes, {model['values']} values; "
        f"runtime {report['runtime']}, device {report['device']}"
    )
    lines += ["", *_peaks(report), "", *_savings(report)]
    if picture:
        lines += ["", *picture]
    lines += ["", f"executed: {_executed(report)}"]
    lines += [f"warning: {warning}" for warning in report.get("warnings", ())]
    return lines


def headline(report: Mapping[str, Any]) -> str:
    """*fits* or *does not fit*, what, and at which price."""
    plan, device = report["plan"], report["device"]
    budget, peak = plan["budget_bytes"], plan["peak_bytes"]
    price = f"{format_percent(plan['overhead'])} more time" if plan["overhead"] > 0 else "no more time"
    memory = f"the device, {device if isinstance(device, str) else device.get('name', 'as described')}"
    if plan["status"] == "over_budget":
        word = "proven" if plan["smallest_budget_proven"] else "found"
        least = plan["smallest_budget_bytes"]
        reach = f"; the smallest budget {word} is {format_bytes(least)} ({least} bytes)" if least is not None else ""
        return f"does not fit {format_bytes(budget)}: the lowest peak found is {format_bytes(peak)}, {price}{reach}"
    if not budget:
        return f"{'fits' if report['fits'] else 'does not fit'} {memory}: peak {format_bytes(peak)}, {price}"
    besides = "" if report["fits"] else f"; does not fit {memory}"
    return f"fits {format_bytes(budget)}: peak {format_bytes(peak)}, {price}{besides}"


def _peaks(report: Mapping[str, Any]) -> list[str]:
    base, plan = report["baseline"], report["plan"]
    before, after = base["peak_by"], plan.get("peak_by", {})
    rows = [("peak", format_bytes(base["peak_bytes"]), format_bytes(plan["peak_bytes"]))]
    rows += [
        (f"  {kind}", format_bytes(count), format_bytes(after[kind]) if kind in after else "")
        for kind, count in before.items()
        if count or after.get(kind)
    ]
    if plan["arena_bytes"] is not None:
        rows.append(("arena", "", format_bytes(plan["arena_bytes"])))
    rows.append(("time of a step", format_seconds(base["seconds"]), format_seconds(plan["seconds"])))
    lines = table(("", "before", "after"), rows, right=(1, 2))
    if plan["binding_node"]:
        lines.append(f"binding node: {plan['binding_node']}")
    return lines


def _savings(report: Mapping[str, Any]) -> list[str]:
    base, plan, reference = report["baseline"], report["plan"], report.get("reference")
    default = format_bytes(base["peak_bytes"])
    saved = f"{format_bytes(plan['saved_bytes'])} ({format_percent(plan['saved'])})"
    lines = [f"saved {saved} of the framework's default, {default}"]
    if reference:
        lines.append(
            f"{reference['planner']} peaks at {format_bytes(reference['peak_bytes'])} "
            f"for {format_percent(reference['overhead'])} more time"
        )
    lines.append(f"{len(plan['recomputed'])} nodes run again; planner {plan['planner']}; {optimality(plan)}")
    return lines


def optimality(plan: Mapping[str, Any]) -> str:
    """How far the plan is from the proven bound, in words."""
    if plan["status"] == "proven":
        return "proven: no plan is better"
    if plan["status"] == "over_budget":
        return f"no plan peaks below {format_bytes(plan['bound']['peak_bytes'])}"
    gap = "no bound known" if plan["gap"] is None else f"at most {format_percent(plan['gap'])} from the best possible"
    return gap if plan["reproducible"] else f"{gap}, stopped before the search was through"


def _executed(report: Mapping[str, Any]) -> str:
    executed = report.get("executed") or {}
    status = executed.get("status", "not executed")
    said = "; ".join(part for part in (executed.get("how"), executed.get("why")) if part)
    if status == "not executed" and report.get("checked"):
        status = "not executed, checked"
    return f"{status} ({said})" if said else status


class ProgressPrinter:
    """Tells standard error how a search goes: one living line on a terminal, else a line a stage."""

    def __init__(self, stream: IO[str] | None = None):
        self.stream = stream or sys.stderr
        self.living = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.stage = ""
        self.drawn = 0

    def __call__(self, progress: Any) -> None:
        if not self.living and progress.stage == self.stage:
            return
        self.stage = progress.stage
        text = progress_text(progress)
        if self.living:
            room = max(20, line_width() - 1)
            print("\r" + text[:room].ljust(self.drawn), end="", file=self.stream, flush=True)
            self.drawn = min(len(text), room)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        """End the living line, so that what follows starts on a new one."""
        if self.living and self.drawn:
            print("\r" + " " * self.drawn + "\r", end="", file=self.stream, flush=True)
            self.drawn = 0


def progress_text(progress: Any) -> str:
    """One line: stage, time, best so far and bound."""
    parts = [f"{progress.stage} {progress.seconds:.1f}s"]
    if progress.incumbent_peak_bytes is not None:
        parts.append(f"peak {format_bytes(progress.incumbent_peak_bytes)}")
    if progress.incumbent_overhead is not None:
        parts.append(f"overhead {format_percent(progress.incumbent_overhead)}")
    if progress.bound_overhead is not None:
        parts.append(f"bound {format_percent(progress.bound_overhead)}")
    if progress.gap is not None:
        parts.append(f"gap {format_percent(progress.gap)}")
    return ", ".join(parts)
