"""The instances beside this file: names, documents, budgets and what is best known of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "instances"


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


def published(name: str) -> bytes:
    """The document of a graph that others have published figures of, in their order; nothing is known of it here."""
    return (FOLDER / "published" / f"{name}.json").read_bytes()


def instances() -> list[Instance]:
    """All recompute instances, smallest file first."""
    return [
        Instance(path.stem) for path in sorted((FOLDER / "recompute").glob("*.json"), key=lambda p: p.stat().st_size)
    ]
