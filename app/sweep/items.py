"""What a batch is made of: every model at every size, budget, planner and seed that was asked for."""

from __future__ import annotations

import glob
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from app.api.schemas.batch_request import distinct
from app.catalogue import versions
from app.errors import BadUsage
from app.models.formats import FORMATS
from app.zoo import manifest
from app.zoo.manifest import ManifestModel
from graph.errors import Finding
from graph.limits import Limits
from planner.errors import BadRequest
from planner.request.budget import parse_budget
from planner.request.plan_request import PARSERS, parse_request

MAX_ITEMS = 1_000_000


@dataclass(frozen=True, slots=True)
class SweepItem:
    """One plan to be made. `fields` are those of its request."""

    model: str
    file: str  # absolute
    sha256: str
    fields: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Names the question: the same model, file, request and versions have the same answer."""
        asked = [self.model, self.sha256, self.fields, versions()]
        return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:32]

    @property
    def said(self) -> dict[str, Any]:
        """What tells it from others, as results have it."""
        return {
            "model": self.model,
            "batch": self.fields.get("batch"),
            "budget": self.fields.get("budget"),
            "planner": self.fields["planner"],
            "seed": self.fields["seed"],
        }

    def __str__(self) -> str:
        batch = self.fields.get("batch")
        return ", ".join(
            [
                f"{self.model} at batch {batch}" if batch is not None else self.model,
                str(self.fields.get("budget")),
                self.fields["planner"],
                f"seed {self.fields['seed']}",
            ]
        )


def find_models(named: str | Path) -> list[ManifestModel]:
    """Models of a folder, a manifest, a file or a pattern, their files absolute. Raises BadUsage, OSError.

    A folder with a manifest is that manifest; of another one, files with the suffix of a format are models.
    """
    path = Path(named)
    if path.is_dir():
        if (path / manifest.FILE_NAME).is_file():
            return _listed(path / manifest.FILE_NAME)
        files = [file for file in sorted(path.iterdir()) if file.is_file() and _is_model(file.name)]
    elif path.is_file():
        if manifest.is_manifest(path):
            return _listed(path)
        files = [path]
    else:
        files = [Path(name) for name in sorted(glob.glob(str(named), recursive=True)) if Path(name).is_file()]
    if not files:
        raise BadUsage(f"{named}: no models there; name a folder, a manifest, or a pattern in quotes", code="no_models")
    common = StemCounts(file.name for file in files)
    return [ManifestModel(file.stem if common.once(file) else str(file), str(file.absolute())) for file in files]


class StemCounts:
    """File names, and whether their stems tell them apart."""

    def __init__(self, names: Iterable[str]):
        stems = Counter(Path(name).stem for name in names)
        self.repeated = {stem for stem, count in stems.items() if count > 1}

    def once(self, file: Path) -> bool:
        return file.stem not in self.repeated


def _listed(path: Path) -> list[ManifestModel]:
    found = manifest.parse(path.read_bytes(), str(path))
    return [msgspec.structs.replace(model, file=str((path.parent / model.file).absolute())) for model in found.models]


def _is_model(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(tuple(format.suffix for format in FORMATS.values()))


def expand_items(
    models: Sequence[ManifestModel],
    budgets: Sequence[Any],
    planners: Sequence[str] = ("auto",),
    seeds: Sequence[int] = (0,),
    batches: Sequence[int] = (),
    fields: Mapping[str, Any] | None = None,
) -> list[SweepItem]:
    """Every combination, a model's together, in the order given. Raises BadRequest, BadUsage, OSError.

    `batches` go before those of a model; `fields` are the rest of every request, a model's own go before them.
    """
    for name in ("budget", "planner", "seed", "batch"):
        if name in (fields or {}):
            raise BadRequest.one("unknown_field", name, f"{name} of one plan", f"{name}s or batch_sizes", "list them")
    sizes = [batches or model.batches or (None,) for model in models]
    count = sum(map(len, sizes)) * len(budgets) * len(planners) * len(seeds)
    if not 0 < count <= MAX_ITEMS:
        said = f"{count:,} plans; ask for at least one and at most {MAX_ITEMS:,}"
        raise BadUsage(said, code="bad_batch")
    findings: list[Finding] = []
    axes = {"budget": budgets, "planner": planners, "seed": seeds, "batch": batches}
    for name, given in axes.items():
        named = "batch_sizes" if name == "batch" else f"{name}s"
        distinct(given or None, named, parse_budget if name == "budget" else PARSERS[name], MAX_ITEMS, findings)
    if findings:
        raise BadRequest(findings)
    items = []
    for model, lengths in zip(models, sizes, strict=True):
        digest = file_hash(Path(model.file))
        if model.sha256 not in (None, digest):
            said = f"{model.file}: not the file that its manifest names; write the manifest again with `remat zoo`"
            raise BadUsage(said, code="file_changed")
        own = {"inputs": {name: list(shape) for name, shape in model.inputs.items()}, "dims": model.dims}
        own |= {"loss": model.loss}
        shared = dict(fields or {}) | {name: said for name, said in own.items() if said}
        for batch, budget, planner, seed in itertools.product(lengths, budgets, planners, seeds):
            asked = shared | ({} if batch is None else {"batch": batch})
            asked |= {"budget": budget, "planner": planner, "seed": seed}
            parse_request(asked)
            items.append(SweepItem(model.name, model.file, digest, asked))
    return items


def file_hash(path: Path) -> str:
    """SHA-256 of a model's file. Raises BadUsage where it is larger than models may be, OSError."""
    if path.stat().st_size > Limits().document_bytes:
        raise BadUsage(f"{path}: larger than {Limits().document_bytes} bytes; send a smaller model", code="too_large")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
