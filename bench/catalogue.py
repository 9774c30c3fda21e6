"""The instances beside this file: names, documents, budgets and what is best known of each.

Graphs that papers report figures of are not ours to distribute; `find_published` looks for them in a folder of yours.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "instances"
#: Nodes and reads of the published graphs that benchmarks know, as their authors have them.
PUBLISHED = {
    "layered_n250": (250, 944),
    "layered_n500": (500, 2461),
    "layered_n1000": (1000, 5875),
    "fcn8_b32": (73, 149),
    "resnet50_b256": (353, 751),
}
PUBLISHED_VARIABLE = "REMAT_PUBLISHED"
PUBLISHED_DEFAULT = Path(__file__).parents[2] / "shared" / "instances" / "published"
PUBLISHED_SOURCE = (
    "Bartan et al., Moccasin, ICML 2023, and Jain et al., Checkmate, MLSys 2020, from `data` of the repository "
    "haoming-codes/moccasin, licence GPL-3"
)


@dataclass(frozen=True)
class Instance:
    """One recompute instance; seconds are the document's."""

    name: str

    @cached_property
    def bytes(self) -> bytes:
        return (FOLDER / "recompute" / f"{self.name}.json").read_bytes()

    @cached_property
    def _annotations(self) -> dict[str, Any]:
        return dict(json.loads(self.bytes)["annotations"])

    @property
    def budgets(self) -> list[str]:
        """Fractions of the peak without recomputation for which something is known, largest first."""
        return sorted(self._annotations["best_known"], reverse=True)

    @cached_property
    def tasks(self) -> int:
        """Nodes of the document."""
        return len(json.loads(self.bytes)["nodes"])

    @property
    def baseline_peak_bytes(self) -> int:
        return int(self._annotations["no_recompute_peak_bytes"])

    def best_known(self, budget: str) -> float | None:
        """Overhead of the best schedule known in the given order; None where none is."""
        duration = self._known(budget).get("duration")
        return None if duration is None else self._overhead(duration)

    def bound(self, budget: str) -> float | None:
        """Proven lower bound of the overhead of any schedule in the given order."""
        bound = self._known(budget).get("proved_lower_bound")
        return None if bound is None else self._overhead(bound)

    def _known(self, budget: str) -> dict[str, Any]:
        return dict(self._annotations["best_known"].get(budget, {}))

    def _overhead(self, duration: float) -> float:
        return float(duration / self._annotations["no_recompute_seconds"] - 1)


def published_folder(named: Path | None = None) -> Path:
    """The folder to look for published graphs in: `named`, else that of REMAT_PUBLISHED, else the default."""
    from_environment = os.environ.get(PUBLISHED_VARIABLE)
    return named or (Path(from_environment) if from_environment else PUBLISHED_DEFAULT)


def find_published(folder: Path) -> dict[str, Path]:
    """Name -> file of the published graphs in the folder; empty where it does not exist."""
    return {name: path for name in PUBLISHED if (path := folder / f"{name}.json").is_file()}


@cache
def read_published(path: Path) -> bytes:
    """The document of a published graph; raises ValueError where its size is not that of the authors' graph."""
    document = path.read_bytes()
    nodes = json.loads(document)["nodes"]
    size, expected = (len(nodes), sum(len(node["inputs"]) for node in nodes)), PUBLISHED[path.stem]
    if size != expected:
        raise ValueError(f"{path}: {size[0]} nodes and {size[1]} reads; the published graph has {expected}")
    return document


def instances() -> list[Instance]:
    """All recompute instances, smallest file first."""
    return [
        Instance(path.stem) for path in sorted((FOLDER / "recompute").glob("*.json"), key=lambda p: p.stat().st_size)
    ]
