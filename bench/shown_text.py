"""Every line that is shown about exported models, searched for words of Python and bare numbers of bytes.

    python -m bench.shown_text                        # every model of bench/exported.py, by PyTorch's newer exporter
    python -m bench.shown_text --only lstm,encoder --exporter legacy
    python -m bench.shown_text --service              # sentences of HTTP answers, and pages

Each model is exported, and `info`, `plan` (within a budget, over one, with a loss that does not exist), `explain`,
`verify`, `check` against its plan and `diff` with its rewritten graph are run, searches of a second, nothing executed.
A service gets the model whole and cut off, and the same plans; the pages of the graph, plan and job are read. Broken
files are in tests/app/cli/test_mistakes.py. Exits 1 and prints the lines for any that `FOREIGN` matches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.api.main import create_app
from app.cli.typer_app import run
from app.settings import Settings
from bench.exported import DENSE, EXPORTERS, MODELS, Case, exported
from bench.run import add_only
from tests.app.cli.shown_text import FOREIGN


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, MODELS)
    parser.add_argument("--exporter", choices=EXPORTERS, default=EXPORTERS[0])
    parser.add_argument("--service", action="store_true", help="over HTTP, instead of by the command line")
    given = parser.parse_args()
    lines, faults, refused, planned = 0, list[str](), list[str](), 0
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            try:
                flags = write_model(Case(name, given.exporter, "train", "scores"), Path(folder))
            except Exception as error:  # of any kind: the exporter's
                refused.append(f"{name}: {type(error).__name__}")
                continue
            codes = Counter[int]()
            for what, code, shown in (answers if given.service else shown_lines)(Path(folder), flags):
                codes[code] += 1
                lines += len(shown)
                found = [f"{name}: {what}: {line}" for line in shown if FOREIGN.search(line)]
                print("\n".join(found), end="\n" if found else "", flush=True)
                faults += found
            planned += codes[201 if given.service else 0] > 0
            print(name, dict(codes), flush=True)
    print(f"{planned} models, {lines} lines shown, {len(faults)} with words of Python or bare numbers of bytes")
    print(f"{len(refused)} not exported by PyTorch: {', '.join(refused)}")
    return 1 if faults else 0


def write_model(case: Case, folder: Path) -> list[str]:
    """Write `model.onnx`; flags of its loss."""
    torch.manual_seed(0)
    model, x = MODELS[case.model]()
    scores = model(x)
    classes_at = 1 if scores.dim() == DENSE else scores.dim() - 1
    shape = list(scores.shape)
    labels = torch.randint(0, shape.pop(classes_at), shape)
    (folder / "model.onnx").write_bytes(exported(case, model, x, labels))
    return ["--loss", f"cross_entropy:scores:{classes_at}"] if scores.dim() == DENSE else []


def commands(folder: Path, flags: list[str]) -> Iterator[list[str]]:
    """The command lines, each after those whose files it reads."""
    model, plan, rewritten = (str(folder / name) for name in ("model.onnx", "plan.json", "rewritten.onnx"))
    search = ["--seconds", "1", "--planner", "greedy", "--execute", "no", *flags]
    yield ["info", model, *flags]
    yield ["plan", model, "--budget", "60%", "-o", plan, "--graph", rewritten, *search]
    yield ["plan", model, "--budget", "1KiB", *search]
    yield ["plan", model, "--loss", "no_such_value", "--budget", "60%"]
    yield ["explain", plan]
    yield ["verify", plan]
    yield ["check", plan, model]
    yield ["diff", model, rewritten]
    yield ["plan", model, "--budget", "60%", "--keep", "no_such_value", *search]


def shown_lines(folder: Path, flags: list[str]) -> Iterator[tuple[str, int, list[str]]]:
    """(command, exit code, lines) of each command."""
    for command in commands(folder, flags):
        yield f"remat {command[0]}", *shown_by(command)


def answers(folder: Path, flags: list[str]) -> Iterator[tuple[str, int, list[str]]]:
    """(request, status, sentences) of requests about the model."""
    model = (folder / "model.onnx").read_bytes()
    search: dict[str, Any] = {"search_seconds": 1, "planner": "greedy", "execute": "no"}
    search |= {"loss": flags[1]} if flags else {}
    settings = Settings(data=folder / "data", wait_seconds=60, drain_seconds=0)
    with TestClient(create_app(settings)) as client:
        binary = {"content-type": "application/onnx"}
        for body in (model[: len(model) // 2], model):
            graph = client.post("/v1/graphs", content=body, headers=binary)
            yield "POST /v1/graphs", graph.status_code, sentences(graph.json())
        graph_id = graph.json().get("id")
        for fields in (
            {"budget": "60%"},
            {"budget": "1KiB"},
            {"budget": "60%", "loss": "no_such_value"},
            {"budget": "60%", "keep": ["no_such_value"]},
            {"budget": "60%", "batch": -1, "order": 3, "unknown": None},
        ):
            asked = {**search, **fields, "graph_id": graph_id}
            plan = client.post("/v1/plans", json=asked, headers={"prefer": "wait=60"})
            yield "POST /v1/plans", plan.status_code, sentences(plan.json())
            if plan.status_code == 201:
                page = client.get(f"/plans/{plan.json()['id']}", headers={"accept": "text/html"})
                yield "/plans/ID", page.status_code, Text.of(page.text)
        for path in (
            "/",
            "/jobs",
            *(f"/jobs/{row['id']}" for row in client.get("/v1/operations").json()["operations"]),
        ):
            page = client.get(path, headers={"accept": "text/html"})
            yield path, page.status_code, Text.of(page.text)


def sentences(answer: Any) -> list[str]:
    """Texts of more than one word anywhere in a document."""
    if isinstance(answer, str):
        return [answer] if " " in answer else []
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    return [text for part in parts for text in sentences(part)]


class Text(HTMLParser):
    """The text that a page shows, and its tooltips."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.inside = ""

    @classmethod
    def of(cls, page: str) -> list[str]:
        parser = cls()
        parser.feed(page)
        return parser.lines

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.lines += [
            value for name, value in attrs if name in ("title", "alt", "aria-label", "placeholder") and value
        ]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style", "pre", "code") and data.strip():
            self.lines.append(data.strip())


def shown_by(command: list[str]) -> tuple[int, list[str]]:
    """(exit code, lines on standard output and error) of a command."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = run(command)
    return code, shown.getvalue().splitlines()


if __name__ == "__main__":
    sys.exit(main())
