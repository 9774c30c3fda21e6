"""Predicted timeline of a plan as a Chrome trace (JSON), which Perfetto and chrome://tracing open.

    process    the model under its plan
    ├─ forward, backward, update, recompute     one slice for each run of a node
    ├─ to_host, from_host, communication        one slice for each copy and collective beside the others, if any
    ╰─ memory                                   counter: bytes live at each step

Source: "Trace Event Format", the format of chrome://tracing; times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.saved_report import timed_steps

PROCESS = 1
PHASES = ("forward", "backward", "update", "recompute")
TRACKS = (*PHASES, "to_host", "from_host", "communication")  # thread ids count from 1
DIGITS = 3  # decimals of a time: nanoseconds


def trace(document: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of a saved plan that embeds its source; views take no time and have no slice. O(steps)."""
    name = document["model"].get("name") or "model"
    events: list[dict[str, Any]] = [_named("process_name", 0, f"{name}, predicted")]
    steps = list(timed_steps(document))
    shown = {*PHASES, *(step.engine for step in steps)}
    events += [_named("thread_name", number, track) for number, track in enumerate(TRACKS, 1) if track in shown]
    for place, step in enumerate(steps):
        began, taken = step.start * 1e6, step.seconds * 1e6
        if taken:
            track = step.engine if step.engine in TRACKS else "recompute" if step.run else step.phase
            events.append(
                {
                    "name": step.node,
                    "cat": step.phase,
                    "ph": "X",
                    "ts": round(began, DIGITS),
                    "dur": round(taken, DIGITS),
                    "pid": PROCESS,
                    "tid": TRACKS.index(track) + 1,
                    "args": {"op": step.op, "step": place, "run": step.run},
                }
            )
        counted = {"name": "memory", "ph": "C", "ts": round(began, DIGITS), "pid": PROCESS}
        events.append({**counted, "args": {"bytes": step.bytes}})
    about = {
        "device": document["device"] if isinstance(document["device"], str) else "custom",
        "runtime": document["runtime"],
        "peak_bytes": document["plan"]["peak_bytes"],
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}
