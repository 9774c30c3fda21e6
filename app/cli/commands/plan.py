"""`remat plan`: plan a model under a budget; write the report, source graph and rewritten graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.commands import wraps
from app.cli.console.exported_programs import read_model
from app.cli.console.files import format_of, to_json, write_graph
from app.cli.console.signals import EXIT_STOPPED, stop_on_signal
from app.models.names import named_after
from app.render import svg, terminal_chart, text
from app.render.report_sections import optional_sections
from graph.analysis.devices import resolve_device
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.request.plan_request import FIELDS, GOALS, parse_request

#: Optional report sections of a saved plan, so that `verify`, `explain` and `diff` need one file.
SAVED_SECTIONS = ("timeline", "layout", "source")


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Output paths; None: not written."""

    report: Path | None = None
    graph: Path | None = None
    source: Path | None = None
    plot: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """Of the files that are written."""
        return [path for path in (self.report, self.graph, self.source, self.plot) if path is not None]


def run(
    model: str,
    fields: Mapping[str, Any],
    files: OutputFiles,
    as_json: bool,
    draw: bool | None = None,
    as_wraps: bool = False,
) -> int:
    """Exit code of the command: 0 done, 1 over budget, 3 stopped, 4 internal error.

    `draw`: whether to draw the timeline in characters; None: if standard output is a terminal. `as_wraps`: print the
    plan of whole modules instead, whose exit code is then that of the command.
    """
    for path in (files.graph, files.source):
        if path is not None:
            format_of(path)  # reject an unknown extension before the search
    if files.plot is not None:
        svg.demand_picture_path(files.plot)
    fields = {"execute": "auto", **_with_goal(fields)}
    given = {**fields, "return": _sections(fields, files)}
    parse_request(given)  # reject what is wrong before a capture
    data, left = read_model(model, given)
    request = replace(parse_request(left), given=given)  # with the loss of a capture, which `remat check` repeats
    if as_wraps:
        request = wraps.in_eager_mode(request, data)
    progress = text.ProgressPrinter()
    answered: list[str] = []

    def answer(report: dict[str, Any]) -> None:
        progress.close()
        answered.extend(answer_lines(named_after(model, data, report), draw))
        print("\n".join(answered), flush=True)

    on_planned = None if as_json or as_wraps else answer
    with stop_on_signal() as stop:
        try:
            outcome = solve(data, request, on_progress=progress, on_planned=on_planned, cancel=stop)
            outcome = replace(outcome, report=named_after(model, data, outcome.report))
        finally:
            progress.close()
        _write(outcome, files)
    exit_code = EXIT_STOPPED if stop.is_set() else outcome.exit_code
    if as_wraps:
        exit_code = wraps.print_plan(outcome, request, as_json) or exit_code
    else:
        shown = _printed_report(outcome.report, fields, as_json)
        rest = to_json(shown) if as_json else "\n".join([*_rest(shown, draw, answered), *optional_sections(shown)])
        print(rest, flush=True)  # before the files, which standard error names
    for path in files.paths:
        print(f"written: {path}", file=sys.stderr)
    return exit_code


def _with_goal(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields; without a goal the plan is to fit the device, so that a model that does stays as it is."""
    if any(fields.get(name) is not None for name in GOALS):
        return fields
    device = FIELDS["device"].kind.parse(fields.get("device", FIELDS["device"].default), "device")
    return {**fields, "fits": device if isinstance(device, str) else resolve_device(device).memory_bytes}


def answer_lines(report: Mapping[str, Any], draw: bool | None) -> list[str]:
    """The report as text up to the execution, optionally with its timeline chart."""
    style = terminal_chart.chart_style(draw)
    return text.answer_lines(report, terminal_chart.timeline(report, style) if style else ())


def _rest(report: Mapping[str, Any], draw: bool | None, answered: list[str]) -> list[str]:
    """The lines that follow those already printed; all of them if the answer has changed, as after a stop."""
    answer = answer_lines(report, draw)
    return [*(() if answer == answered else answer), *text.checked_lines(report)]


def _requested_sections(fields: Mapping[str, Any]) -> list[str]:
    sections = fields.get("return", ["plan", "timeline"])
    return [sections] if isinstance(sections, str) else list(sections)


def _sections(fields: Mapping[str, Any], files: OutputFiles) -> list[str]:
    """Sections to compute: the requested ones, and those that the terminal and a saved plan need."""
    saved = SAVED_SECTIONS if files.report is not None else ()
    return list(dict.fromkeys([*_requested_sections(fields), "timeline", *saved]))


def _write(outcome: Outcome, files: OutputFiles) -> None:
    if files.report is not None:
        write_atomic(files.report, (to_json(outcome.report) + "\n").encode())
    if files.graph is not None:
        write_graph(files.graph, outcome.graph)
    if files.source is not None:
        write_graph(files.source, outcome.source)
    if files.plot is not None:
        svg.write(files.plot, svg.timeline(outcome.report))


def _printed_report(report: Mapping[str, Any], fields: Mapping[str, Any], as_json: bool) -> dict[str, Any]:
    """The report; as JSON without sections computed only for files."""
    omitted = {"timeline", *SAVED_SECTIONS} - set(_requested_sections(fields)) if as_json else set()
    return {name: section for name, section in report.items() if name not in omitted}
