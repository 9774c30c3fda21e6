"""Reports as text: formatted quantities, tables, headline of a plan, search progress."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from planner.request.target_runtime import RUNTIMES

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH = 40, 200, 100  # columns


def format_bytes(count: float | None) -> str:
    """Bytes with a binary unit: `3.91 GiB`; `unknown` for None."""
    if count is None:
        return "unknown"
    amount, unit = float(count), 0
    while abs(amount) >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.2f} {UNITS[unit]}"


def format_change(more: int) -> str:
    """A difference of bytes with its sign: `+3.91 GiB`; empty for none."""
    return f"-{format_bytes(-more)}" if more < 0 else f"+{format_bytes(more)}" if more else ""


def format_percent(fraction: float | None) -> str:
    """A fraction as a percentage: `3.4%`; `unknown` for None."""
    return "unknown" if fraction is None else f"{100 * fraction:.1f}%"


def format_seconds(span: float | None) -> str:
    """Seconds with 3 significant digits in ns, us, ms or s; `unknown` for None."""
    if span is None:
        return "unknown"
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(span) < limit:
            return f"{span * scale:.3g} {unit}"
    return f"{span:.3g} s"


def format_slowdown(overhead: float) -> str:
    """Extra time of a plan over the step without one; below 0 where collectives run beside compute."""
    if not overhead:
        return "no slowdown"
    return f"{format_percent(abs(overhead))} {'slower' if overhead > 0 else 'faster'}"


def line_width() -> int:
    """Width of the terminal in columns, clamped to `MIN_WIDTH` and `MAX_WIDTH`."""
    return min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table, columns as wide as their widest cell; columns in `right` are right-aligned."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    right_aligned = set(right)
    return [
        "  ".join(
            cell.rjust(width) if i in right_aligned else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def plan_lines(report: Mapping[str, Any], picture: Sequence[str] = ()) -> list[str]:
    """The report of a plan as text, headline first; `picture`: lines of its timeline chart."""
    return [*answer_lines(report, picture), *checked_lines(report)]


def answer_lines(report: Mapping[str, Any], picture: Sequence[str] = ()) -> list[str]:
    """The part of `plan_lines` that is known before the graphs are executed."""
    model = report["model"]
    lines = [headline(report), *_fits_as_it_is(report)]
    lines.append(
        f"{model.get('name') or 'model'}: {model['nodes']} nodes, {model['values']} values; "
        f"runtime {report['runtime']}, device {report['device']}"
    )
    lines += ["", *_peaks(report), "", *_savings(report)]
    if picture:
        lines += ["", *picture]
    return lines


def checked_lines(report: Mapping[str, Any]) -> list[str]:
    """The part of `plan_lines` after the answer: what the execution showed, and warnings."""
    lines = ["", f"executed: {_executed(report)}"]
    if compared := (report.get("executed") or {}).get("compared"):
        lines.append(f"compared: {compared}")
    lines += [f"warning: {warning}" for warning in report.get("warnings", ())]
    return lines


def headline(report: Mapping[str, Any]) -> str:
    """One line: whether the plan fits the budget or device, its peak and its slowdown."""
    plan, device = report["plan"], report["device"]
    budget, peak = plan["budget_bytes"], plan["peak_bytes"]
    slowdown = format_slowdown(plan["overhead"])
    fits_device = report.get("fits_device", report["fits"])
    memory = f"the device, {device if isinstance(device, str) else device.get('name', 'custom')}"
    if plan["status"] == "over_budget" and plan.get("needed_bytes", budget + 1) <= budget:
        return f"fits {format_bytes(budget)}, but not the host memory: peak {format_bytes(peak)}, {slowdown}"
    if plan["status"] == "over_budget":
        word = "proven" if plan["smallest_budget_proven"] else "found"
        smallest = plan["smallest_budget_bytes"]
        hint = (
            f"; smallest budget {word}: {format_bytes(smallest)} ({smallest:,} bytes)" if smallest is not None else ""
        )
        return f"does not fit {format_bytes(budget)}: {best_found(plan)}, {slowdown}{hint}"
    if not budget:
        return f"{'fits' if fits_device else 'does not fit'} {memory}: peak {format_bytes(peak)}, {slowdown}"
    suffix = "" if fits_device else f"; does not fit {memory}"
    return f"fits {format_bytes(budget)}: peak {format_bytes(peak)}, {slowdown}{suffix}"


def _fits_as_it_is(report: Mapping[str, Any]) -> list[str]:
    """The line that no plan is needed, if the model fits the requested memory, with the option that plans for less."""
    plan, base = report["plan"], report["baseline"]
    if report.get("request", {}).get("fits") is None or plan["status"] == "over_budget":
        return []
    if plan["peak_bytes"] < base["peak_bytes"] or plan.get("recomputed") != []:
        return []
    return ["the model fits as it is, nothing was changed; --budget 50% plans for half the memory"]


def best_found(point: Mapping[str, Any]) -> str:
    """Why a plan is over its budget: its peak, or the memory that it needs with addresses.

    >>> best_found({"budget_bytes": 100, "peak_bytes": 90, "needed_bytes": 128})
    'best plan found needs 128 B with its addresses (peak 90 B)'
    """
    peak = format_bytes(point["peak_bytes"])
    if point["peak_bytes"] > point["budget_bytes"] or "needed_bytes" not in point:
        return f"best peak found {peak}"
    return f"best plan found needs {format_bytes(point['needed_bytes'])} with its addresses (peak {peak})"


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
        about = "" if RUNTIMES[report["runtime"]].places else f" (prediction: {report['runtime']} places values itself)"
        rows.append((f"arena{about}", "", format_bytes(plan["arena_bytes"])))
    if "allocator" in report:
        before_bytes, after_bytes = (report["allocator"][side]["reserved_bytes"] for side in ("baseline", "plan"))
        rows.append(("reserved by PyTorch's allocator", format_bytes(before_bytes), format_bytes(after_bytes)))
    rows.append(("time per step", format_seconds(base["seconds"]), format_seconds(plan["seconds"])))
    lines = table(("", "before", "after"), rows, right=(1, 2))
    if plan["binding_node"]:
        lines.append(f"limiting op: {plan['binding_node']}")
    return lines


def _savings(report: Mapping[str, Any]) -> list[str]:
    base, plan, reference = report["baseline"], report["plan"], report.get("reference")
    default = format_bytes(base.get("needed_bytes", base["peak_bytes"]))
    saved = f"{format_bytes(plan['saved_bytes'])} ({format_percent(plan['saved'])})"
    lines = [f"saved {saved} of the framework's default, {default}"]
    if reference:
        name = "MXNet mirroring" if reference["planner"] == "mirror" else reference["planner"]
        lines.append(
            f"for comparison, {name}: {format_bytes(reference['peak_bytes'])}, {format_slowdown(reference['overhead'])}"
        )
    recomputed = f"{len(plan['recomputed'])} nodes recomputed; " if "recomputed" in plan else ""  # not in a summary
    lines.append(f"{recomputed}planner {plan['planner']}; {optimality(plan)}")
    return lines + _copies(report) + _overlap(report)


def _copies(report: Mapping[str, Any]) -> list[str]:
    """Line on copies to the host, of a plan that was requested with them."""
    if "copies" not in report:
        return []
    copies = report["copies"]
    values = report["plan"].get("offloaded")  # not in a summary
    return [
        f"{'' if values is None else f'{len(values)} '}values copied to the host: "
        f"{format_bytes(copies['to_host_bytes'])} there, "
        f"{format_bytes(copies['from_host_bytes'])} back, at most {format_bytes(copies['host_peak_bytes'])} at once; "
        f"compute waits {format_seconds(copies['waiting_seconds'])}"
    ]


def _overlap(report: Mapping[str, Any]) -> list[str]:
    """Line on collectives, of a plan in which they run beside compute."""
    if "overlap" not in report:
        return []
    overlap = report["overlap"]
    return [
        f"collectives take {format_seconds(overlap['communication_seconds'])} beside compute, which waits "
        f"{format_seconds(overlap['waiting_seconds'])} for them; "
        f"without a plan {format_seconds(overlap['baseline_waiting_seconds'])}"
    ]


def optimality(plan: Mapping[str, Any]) -> str:
    """Distance of the plan from the proven bound, as text."""
    if plan["status"] == "proven":
        return "proven optimal"
    if plan["status"] == "over_budget":
        return f"proven minimum peak {format_bytes(plan['bound']['peak_bytes'])}"
    gap = "no bound known" if plan["gap"] is None else f"within {max(0.01, 100 * plan['gap']):.2g}% of optimal"
    return gap if plan["reproducible"] else f"{gap} (search stopped at the time limit)"


def _executed(report: Mapping[str, Any]) -> str:
    executed = report.get("executed") or {}
    status = executed.get("status", "not executed")
    details = "; ".join(part for part in (executed.get("how"), executed.get("why")) if part)
    if status == "not executed" and report.get("checked"):
        status = "not executed, checked"
    return f"{status} ({details})" if details else status


#: Stage of a solve -> what is done in it.
STAGES = {
    "read": "reading the model",
    "differentiate": "adding the backward pass",
    "plan": "searching",
    "compile": "compiling kernels, on first use",
    "layout": "assigning addresses",
    "rewrite": "rewriting the graph",
    "execute": "checking by execution",
}


class ProgressPrinter:
    """Search progress on standard error: one updated line on a terminal, else one line per stage with its duration."""

    def __init__(self, stream: IO[str] | None = None):
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.stage, self.began, self.figures = "", 0.0, ""
        self.drawn = 0

    def __call__(self, progress: Any) -> None:
        if progress.stage == "execute" and progress.nodes_run is None:
            return  # entered also where nothing is executed
        if progress.stage != self.stage:
            self._end_stage()
            self.stage, self.began, name = progress.stage, time.monotonic(), STAGES.get(progress.stage, progress.stage)
            if not self.is_terminal:
                print(f"{name} ...", end="", file=self.stream, flush=True)
        self.figures = progress_figures(progress)
        if self.is_terminal:
            limit = max(20, line_width() - 1)
            text = f"{STAGES.get(self.stage, self.stage)} {self._duration()}"
            print("\r" + text[:limit].ljust(self.drawn), end="", file=self.stream, flush=True)
            self.drawn = min(len(text), limit)

    def _duration(self) -> str:
        """Time since the stage began, and the figures known."""
        return f"{time.monotonic() - self.began:.1f} s{self.figures}"

    def _end_stage(self) -> None:
        if self.stage and not self.is_terminal:
            print(f" {self._duration()}", file=self.stream, flush=True)

    def close(self) -> None:
        """Erase the progress line, or end it."""
        self._end_stage()
        self.stage = ""
        if self.is_terminal and self.drawn:
            print("\r" + " " * self.drawn + "\r", end="", file=self.stream, flush=True)
            self.drawn = 0


def progress_figures(progress: Any) -> str:
    """Incumbent, bound, gap and executed nodes, each after a comma; those that are known."""
    parts = [""]
    if progress.incumbent_peak_bytes is not None:
        parts.append(f"peak {format_bytes(progress.incumbent_peak_bytes)}")
    if progress.incumbent_overhead is not None:
        parts.append(f"overhead {format_percent(progress.incumbent_overhead)}")
    if progress.bound_overhead is not None:
        parts.append(f"bound {format_percent(progress.bound_overhead)}")
    if progress.gap is not None:
        parts.append(f"gap {format_percent(progress.gap)}")
    if progress.nodes_run is not None:
        parts.append(f"{progress.nodes_run:,} of {progress.nodes:,} nodes")
    return ", ".join(parts)
