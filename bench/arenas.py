"""Whether the addresses of every plan that is said to fit are within the budget, and where only the addresses miss it.

    python -m bench.arenas                                     # instances, light models, exported networks
    python -m bench.arenas --only unet_b4,squeezenet --seconds 5
    python -m bench.arenas --no-exported                       # without networks that PyTorch exports first

Each model is planned at every budget of BUDGETS alone and as a curve; light models also for two batches at once, and
by `fit` for the largest batch within twice their peak. A line for each answer whose peak is within the budget while its
arena is not: its excess, and whether the answer says so. Exits 1 if an answer says that a plan fits whose arena exceeds
the budget, or has no addresses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import remat
from bench.catalogue import FOLDER, instances
from bench.exported import EXPORTERS, MODELS, Case
from bench.run import add_only
from bench.shown_text import write_model
from tests.end_to_end.models import MODELS as LIGHT

BUDGETS = ("100%", "80%", "50%", "30%")
#: Instances, of the names in `--only`.
INSTANCES = {instance.name: FOLDER / "recompute" / f"{instance.name}.json" for instance in instances()}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one answer says about one budget."""

    what: str
    budget_bytes: int
    peak_bytes: int
    arena_bytes: int | None
    says_fits: bool

    @property
    def is_wrong(self) -> bool:
        return self.says_fits and (self.arena_bytes is None or self.arena_bytes > self.budget_bytes)

    @property
    def misses_by_addresses(self) -> bool:
        return self.peak_bytes <= self.budget_bytes and (self.arena_bytes or 0) > self.budget_bytes

    def line(self, name: str) -> str:
        excess = (self.arena_bytes or 0) / max(1, self.budget_bytes) - 1
        verdict = "says it fits: WRONG" if self.is_wrong else "said"
        return f"{name}: {self.what}: arena {excess:.3%} above the budget, {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, {**INSTANCES, **LIGHT, **MODELS})
    parser.add_argument("--seconds", type=float, default=2.0, help="of each plan, and for each budget of a curve")
    parser.add_argument("--no-exported", action="store_true")
    given = parser.parse_args()
    counts, refused = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            if name in MODELS and name not in LIGHT and given.no_exported:
                continue
            try:
                found = list(answers(*model(name, Path(folder)), name in LIGHT, {"search_seconds": given.seconds}))
            except Exception as error:  # of any kind: of PyTorch's exporter, or findings of the importer
                refused.append(f"{name}: {type(error).__name__}")
                continue
            for answer in found:
                counts["answers"] += 1
                counts["fit"] += answer.says_fits
                counts["wrong"] += answer.is_wrong
                counts["by addresses"] += answer.misses_by_addresses
                if answer.is_wrong or answer.misses_by_addresses:
                    print(answer.line(name), flush=True)
    print(
        f"{counts['answers']} answers, {counts['fit']} fit, {counts['wrong']} of them with an arena above the budget; "
        f"of the others {counts['by addresses']} miss by their addresses alone"
    )
    print(f"{len(refused)} models without an answer: {', '.join(refused)}")
    return 1 if counts["wrong"] else 0


def model(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """(file, request fields) of a model; an exported one is written to the folder."""
    if name in INSTANCES:
        return INSTANCES[name], {}
    if name in LIGHT:
        return LIGHT[name]
    flags = write_model(Case(name, EXPORTERS[0], "train", "scores"), folder)
    return folder / "model.onnx", {"loss": flags[1]} if flags else {}


def answers(file: Path, fields: Mapping[str, Any], has_batch: bool, search: dict[str, Any]) -> Iterator[Answer]:
    """The answers for one model."""
    request = {**fields, **search, "execute": "no"}
    for budget in BUDGETS:
        report = remat.plan(file, budget, **request)
        yield _answer(f"plan {budget}", report["plan"])
    curve = remat.curve(file, BUDGETS, **{**fields, "search_seconds": len(BUDGETS) * search["search_seconds"]})
    for point in curve["points"]:
        yield _answer(f"curve {point['budget']}", point["plan"])
    if has_batch:
        batch = int(fields["batch"])  # type: ignore[call-overload]
        shapes = [{**_shapes(fields), "batch": 2 * batch}, {**_shapes(fields), "batch": 4 * batch}]
        others = {name: value for name, value in request.items() if name not in ("batch", "dims")}
        for budget in BUDGETS:
            report = remat.plan(file, budget, shapes=shapes, **others)
            for shape in report["shapes"]["sets"]:
                yield _answer(f"shapes {budget}", {**shape, "within_budget": shape["within"]})
        twice = 2 * remat.plan(file, "100%", **request).baseline_peak_bytes
        fit = remat.fit(file, twice, **{name: value for name, value in fields.items() if name != "batch"}, **search)
        yield _answer("fit", fit["plan"])


def _shapes(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"dims": fields["dims"]} if "dims" in fields else {}


def _answer(what: str, plan: Mapping[str, Any]) -> Answer:
    names = ("budget_bytes", "peak_bytes", "arena_bytes")
    return Answer(what, *(plan[name] for name in names), bool(plan["within_budget"]))


if __name__ == "__main__":
    sys.exit(main())
