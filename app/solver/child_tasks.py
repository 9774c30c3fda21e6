"""What a child process does with one model: read it, analyse, transform or plan it, or write it in another format.

parent ──payload──▶ child        one msgpack message each way at a time; nothing is pickled back
parent ◀─progress── child ...
parent ──stop─────▶ child        the best so far follows; a broken pipe ends the child at once
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

from app.errors import SolveFailed, Unparseable, to_problem
from graph.errors import BadGraph

if TYPE_CHECKING:
    from graph.ir import Graph
    from planner.pipeline.progress import Outcome

# Imports inside functions: the parent imports this module too, and only a child needs the planner.

SECTIONS = ("timeline", "layout", "explain", "source", "graph")
ORIGIN = "imported_from"  # annotation of a graph that came as a framework's file
NOT_A_MODEL = frozenset({"not_parseable", "unknown_format", "not_a_model", "truncated"})
NICE = 10
#: Code of a finding -> fields of `graph.limits.Limits` that it may be about.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _limit(memory_bytes)
    payload = msgspec.msgpack.decode(pipe.recv_bytes())
    stop = threading.Event()
    threading.Thread(target=_listen, args=(pipe, stop), daemon=True).start()

    def tell(message: Mapping[str, Any]) -> None:
        pipe.send_bytes(msgspec.msgpack.encode(message))

    try:
        answer = {"result": TASKS[task](payload, tell, stop)}
    except MemoryError:
        answer = {"problem": to_problem(_too_much_memory(memory_bytes))}
    except RecursionError:
        answer = {"problem": to_problem(_too_deep())}
    except Exception as error:
        problem = to_problem(error)
        answer = {
            "problem": {**problem, "limit": problem["limit"] or exceeded_limit(problem, payload.get("limits", {}))}
        }
        if answer["problem"]["code"] == "internal":
            traceback.print_exc(file=sys.stderr)
    tell(answer)


def _limit(memory_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)  # who waits for an answer comes before who searches
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")  # when memory ends, the system kills a solve and not the service


def _listen(pipe: Connection, stop: threading.Event) -> None:
    """Set `stop` when asked; end the process when the parent is gone."""
    try:
        while True:
            pipe.recv_bytes()
            stop.set()
    except (EOFError, OSError):
        os._exit(1)


def exceeded_limit(problem: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any] | None:
    """The setting behind the first finding of a reader, which knows limits but not what sets them."""
    names = LIMITS.get(problem["code"], ())
    for name in names:
        if name in limits and (len(names) == 1 or str(limits[name]) in problem["errors"][0]["expected"].split()):
            setting = "decompressed_bytes" if name == "document_bytes" else name
            return {"name": f"REMAT_{setting.upper()}", "value": limits[name]}
    return None


def _too_much_memory(memory_bytes: int) -> SolveFailed:
    return SolveFailed(
        f"the model needs more than the {memory_bytes} bytes a child process may add; "
        "send a smaller model, or raise REMAT_SOLVE_MEMORY_BYTES",
        code="out_of_memory",
        limit={"name": "REMAT_SOLVE_MEMORY_BYTES", "value": memory_bytes},
    )


def _too_deep() -> BadGraph:
    return BadGraph.one("too_deep", "document", "nesting past what can be read", "less nesting", "flatten the document")


def read(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The canonical document of a model and what a list says of it."""
    from graph.formats.readers import importer_of, load
    from graph.limits import Limits, ShapeOverrides

    shapes = payload["shapes"]
    inputs = {name: tuple(shape) for name, shape in shapes["inputs"].items()}
    try:
        graph = load(
            payload["data"], Limits(**payload["limits"]), ShapeOverrides(inputs, shapes["batch"], shapes["dims"])
        )
    except BadGraph as error:
        if error.findings[0].code in NOT_A_MODEL:
            raise Unparseable(str(error), error.findings) from None
        raise
    origin = importer_of(payload["data"])
    if origin != "native":  # the document must say so itself: whether it is differentiated unasked depends on it
        graph = replace(graph, annotations={**graph.annotations, ORIGIN: origin})
    return _to_keep(graph)


def _to_keep(graph: Graph) -> dict[str, Any]:
    """What is stored of a graph: its canonical document, and what a list says of it."""
    from app.jobs.answers.relabel import form_hash
    from graph.formats.native.writer import canonical
    from graph.ir import Phase

    document = canonical(graph)
    return {
        "form": form_hash(graph),
        "document": document,
        "id": hashlib.sha256(document).hexdigest(),
        "name": graph.name,
        "nodes": len(graph.nodes),
        "values": len(graph.values),
        "format": str(graph.annotations.get(ORIGIN, "native")),
        "forward_only": all(node.phase is Phase.FORWARD for node in graph.nodes),
    }


def analyse(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> bytes:
    """The analysis of a stored graph as JSON."""
    from app.models.analysis import analyze
    from graph.formats.readers import load

    before = [load(data) for data in payload["before"]]
    return msgspec.json.encode(analyze(load(payload["data"]), payload["start"], before))


def transform(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The graph that a pass makes of a stored one, to be kept, or the answer it gives."""
    from app.models.json_object import decode_object
    from app.models.transforms import apply_pass, parse_pass
    from graph.formats.readers import load

    asked = parse_pass(decode_object(payload["asked"], Any))
    made = apply_pass(load(payload["data"]), asked)
    if isinstance(made, tuple):
        return {"graph": _to_keep(made[0]), "said": made[1]}
    return {"answer": made}


def solve(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The report's figures and each of its sections as JSON."""
    from graph.limits import Limits
    from planner.pipeline.solve import solve
    from planner.request.plan_request import parse_request

    request = parse_request({**payload["fields"], "return": ["plan", *SECTIONS]})
    outcome = solve(payload["data"], request, limits=Limits(**payload["limits"]), on_progress=_told(tell), cancel=stop)
    return _solved(outcome, payload["fields"])


def relabel(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any] | None:
    """As `solve`, from the report about a graph that differs in names alone; None where that cannot be told."""
    from app.jobs.answers.relabel import PreparedSolve, relabel_report
    from planner.pipeline.progress import Progress

    _told(tell)(Progress("read", 0.0))  # whoever stops it now need not wait
    ours, theirs = (PreparedSolve.of(asked, payload["limits"]) for asked in (payload, payload["theirs"]))
    told = relabel_report(ours, theirs, payload["figures"], payload["sections"])
    if told is None:
        return None
    figures, sections = told
    encoded = {name: msgspec.json.encode(section) for name, section in sections.items()}
    return {"report": msgspec.json.encode(figures), "sections": encoded, "exit_code": 0}


def curve(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The curve without its plans, and every point as `solve` would give it."""
    from graph.limits import Limits
    from planner.pipeline import curve as curves
    from planner.request.curve_and_fit_request import parse_curve

    asked = parse_curve(payload["fields"], SECTIONS)
    made = curves.curve(
        payload["data"], asked, limits=Limits(**payload["limits"]), on_progress=_told(tell), cancel=stop
    )
    plans = [_solved(outcome, outcome.report["request"]) for outcome in made.outcomes]
    points = [{name: said for name, said in point.items() if name != "plan"} for point in made.document["points"]]
    return {"document": made.document | {"points": points}, "plans": plans}


def fit(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """The fit without its plan; the plan as `solve` would give it, and the model at its size, where one fits."""
    from graph.limits import Limits
    from planner.formulation.training_graph import load_model as read_model
    from planner.pipeline import fit as fits
    from planner.request.curve_and_fit_request import parse_fit

    asked, limits = parse_fit(payload["fields"], SECTIONS), Limits(**payload["limits"])
    made = fits.fit(payload["data"], asked, limits=limits, on_progress=_told(tell), cancel=stop)
    document = made.document | {"plan": None}
    if made.outcome is None:
        return {"document": document, "plans": []}
    model = read_model(payload["data"], made.request, limits)
    solved = _solved(made.outcome, made.outcome.report["request"])
    return {"document": document, "plans": [solved], "graph": _to_keep(model)}


def layout(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """Where buffers lie; there are no plans to it."""
    from app.models.json_object import decode_object
    from planner.layout.csv_buffers import pack, parse_buffers
    from planner.pipeline.progress import Progress

    began = Progress("read", 0.0)
    _told(tell)(began)
    buffers = parse_buffers(decode_object(payload["data"], dict[str, Any]))
    _told(tell)(replace(began, stage="layout"))
    packed = pack(buffers, stop)
    return {"document": packed.document(), "plans": []}


def picture(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> bytes:
    """A picture of a plan, or the columns that one is drawn from."""
    from app.render.plan.svg import render

    return render(payload["task"], payload["figures"], payload["sections"])


def compare(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> dict[str, Any]:
    """How two reports differ, as `remat diff` says: how many differences, and the first of them."""
    from app.models.diff import find_differences

    found = find_differences(*(msgspec.json.decode(report) for report in payload["reports"]))
    return {"count": len(found), "rows": found[: payload["most"]]}


def _told(tell: SendMessage) -> Callable[[Any], None]:
    """Progress of the pipeline as a message to the parent."""
    return lambda progress: tell({"progress": {name: getattr(progress, name) for name in progress.__slots__}})


def _solved(outcome: Outcome, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and sections of a report as JSON, and whether all went well."""
    from app.render.plan.preview import SECTION, encode_preview

    report = outcome.report | {"request": fields}
    sketch = encode_preview(report)
    sections = {name: msgspec.json.encode(report.pop(name)) for name in SECTIONS if name in report}
    if sketch is not None:
        sections[SECTION] = sketch
    return {"report": msgspec.json.encode(report), "sections": sections, "exit_code": outcome.exit_code}


def write(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> bytes:
    """A stored document in another of `app.models.formats`."""
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
    "retell": relabel,
    "solve": solve,
    "transform": transform,
    "write": write,
}
