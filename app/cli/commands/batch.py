"""`remat batch`: plan many models; save each result as it finishes, then a table, CSV and HTML report."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.console.files import demand_writable, to_json
from app.cli.console.signals import EXIT_STOPPED, stop_on_signal
from app.client.blocking import Client
from app.errors import BadUsage, ClusterLost, error_row
from app.solver.clusters.connect import EXAMPLES, connect
from app.solver.clusters.interface import Cluster
from app.sweep import executors, table
from app.sweep.html_report import HtmlReport
from app.sweep.items import SweepItem, expand_items, find_models
from app.sweep.progress import EtaEstimator, progress_display
from app.sweep.results import ResultsFolder, Row, open_results
from app.sweep.run import run_items
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS

ENGINES = ("local", "server", *EXAMPLES)
SUMMARY = "summary.csv"
#: Pause after writing the page, as a multiple of the time that writing took.
WRITE_SHARE = 9.0


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of the command apart from the request fields."""

    models: str
    budgets: Sequence[str]
    planners: Sequence[str]
    seeds: Sequence[int]
    batches: Sequence[int]
    engine: str
    server: str | None
    cluster: str | None
    workers: int | None
    folder: Path
    resume: bool
    html: Path | None
    request: Path | None


class GrowingPage:
    """The HTML report, written as items end, for at most a tenth of the time; without a file nothing is written."""

    def __init__(self, path: Path | None, keys: Iterable[str], results: ResultsFolder):
        self._path, self._keys, self._results = path, list(keys), results
        self._page = HtmlReport(results.report, len(self._keys))
        self._due = 0.0  # monotonic seconds

    def rows(self) -> list[Row]:
        """Rows of the items that have ended, in the order of the request."""
        return [self._results.rows[key] for key in self._keys if key in self._results.rows]

    def item_ended(self) -> None:
        """Write the page if it is due. Raises CannotWrite."""
        if (began := time.monotonic()) >= self._due:
            self.write()
            self._due = time.monotonic() + WRITE_SHARE * (time.monotonic() - began)

    def write(self) -> None:
        """Write the page with every item that has ended. Raises CannotWrite."""
        if self._path is not None:
            write_atomic(self._path, self._page.render(self.rows()).encode())


def run(options: BatchOptions, fields: Mapping[str, Any], as_json: bool) -> int:
    """Exit code: 0 all within budget, 1 some over budget, 2 some invalid, 3 stopped, 4 some internal errors."""
    _check(options)
    models = find_models(options.models)
    items = expand_items(models, options.budgets, options.planners, options.seeds, options.batches, fields)
    by_key = {item.key: item for item in items}
    cluster = _connect(options)  # before signals are handled: Ray sets a handler of its own
    lost: ClusterLost | None = None
    with open_results(options.folder, options.resume) as results, stop_on_signal() as stop:
        demand_writable(
            {
                options.models: "the manifest",
                options.request: "the request",
                **{model.file: "a model" for model in models},
            },
            options.folder / SUMMARY,
            options.html,
        )
        page = GrowingPage(options.html, by_key, results)
        try:
            _solve(options, cluster, fields, by_key, results, stop, page)
        except ClusterLost as error:
            lost = error
        rows = page.rows()
        write_atomic(options.folder / SUMMARY, table.as_csv(rows).encode())
        page.write()
        if as_json:
            print(to_json({"format": "remat-batch/1", "asked": len(by_key), **table.count_states(rows), "items": rows}))
        else:
            print("\n".join(table.table_lines(rows)))
        for path in (options.folder / SUMMARY, *([] if options.html is None else [options.html])):
            print(f"written: {path}", file=sys.stderr)
        stopped = stop.is_set()
    if lost is not None:
        print(f"{lost}; finished plans are kept, continue with --resume", file=sys.stderr)
        return error_row(lost).exit_code
    if (stopped and len(rows) < len(by_key)) or any(row["state"] == "stopped" for row in rows):
        print("stopped; continue with --resume", file=sys.stderr)
        return EXIT_STOPPED
    return table.exit_code(rows)


def _check(options: BatchOptions) -> None:
    """Return if the options agree. Raises BadUsage."""
    engine = options.engine
    if engine not in ENGINES:
        raise BadUsage(f"--engine {engine}: use local, server, dask or ray", code="bad_flag")
    if engine != "server" and options.server is not None:
        raise BadUsage("--server requires --engine server", code="conflicting_flags")
    if engine not in EXAMPLES and options.cluster is not None:
        raise BadUsage("--cluster requires --engine dask or --engine ray", code="conflicting_flags")
    if engine != "local" and options.workers is not None:
        message = "--workers applies to --engine local; a service or cluster sets its own parallelism"
        raise BadUsage(message, code="conflicting_flags")
    if engine in EXAMPLES and options.cluster is None:
        raise BadUsage(f"--engine {engine} requires --cluster {EXAMPLES[engine]}", code="no_cluster")
    if not options.budgets:
        raise BadUsage("no budgets given; add --budgets 90%,50%", code="no_budgets")


def _connect(options: BatchOptions) -> Cluster | None:
    """The cluster, which is named on standard error; None for other engines. Raises BadUsage."""
    if options.cluster is None:
        return None
    cluster = connect(options.engine, options.cluster, "--cluster")
    print(f"planning on {cluster.description}", file=sys.stderr)
    if cluster.slots == 0:
        print("the cluster has no workers yet; plans wait for the first", file=sys.stderr)
    return cluster


def _solve(
    options: BatchOptions,
    cluster: Cluster | None,
    fields: Mapping[str, Any],
    by_key: Mapping[str, SweepItem],
    results: ResultsFolder,
    stop: threading.Event,
    page: GrowingPage,
) -> None:
    """Solve the unfinished items and save each result."""
    remaining = {key: item for key, item in by_key.items() if not results.is_finished(key)}
    if len(remaining) < len(by_key):
        print(f"{len(by_key) - len(remaining)} of {len(by_key)} plans are already finished", file=sys.stderr)
    workers = 1 if options.engine == "server" else options.workers or os.cpu_count() or 1
    if cluster is not None:
        workers = cluster.slots
    guess = None if "iterations" in fields else float(fields.get("search_seconds", DEFAULT_SEARCH_SECONDS))
    with progress_display(remaining, EtaEstimator(len(remaining), workers, guess)) as display:
        if options.engine == "server":
            engine = executors.service_engine(
                Client(options.server), list(by_key.values()), results.token(), display.on_progress, stop
            )
        elif cluster is not None:
            engine = executors.cluster_engine(cluster, display.on_progress, stop)
        else:
            engine = executors.local_engine(workers, display.on_progress, stop)
        try:
            for outcome in run_items(remaining.values(), engine, stop):
                display.ended(outcome.item, results.add(outcome.row, outcome.report))
                page.item_ended()
        except BaseException:
            stop.set()  # running searches end early
            raise
        finally:
            engine.executor.shutdown()
