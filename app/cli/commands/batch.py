"""`remat batch`: plans of many models, kept as they end, and a table, CSV and report of all."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.commands.files import STANDARD_INPUT, demand_writable, to_json
from app.cli.commands.signals import EXIT_STOPPED, stop_on_signal
from app.client.blocking import Client
from app.errors import BadUsage
from app.sweep import executors, table
from app.sweep.executors import DEFAULT_SEARCH_S
from app.sweep.html_report import render_html
from app.sweep.items import SweepItem, expand_items, find_models
from app.sweep.progress import EtaEstimator, progress_display
from app.sweep.results import ResultsFolder, open_results
from app.sweep.run import run_items

SUMMARY = "summary.csv"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the command line says beside the fields of every request."""

    models: str
    budgets: Sequence[str]
    planners: Sequence[str]
    seeds: Sequence[int]
    batches: Sequence[int]
    engine: str
    server: str | None
    workers: int | None
    folder: Path
    resume: bool
    html: Path | None


def run(asked: BatchOptions, fields: Mapping[str, Any], as_json: bool) -> int:
    """Exit code: 0 all within budget, 1 some over it, 2 some were no good, 3 stopped, 4 some failed by our fault."""
    if asked.engine not in ("local", "server"):
        raise BadUsage(f"--engine {asked.engine}: local or server", code="bad_flag")
    if asked.engine == "local" and asked.server is not None:
        raise BadUsage("--server goes with --engine server", code="conflicting_flags")
    if asked.engine == "server" and asked.workers is not None:
        said = "--workers is of this machine; at a service its settings say how many plans it makes at a time"
        raise BadUsage(said, code="conflicting_flags")
    if not asked.budgets:
        raise BadUsage("name what plans may take: --budgets 90%,50%", code="no_budgets")
    models = find_models(asked.models)
    items = expand_items(models, asked.budgets, asked.planners, asked.seeds, asked.batches, fields)
    by_key = {item.key: item for item in items}
    with open_results(asked.folder, asked.resume) as results, stop_on_signal() as stop:
        demand_writable(STANDARD_INPUT, asked.html)
        _solve(asked, fields, by_key, results, stop)
        rows = [results.rows[key] for key in by_key if key in results.rows]
        write_atomic(asked.folder / SUMMARY, table.as_csv(rows).encode())
        if asked.html is not None:
            write_atomic(asked.html, render_html(rows, results.report, len(by_key)).encode())
        if as_json:
            print(to_json({"format": "remat-batch/1", "asked": len(by_key), **table.count_states(rows), "items": rows}))
        else:
            print("\n".join(table.table_lines(rows)))
        for path in (asked.folder / SUMMARY, *([] if asked.html is None else [asked.html])):
            print(f"written: {path}", file=sys.stderr)
        stopped = stop.is_set()
    if (stopped and len(rows) < len(by_key)) or any(row["state"] == "stopped" for row in rows):
        print("stopped; go on with --resume", file=sys.stderr)
        return EXIT_STOPPED
    return table.exit_code(rows)


def _solve(
    asked: BatchOptions,
    fields: Mapping[str, Any],
    by_key: Mapping[str, SweepItem],
    results: ResultsFolder,
    stop: threading.Event,
) -> None:
    """Make the plans that are not there yet."""
    waiting = {key: item for key, item in by_key.items() if not results.is_finished(key)}
    if len(waiting) < len(by_key):
        print(f"{len(by_key) - len(waiting)} of {len(by_key)} plans are there already", file=sys.stderr)
    workers = 1 if asked.engine == "server" else asked.workers or os.cpu_count() or 1
    guess = None if "iterations" in fields else float(fields.get("search_seconds", DEFAULT_SEARCH_S))
    with progress_display(waiting, EtaEstimator(len(waiting), workers, guess)) as shown:
        if asked.engine == "server":
            engine = executors.service_engine(
                Client(asked.server), list(by_key.values()), results.token(), shown.told, stop
            )
        else:
            engine = executors.local_engine(workers, shown.told, stop)
        try:
            for outcome in run_items(waiting.values(), engine, stop):
                shown.ended(outcome.item, results.add(outcome.row, outcome.report))
        except BaseException:
            stop.set()  # what runs ends soon
            raise
        finally:
            engine.executor.shutdown()
