"""Child side: the tasks of a child process, such as reading, analysing, transforming, planning or writing a model.

parent ──payload──▶ child        msgpack messages; the child sends no pickles
parent ◀─progress── child ...
parent ──stop─────▶ child        the child returns its best plan; a broken pipe ends the child at once
parent ◀─result──── child        or {"problem": ...}
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from app.errors import OutOfMemory, Unparseable, to_problem
from graph.errors import BadGraph

if TYPE_CHECKING:
    from graph.ir import Graph
    from planner.pipeline.progress import Outcome

# Imports inside functions: the parent imports this module too, and only children need the planner.

#: Address space beyond the memory limit. Stacks and pools of threads take it without ever filling it, and native code
#: that gets none ends the process; the parent watches the memory that is in use.
SPARE_ADDRESSES = 1 << 30
SECTIONS = ("timeline", "layout", "explain", "source", "graph")
ORIGIN = "imported_from"  # annotation of a graph that was imported from a framework format
NOT_A_MODEL = frozenset({"not_parseable", "unknown_format", "not_a_model", "truncated"})
NICE = 10
#: Code of a finding -> fields of `graph.limits.Limits` that may have caused it.
LIMITS = {
    "name_too_long": ("name_length",),
    "too_deep": ("depth",),
    "too_many_nodes": ("nodes",),
    "too_many_values": ("values",),
    "too_large": ("attribute_bytes", "constant_bytes", "document_bytes"),
}
SendMessage = Callable[[Mapping[str, Any]], None]


def main(pipe: Connection, task: str, memory_bytes: int) -> None:
    """Entry point of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the process group; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _limit_resources(memory_bytes + SPARE_ADDRESSES)
    payload = msgspec.msgpack.decode(pipe.recv_bytes())
    stop = threading.Event()
    threading.Thread(target=_listen, args=(pipe, stop), daemon=True).start()

    def send(message: Mapping[str, Any]) -> None:
        pipe.send_bytes(msgspec.msgpack.encode(message))

    send(answer(task, payload, send, stop, memory_bytes))


def answer(
    task: str, payload: Mapping[str, Any], send: SendMessage, stop: threading.Event, memory_bytes: int
) -> dict[str, Any]:
    """{"result"} of a task, or {"problem"}; `send` gets its progress. `memory_bytes`: the limit that messages name."""
    try:
        return {"result": TASKS[task](payload, send, stop)}
    except MemoryError:
        return {"problem": too_much_memory(memory_bytes)}
    except RecursionError:
        return {"problem": to_problem(_too_deep())}
    except Exception as error:
        problem = to_problem(error)
        problem["limit"] = problem["limit"] or exceeded_limit(problem, payload.get("limits", {}))
        if problem["code"] == "internal":
            traceback.print_exc(file=sys.stderr)
        return {"problem": problem}


def _limit_resources(address_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + address_bytes, mapped + address_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)  # requests run before searches
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")  # the OOM killer picks a solve before the service


def _listen(pipe: Connection, stop: threading.Event) -> None:
    """Set `stop` on a stop message; exit if the parent is gone."""
    try:
        while True:
            pipe.recv_bytes()
            stop.set()
    except (EOFError, OSError):
        os._exit(1)


def exceeded_limit(problem: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any] | None:
    """{"name", "value"} of the setting that the first finding exceeds; readers know limits but not settings."""
    names = LIMITS.get(problem["code"], ())
    for name in names:
        if name in limits and (len(names) == 1 or str(limits[name]) in problem["errors"][0]["expected"].split()):
            setting = "decompressed_bytes" if name == "document_bytes" else name
            return {"name": f"REMAT_{setting.upper()}", "value": limits[name]}
    return None


def too_much_memory(memory_bytes: int) -> dict[str, Any]:
    """Problem of a task that needs more than the memory limit in bytes."""
    return to_problem(
        OutOfMemory(
            f"out of memory: the solve needs more than {memory_bytes:,} bytes; "
            "reduce the model size, or raise REMAT_SOLVE_MEMORY_BYTES",
            limit={"name": "REMAT_SOLVE_MEMORY_BYTES", "value": memory_bytes},
        )
    )


def _too_deep() -> BadGraph:
    return BadGraph.one(
        "too_deep", "document", "nesting beyond the recursion limit", "less nesting", "flatten the document"
    )


def read(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The canonical document of a model and the columns of its row in `graphs`."""
    from graph.formats.native.identity import with_model_name
    from graph.formats.readers import importer_of, load
    from graph.limits import Limits, ShapeOverrides

    shapes = payload["shapes"]
    inputs = {name: tuple(shape) for name, shape in shapes["inputs"].items()}
    try:
        overrides = ShapeOverrides(inputs, shapes["batch"], shapes["dims"], max=shapes["max"])
        graph = load(payload["data"], Limits(**payload["limits"]), overrides)
    except BadGraph as error:
        if error.findings[0].code in NOT_A_MODEL:
            raise Unparseable(str(error), error.findings) from None
        raise
    origin = importer_of(payload["data"])
    if origin != "native":  # kept in the document, because it decides the default of `differentiate`
        graph = structs.replace(graph, annotations={**graph.annotations, ORIGIN: origin})
    return _graph_record(with_model_name(graph, payload.get("name")))


def _graph_record(graph: Graph) -> dict[str, Any]:
    """The canonical document of a graph and the columns of its row in `graphs`."""
    from app.jobs.answers.form import form_hash
    from graph.formats.native.identity import inputs_and_batch, name_in_file
    from graph.formats.native.writer import canonical
    from graph.ir import Phase

    document = canonical(graph)
    return {
        "form": form_hash(graph),
        "document": document,
        "id": hashlib.sha256(document).hexdigest(),
        "name": graph.name,
        "graph_name": name_in_file(graph),
        **inputs_and_batch(graph),
        "nodes": len(graph.nodes),
        "values": len(graph.values),
        "format": str(graph.annotations.get(ORIGIN, "native")),
        "forward_only": all(node.phase is Phase.FORWARD for node in graph.nodes),
    }


def analyse(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> bytes:
    """The analysis of a stored graph as JSON."""
    from app.models.analysis import analyze
    from graph.formats.readers import load

    before = [load(data) for data in payload["before"]]
    return msgspec.json.encode(analyze(load(payload["data"]), payload["start"], before))


def transform(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """{"graph", "notes"} of a pass that transforms a stored graph, or {"result"} of a query."""
    from app.models.json_object import decode_object
    from app.models.transforms import apply_pass, parse_pass
    from graph.formats.readers import load

    graph_pass = parse_pass(decode_object(payload["request"], Any))
    result = apply_pass(load(payload["data"]), graph_pass)
    if isinstance(result, tuple):
        return {"graph": _graph_record(result[0]), "notes": result[1]}
    return {"result": result}


def solve(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """{"report", "sections", "exit_code"} of a solve; figures and sections are JSON.

    `known` in the payload is the section `search` of a plan for an equivalent graph, which then is not searched.
    """
    from graph.limits import Limits
    from planner.formulation.search_result import SearchResult
    from planner.pipeline.solve import solve
    from planner.request.plan_request import parse_request

    request = parse_request({**payload["fields"], "return": ["plan", *SECTIONS]})
    limits, known = Limits(**payload["limits"]), payload.get("known")
    found = None if known is None else msgspec.json.decode(known, type=SearchResult)
    outcome = solve(
        payload["data"], request, limits=limits, on_progress=_progress_sender(send), cancel=stop, known=found
    )
    return _solved(outcome, payload["fields"])


def curve(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The curve without its plans, and the plan of every point as returned by `solve`."""
    from graph.limits import Limits
    from planner.pipeline import curve as curves
    from planner.request.curve_and_fit_request import parse_curve

    request = parse_curve(payload["fields"], SECTIONS)
    result = curves.curve(
        payload["data"], request, limits=Limits(**payload["limits"]), on_progress=_progress_sender(send), cancel=stop
    )
    plans = [_solved(outcome, outcome.report["request"]) for outcome in result.outcomes]
    points = [{name: value for name, value in point.items() if name != "plan"} for point in result.document["points"]]
    return {"document": result.document | {"points": points}, "plans": plans}


def fit(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The fit without its plan; if a size fits, the plan as returned by `solve` and the graph of that size."""
    from graph.limits import Limits
    from planner.formulation.training_graph import load_model as read_model
    from planner.pipeline import fits
    from planner.request.curve_and_fit_request import parse_fit

    request, limits = parse_fit(payload["fields"], SECTIONS), Limits(**payload["limits"])
    result = fits.fit(payload["data"], request, limits=limits, on_progress=_progress_sender(send), cancel=stop)
    document = result.document | {"plan": None}
    if result.outcome is None:
        return {"document": document, "plans": []}
    model = read_model(payload["data"], result.request, limits)
    solved = _solved(result.outcome, result.outcome.report["request"])
    return {"document": document, "plans": [solved], "graph": _graph_record(model)}


def layout(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """Offsets of the buffers; a layout has no plans."""
    from app.models.json_object import decode_object
    from planner.layout.csv_buffers import pack, parse_buffers
    from planner.pipeline.progress import Progress

    began = Progress("read", 0.0)
    _progress_sender(send)(began)
    buffers = parse_buffers(decode_object(payload["data"], dict[str, Any]))
    _progress_sender(send)(replace(began, stage="layout"))
    packed = pack(buffers, stop)
    return {"document": packed.document(), "plans": []}


def picture(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> bytes:
    """An SVG picture of a plan, or the columns that it is drawn from."""
    from app.render.plan.svg import render

    return render(payload["task"], payload["figures"], payload["sections"])


def compare(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """Differences between two reports, as in `remat diff`: their count, and the first of them."""
    from app.models.diff import find_differences

    differences = find_differences(*(msgspec.json.decode(report) for report in payload["reports"]))
    return {"count": len(differences), "rows": differences[: payload["most"]]}


def _progress_sender(send: SendMessage) -> Callable[[Any], None]:
    """Callback that sends progress of the pipeline to the parent, without the events of executed nodes.

    The parent stores each event, and operations show no nodes.
    """

    def sender(progress: Any) -> None:
        if progress.nodes_run is None:
            send({"progress": {name: getattr(progress, name) for name in progress.__slots__}})

    return sender


def _solved(outcome: Outcome, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and sections of a report as JSON, and the exit code."""
    from app.jobs.answers.form import SEARCH
    from app.render.plan.preview import SECTION, encode_preview
    from planner.report.report import report_id

    made = outcome.report
    report = made | {"request": fields, "id": report_id(made["model"]["hash"], fields, made["plan"]["order"])}
    sketch = encode_preview(report)
    sections = {name: msgspec.json.encode(report.pop(name)) for name in SECTIONS if name in report}
    if sketch is not None:
        sections[SECTION] = sketch
    if (search := outcome.search) is not None:
        sections[SEARCH] = msgspec.json.encode(search)
    return {"report": msgspec.json.encode(report), "sections": sections, "exit_code": outcome.exit_code}


def snapshot(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """Memory over time from a pickled memory snapshot of PyTorch."""
    from app.models.torch_snapshot import memory_curve, read_pickle

    return memory_curve(read_pickle(payload["data"]))


def write(payload: Mapping[str, Any], send: SendMessage, stop: threading.Event) -> bytes:
    """A stored document, converted to another format of `app.models.formats`."""
    from app.models.formats import FORMATS
    from graph.formats.readers import load

    return FORMATS[payload["format"]].write(load(payload["data"]))


TASKS: dict[str, Callable[[Mapping[str, Any], SendMessage, threading.Event], Any]] = {
    "analyse": analyse,
    "compare": compare,
    "curve": curve,
    "fit": fit,
    "layout": layout,
    "picture": picture,
    "read": read,
    "snapshot": snapshot,
    "solve": solve,
    "transform": transform,
    "write": write,
}
