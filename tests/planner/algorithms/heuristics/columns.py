"""Problems written down as columns, without a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.problem import ALLOW, BACKWARD, FORWARD, FREE, RESIDENT, TO_LAST_READ, Problem
from tests.planner.drawn import problem_of


@dataclass
class Columns:
    """Collects buffers and tasks; `done()` is the problem."""

    size: list[int] = field(default_factory=list)
    hold: list[int] = field(default_factory=list)
    rows: list[dict[str, object]] = field(default_factory=list)
    overwrites: list[tuple[int, int]] = field(default_factory=list)  # (task, task after its every run)

    def buffer(self, size: int = 1, hold: int = TO_LAST_READ) -> int:
        self.size.append(size)
        self.hold.append(hold)
        return len(self.size) - 1

    def resident(self, size: int = 1) -> int:
        return self.buffer(size, RESIDENT)

    def task(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        *,
        after: Sequence[int] = (),
        phase: int = FORWARD,
        heavy: bool = False,
        recompute: int = ALLOW,
        repeat: int = FREE,
        shapes: Sequence[int] = (),
    ) -> int:
        """Number of a new task; `after` lists tasks it waits for."""
        self.rows.append(
            {
                "reads": list(reads),
                "writes": list(writes),
                "after": list(after),
                "phase": phase,
                "heavy": heavy,
                "recompute": recompute,
                "repeat": repeat,
                "shapes": list(shapes),
            }
        )
        return len(self.rows) - 1

    def gradient(self, reads: Sequence[int], size: int = 1) -> int:
        """Buffer of a new gradient that reads what is given."""
        out = self.buffer(size)
        self.task(reads, [out], phase=BACKWARD)
        return out

    def done(self) -> Problem:
        def column(name: str) -> list[int]:
            return [row[name] for row in self.rows]  # type: ignore[misc]

        return problem_of(
            [row["reads"] for row in self.rows],  # type: ignore[misc]
            [row["writes"] for row in self.rows],  # type: ignore[misc]
            len(self.size),
            shape_reads=[row["shapes"] for row in self.rows],  # type: ignore[misc]
            after_first=[(a, t) for t, row in enumerate(self.rows) for a in row["after"]],  # type: ignore[attr-defined]
            after_every=self.overwrites,
            size=self.size,
            hold=self.hold,
            phase=column("phase"),
            heavy=column("heavy"),
            recompute=column("recompute"),
            repeat=column("repeat"),
        )
