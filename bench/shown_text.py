"""Every line that the command line shows about exported models, searched for words of Python and bare numbers of bytes.

    python -m bench.shown_text                        # every model of bench/exported.py, by PyTorch's newer exporter
    python -m bench.shown_text --only lstm,encoder --exporter legacy

Each model is exported, and `info`, `plan` (within a budget, over one, with a loss that does not exist), `explain`,
`verify`, `check` against its plan and `diff` with its rewritten graph are run, searches of a second, nothing executed.
Broken files are in tests/app/cli/test_mistakes.py. Exits 1 and prints the lines for any that `FOREIGN` matches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.cli.typer_app import run
from bench.exported import DENSE, EXPORTERS, MODELS, Case, exported
from bench.run import add_only
from tests.app.cli.shown_text import FOREIGN


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, MODELS)
    parser.add_argument("--exporter", choices=EXPORTERS, default=EXPORTERS[0])
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
            for command in commands(Path(folder), flags):
                code, shown = shown_by(command)
                codes[code] += 1
                lines += len(shown)
                found = [f"{name}: remat {command[0]}: {line}" for line in shown if FOREIGN.search(line)]
                print("\n".join(found), end="\n" if found else "", flush=True)
                faults += found
            planned += codes[0] > 0
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


def shown_by(command: list[str]) -> tuple[int, list[str]]:
    """(exit code, lines on standard output and error) of a command."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = run(command)
    return code, shown.getvalue().splitlines()


if __name__ == "__main__":
    sys.exit(main())
