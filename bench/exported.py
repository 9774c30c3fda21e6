"""Models as `torch.onnx.export` writes them: every parameter's gradient beside PyTorch's.

    python -m bench.exported                          # each model by dynamo and by legacy
    python -m bench.exported --all                    # and each in training and eval mode, with and without loss
    python -m bench.exported --only lstm,encoder --exporter legacy
    python -m bench.exported --seed 7

Without --all a model has one case for each exporter, in opposite modes, one with and one without its loss; over four
models in a row each exporter has every mode with and without loss.
Each model is planned at 50%, executed, and its rewritten graph loaded by onnxruntime and run by remat. An error is the
2-norm of the difference to PyTorch's gradient in float64, relative to the gradient's; the noise is that of float32.
Where the noise exceeds a gradient, so that float32 has no digit of it, the rewritten graph runs in float64, and where
an error above the noise may come from one ReLU or MaxPool that float32 decides otherwise.
Exits 1 for an error above 10 times the noise, a parameter that is lost without a word, a file that onnxruntime
refuses (gradients of recurrent nets excepted), and rewritten graphs that differ. Models that cannot be planned say why
in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from app.render.text import table
from bench.exported_libraries import models
from bench.exported_models import MODELS as OF_TORCH
from bench.run import add_only
from graph.errors import GraphError
from graph.execution.float64 import in_float64
from graph.execution.interpreter import execute
from graph.formats.onnx.writer import dump
from graph.ir import Graph
from planner.errors import PlannerError
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

MODELS = OF_TORCH | models()
EXPORTERS, MODES, LOSSES = ("dynamo", "legacy"), ("train", "eval"), ("loss", "scores")
RESULTS = ("right", "lost", "refused", "wrong")
NOISES = 10  # errors up to so many times the noise of float32 are rounding
ROUNDINGS = 3  # runs in float64 with weights that are one rounding off
NOISE_FLOOR = 1e-6  # relative; PyTorch may round as float64 does by chance
DENSE = 4  # rank of scores of every pixel
ONE_CHOICE = 5e-2  # relative; what the other side of one ReLU or MaxPool changes
NORM_FLOOR = 1e-2  # of the largest gradient: a smaller one, such as of a bias before a norm, is measured by this
#: Recurrent gradients have no function body, so the exported file needs a kernel for them.
_NO_BODY = re.compile(r"remat:(LSTM|GRU|RNN)Grad\b")


@dataclass(frozen=True, slots=True)
class Case:
    """One export of one model."""

    model: str
    exporter: str  # one of EXPORTERS
    mode: str  # "train": exported to be trained, "eval": with the exporter's defaults, which fold batch norms
    ends: str  # one of LOSSES: the file ends in the loss, or in scores that remat adds a loss to


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one case."""

    case: Case
    result: str  # one of RESULTS; "lost": parameters that the export folded, wholly or partly, named by a warning
    nodes: int = 0
    saved: str = ""  # share of the peak
    parameters: int = 0  # elements of PyTorch's parameters with the right gradient
    error: float = 0.0
    noise: float = 0.0
    why: str = ""

    @property
    def is_fault(self) -> bool:
        return self.result == "wrong"


class WithLoss(nn.Module):
    """Mean cross-entropy of a model's scores, whose classes are on axis 1 of dense ones and else on the last."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.model(x)
        if scores.dim() == DENSE:
            return functional.cross_entropy(scores, labels)
        return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def check(case: Case, seed: int = 0) -> Row:
    """Export, plan, execute and compare one case."""
    torch.manual_seed(seed)
    model, x = MODELS[case.model]()
    draw_distinct(model, np.random.default_rng(seed))
    scores = model(x)
    classes_at = 1 if scores.dim() == DENSE else scores.dim() - 1
    shape = list(scores.shape)
    labels = torch.randint(0, shape.pop(classes_at), shape)
    try:
        data = exported(case, model, x, labels)
    except Exception as error:  # of any kind: the exporter's
        return Row(case, "refused", why=f"torch.onnx.export: {_line(error)}")
    request = {"budget": "50%", "execute": "yes", "planner": "greedy", "iterations": 20, "layout": "fast"}
    if case.ends == "loss" or scores.dim() == DENSE:
        request["loss"] = "loss" if case.ends == "loss" else f"cross_entropy:scores:{classes_at}"
    try:
        outcome = solve(data, parse_request(request))
    except (GraphError, PlannerError) as error:
        return Row(case, "refused", why=_line(error))
    return _compared(case, outcome, data, model, x, labels)


def draw_distinct(model: nn.Module, generator: np.random.Generator) -> None:
    """Draw all parameters anew, no two elements alike, so that contents tell where an exporter put them."""
    parameters = list(model.parameters())
    scales = np.concatenate(
        [np.full(p.numel(), 0.5 / max(1, p[0].numel()) ** 0.5 if p.dim() > 1 else 0.5) for p in parameters]
    )
    drawn = _distinct((generator.uniform(0.5, 2.0, len(scales)) * scales).astype(np.float32))
    drawn *= generator.choice(np.array([-1, 1], np.float32), len(drawn))
    with torch.no_grad():
        for parameter, part in zip(
            parameters, np.split(drawn, np.cumsum([p.numel() for p in parameters])[:-1]), strict=True
        ):
            parameter.copy_(torch.from_numpy(part.reshape(parameter.shape)))


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Positive float32 numbers, of which those that repeat another are moved to the next free one."""
    order = np.argsort(numbers)
    places = numbers[order].view(np.int32) - np.arange(len(numbers), dtype=np.int32)  # bits of floats rise with them
    numbers[order] = (np.maximum.accumulate(places) + np.arange(len(numbers), dtype=np.int32)).view(np.float32)
    return numbers


def exported(case: Case, model: nn.Module, x: Tensor, labels: Tensor) -> bytes:
    """The ONNX file of a case."""
    module: nn.Module = WithLoss(model) if case.ends == "loss" else model
    module.train(case.mode == "train")
    args = (x, labels) if case.ends == "loss" else (x,)
    names: dict[str, Any] = {"input_names": ["x", "labels"][: len(args)], "output_names": [case.ends]}
    trains = case.mode == "train"
    keeps = torch.onnx.TrainingMode.TRAINING if trains else torch.onnx.TrainingMode.EVAL
    for logger in ("torch.onnx", "onnx_ir", "onnxscript", "torch.export"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    with warnings.catch_warnings(), _silence():
        warnings.simplefilter("ignore")
        if case.exporter == "dynamo":
            program = torch.onnx.export(module, args, **names, dynamo=True, verbose=False, optimize=not trains)
            assert program is not None
            return bytes(program.model_proto.SerializeToString())
        file = io.BytesIO()
        torch.onnx.export(
            module, args, file, **names, dynamo=False, training=keeps, do_constant_folding=not trains, opset_version=20
        )
        return file.getvalue()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without output: the legacy exporter prints the graph of a model that it refuses."""
    sys.stdout.flush()
    saved = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        for number, copy in enumerate(saved, 1):
            os.dup2(copy, number)
            os.close(copy)


def _compared(case: Case, outcome: Outcome, data: bytes, model: nn.Module, x: Tensor, labels: Tensor) -> Row:
    """The row of a planned case."""
    report = outcome.report
    inputs = {"x": x.numpy(), "labels": labels.numpy()}
    contents = {name: p.detach().numpy().copy() for name, p in _trained(model)}
    ours, seen = by_content(contents, _gradients(outcome.graph, data, inputs))
    for name, module in model.train().named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not np.all(seen.get(f"{name}.weight", True)):
            module.eval()  # the exporter folded its statistics
    noises, double = float32_noise(model, x, labels)
    found = _errors(ours, seen, noises, double, report["warnings"])
    if found.has_no_digit or (found.wrong and found.error < ONE_CHOICE):
        wide, _ = by_content(contents, _gradients(outcome.graph, data, inputs, wide=True))
        single, found = found, _errors(wide, seen, noises, double, report["warnings"])
        if single.wrong and not found.wrong:
            found = replace(found, why=f"in float64; in float32 above the noise: {single.wrong}")
    executed, result, why = report["executed"], "right", loading_problem(outcome.graph) or found.why
    if found.missing:
        said = next((text for text in report["warnings"] if "folding=False" in text or "optimize=False" in text), "")
        lost = f"no word of {', '.join(found.missing)}, which get no gradient"
        result, why = ("lost", said) if said else ("wrong", lost)
    if found.wrong or executed["status"] != "equal" or executed["gradients"]["status"] == "different":
        result, why = "wrong", found.wrong or executed["why"] or executed["compared"]
    if why.startswith("onnxruntime") and not _NO_BODY.search(why):
        result = "wrong"
    saved = f"{report['plan']['saved']:.0%}"
    return Row(case, result, report["model"]["nodes"], saved, found.elements, found.error, found.noise, why)


@dataclass(frozen=True, slots=True)
class _Errors:
    """The gradients of a run beside PyTorch's in float64."""

    elements: int  # with a gradient
    error: float  # of the parameter whose error is largest relative to its noise
    noise: float
    wrong: str  # the first parameter that is apart by more than NOISES noises; "": none
    missing: list[str]  # parameters that are lost, wholly or partly
    has_no_digit: bool  # whether the noise exceeds a gradient
    why: str = ""


def _errors(
    ours: dict[str, np.ndarray],
    seen: dict[str, np.ndarray],
    noises: dict[str, float],
    double: dict[str, np.ndarray],
    warnings: list[str],
) -> _Errors:
    """Compare the gradients of all parameters, those elements that `seen` marks."""
    largest = max(float(np.linalg.norm(each)) for each in double.values())
    norms = {name: max(float(np.linalg.norm(each)), NORM_FLOOR * largest) for name, each in double.items()}
    worst, wrong, missing = (0.0, 0.0, 1.0), "", []
    for name, expected in double.items():
        if np.linalg.norm(expected[~seen[name]]) > NOISES * NOISE_FLOOR * largest:
            missing.append(name)
        apart = float(np.linalg.norm((ours[name] - expected)[seen[name]])) / norms[name]
        rounding = max(noises[name] / norms[name], NOISE_FLOOR)
        worst = max(worst, (apart / rounding, apart, rounding))
        if apart > NOISES * rounding and _is_told(name, warnings):
            missing.append(name)
        elif apart > NOISES * rounding:
            wrong = wrong or f"gradient of {name}: error {apart:.1e}, noise {rounding:.1e}"
    elements = sum(int(seen[name].sum()) for name in double)
    has_no_digit = any(noises[name] > norm for name, norm in norms.items())
    return _Errors(elements, worst[1], worst[2], wrong, missing, has_no_digit)


def _is_told(name: str, warnings: list[str]) -> bool:
    """Whether a warning says that the gradient of a parameter lacks a part, which the exporter folded."""
    computed = next((text for text in warnings if text.startswith("constants that the exporter computed")), "")
    return re.search(rf"[ .]{re.escape(name)}[,)]|and \d+ more", computed) is not None


def loading_problem(graph: Graph) -> str:
    """Why onnxruntime does not load the graph; "" if it does."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(dump(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of any kind
        return f"onnxruntime: {_line(error)}"
    return ""


def torch_gradients(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """PyTorch's gradients of the mean cross-entropy, by name, in float64."""
    model.zero_grad()
    WithLoss(model)(x, labels).backward()
    return {
        name: np.zeros(p.shape) if p.grad is None else p.grad.double().numpy().copy() for name, p in _trained(model)
    }


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters with their names; an export does not say which ones are frozen."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def float32_noise(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """(2-norm of the noise of float32 in each gradient, PyTorch's gradients in float64).

    The noise is PyTorch's own in float32, or what weights that are one rounding off do, if that is more.
    """
    runs = [torch_gradients(model, x, labels)]
    exact = [parameter.detach().double() for parameter in model.parameters()]
    wide = x.double() if x.is_floating_point() else x
    double = torch_gradients(model.double(), wide, labels)
    for _ in range(ROUNDINGS):
        with torch.no_grad():
            for parameter, content in zip(model.parameters(), exact, strict=True):
                parameter.copy_(content * (1 + 2.0**-24 * torch.randn_like(content)))
        runs.append(torch_gradients(model, wide, labels))
    return {name: max(float(np.linalg.norm(run[name] - each)) for run in runs) for name, each in double.items()}, double


def _gradients(
    graph: Graph, data: bytes, inputs: dict[str, np.ndarray], wide: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(content, gradient) of each parameter, from a run of the rewritten graph, `wide` in float64."""
    file = onnx.load_from_string(data).graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in file.initializer}
    constants = [node for node in file.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    tensors |= {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in constants}
    written = {v for node in graph.nodes for v in node.writes}
    names = {v.name for k, v in enumerate(graph.values) if k not in written and v.data is None}
    feeds = {name: array for name, array in (tensors | inputs).items() if name in names}
    pairs = [(graph.values[v].name, graph.values[gradient].name) for v, gradient in graph.gradients]
    given = feeds
    if wide:
        graph = in_float64(graph)
        given = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    values = execute(graph, given, keep={gradient for _, gradient in pairs}).values
    return [(feeds[name], values[gradient]) for name, gradient in pairs if name in feeds]


def by_content(
    contents: dict[str, np.ndarray], found: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(gradients of PyTorch's parameters, which elements have one), element by element where the contents are the same.

    An exporter transposes, slices and joins weights; a weight that it stores twice gets the sum of both gradients.
    """
    everything = np.concatenate([content.reshape(-1) for content in contents.values()])
    order = np.argsort(everything)
    total, seen = np.zeros(len(everything)), np.zeros(len(everything), bool)
    for content, gradient in found:
        flat = content.reshape(-1)
        place = order[np.searchsorted(everything, flat, sorter=order).clip(max=len(everything) - 1)]
        same = everything[place] == flat
        if same.mean() < 0.5:
            continue  # other numbers, of which a few are the same by chance
        np.add.at(total, place[same], gradient.reshape(-1)[same])
        seen[place[same]] = True
    cuts = np.cumsum([content.size for content in contents.values()])[:-1]
    parts = (
        {name: part.reshape(contents[name].shape) for name, part in zip(contents, np.split(flat, cuts), strict=True)}
        for flat in (total, seen)
    )
    return next(parts), next(parts)


def _line(error: BaseException) -> str:
    """The first line of a message, or of its cause: PyTorch's exporter writes advice above it."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return next((line for line in lines if line.startswith("<class ")), lines[0])[:160]


def cases(names: list[str], exporters: list[str], everything: bool = False) -> Iterator[Case]:
    """The cases of models: `everything`, or one by each exporter, by the place of the model in the list."""
    ends = list(product(MODES, LOSSES))
    for name in names:
        place = list(MODELS).index(name)
        drawn = {"dynamo": [ends[place % 4]], "legacy": [ends[3 - place % 4]]}
        for exporter in exporters:
            yield from (Case(name, exporter, *each) for each in (ends if everything else drawn[exporter]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, MODELS)
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="default: both")
    parser.add_argument("--all", action="store_true", help="every mode, with and without loss, by each exporter")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows: list[Row] = []
    for case in cases(given.only, given.exporter or list(EXPORTERS), given.all):
        began = time.process_time()
        rows.append(check(case, given.seed))
        took = time.process_time() - began
        print(
            f"{len(rows)} {' '.join(astuple(case))}: {rows[-1].result} in {took:.1f} s of CPU {rows[-1].why}",
            flush=True,
        )
    print("\n".join(shown(rows)))
    return int(any(row.is_fault for row in rows))


def shown(rows: list[Row]) -> list[str]:
    """The rows as a table, and their number by exporter and result."""
    heads = [*(field.name for field in fields(Case)), "result", "nodes", "saved", "elements", "error", "noise"]
    cells = [
        (
            *astuple(row.case),
            row.result,
            str(row.nodes),
            row.saved,
            str(row.parameters),
            f"{row.error:.0e}",
            f"{row.noise:.0e}",
        )
        for row in rows
    ]
    counts = Counter((row.case.exporter, row.result) for row in rows)
    return [
        *table(heads, cells, right=range(5, len(heads))),
        *(
            f"{exporter}: " + ", ".join(f"{counts[exporter, result]} {result}" for result in RESULTS)
            for exporter in EXPORTERS
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
