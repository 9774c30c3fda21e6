"""Items of a sweep: every model at every batch size, budget, planner and seed."""

from __future__ import annotations

import glob
import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from app.api.schemas.batch_request import distinct
from app.catalogue import versions
from app.errors import BadUsage, about_file
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
    """One model and request of a sweep."""

    model: str
    file: str  # absolute path
    sha256: str
    fields: Mapping[str, Any]  # of the request

    @property
    def key(self) -> str:
        """Hash of model name, file, request and package versions: equal keys have equal results."""
        identity = [self.model, self.sha256, self.fields, versions()]
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:32]

    @property
    def axes(self) -> dict[str, Any]:
        """Coordinates of the item in its sweep, as columns of a result."""
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
    """Models of a folder, manifest, file or glob pattern, with absolute paths. Raises BadUsage, OSError.

    A folder with a manifest yields the manifest's models; another folder yields files with a known suffix.
    """
    path = Path(named)
    if path.is_dir():
        if (path / manifest.FILE_NAME).is_file():
            return _manifest_models(path / manifest.FILE_NAME)
        files = [file for file in sorted(path.iterdir()) if file.is_file() and _is_model(file.name)]
    elif path.is_file():
        if manifest.is_manifest(path):
            return _manifest_models(path)
        files = [path]
    else:
        files = [Path(name) for name in sorted(glob.glob(str(named), recursive=True)) if Path(name).is_file()]
    if not files:
        raise BadUsage(f"{named}: no models found; name a folder, a manifest or a quoted pattern", code="no_models")
    stems = Counter(file.stem for file in files)
    return [ManifestModel(file.stem if stems[file.stem] == 1 else str(file), str(file.absolute())) for file in files]


def _manifest_models(path: Path) -> list[ManifestModel]:
    with about_file(path):
        models = manifest.parse(path.read_bytes(), str(path)).models
    return [msgspec.structs.replace(model, file=str((path.parent / model.file).absolute())) for model in models]


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
    """Cartesian product of models and axes, grouped by model, in the given order. Raises BadRequest, BadUsage, OSError.

    `batches` override a model's own. `fields` are the other request fields; a model's own override them.
    """
    for name in ("budget", "planner", "seed", "batch"):
        if name in (fields or {}):
            expected = "batch_sizes" if name == "batch" else f"{name}s"
            raise BadRequest.one("unknown_field", name, f"a single {name}", expected, f"use {expected}")
    sizes = [batches or model.batches or (None,) for model in models]
    count = sum(map(len, sizes)) * len(budgets) * len(planners) * len(seeds)
    if not 0 < count <= MAX_ITEMS:
        raise BadUsage(f"{count:,} plans; the number of plans must be 1 to {MAX_ITEMS:,}", code="bad_batch")
    findings: list[Finding] = []
    axes = {"budget": budgets, "planner": planners, "seed": seeds, "batch": batches}
    for name, values in axes.items():
        keyword = "batch_sizes" if name == "batch" else f"{name}s"
        distinct(values or None, keyword, parse_budget if name == "budget" else PARSERS[name], MAX_ITEMS, findings)
    if findings:
        raise BadRequest(findings)
    items = []
    for model, lengths in zip(models, sizes, strict=True):
        digest = file_hash(Path(model.file))
        if model.sha256 not in (None, digest):
            message = f"{model.file}: hash differs from the manifest; rewrite the manifest with `remat zoo`"
            raise BadUsage(message, code="file_changed")
        own = {"inputs": {name: list(shape) for name, shape in model.inputs.items()}, "dims": model.dims}
        own |= {"loss": model.loss}
        shared = dict(fields or {}) | {name: value for name, value in own.items() if value}
        for batch, budget, planner, seed in itertools.product(lengths, budgets, planners, seeds):
            request = shared | ({} if batch is None else {"batch": batch})
            request |= {"budget": budget, "planner": planner, "seed": seed}
            parse_request(request)
            items.append(SweepItem(model.name, model.file, digest, request))
    return items


def file_hash(path: Path) -> str:
    """SHA-256 of a model's file. Raises BadUsage above the size limit, OSError."""
    if path.stat().st_size > Limits().document_bytes:
        raise BadUsage(f"{path}: larger than {Limits().document_bytes:,} bytes; use a smaller model", code="too_large")
    with about_file(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
