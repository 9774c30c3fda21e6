"""How much the walks of arena repair may hold near the budget: less and less until addresses fit, then more again.

missed   ─────┬──▶ pair ──▶ misses: both lower
              │
fitting  0 ───┴──▶ pair ──▶ fits: the next lie between it and the least that missed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Bytes near the budget, in budgets for one step, below which the addresses of most plans fit: the first target if the
#: plan holds more than twice as much.
PACKABLE = 2.5
#: The second target of a pair, as a share of the first: with the order given, and with a free one, where walks reach
#: lower targets.
TIGHTER, FREE_TIGHTER = 0.6, 0.3


@dataclass(slots=True)
class NearTargets:
    """The least bytes near the budget whose addresses missed it, the most whose addresses fitted, and the next."""

    missed: int  # summed over steps
    fitting: int  # 0: none yet
    first: int  # target until one is missed
    tighter: float = TIGHTER

    @classmethod
    def of(cls, near_bytes: int, budget_bytes: int, tighter: float = TIGHTER) -> NearTargets:
        """Targets after a plan that holds `near_bytes` near the budget, whose addresses miss it."""
        return cls(near_bytes, 0, min(near_bytes // 2, int(PACKABLE * budget_bytes)), tighter)

    def pair(self) -> tuple[int, int]:
        """The next two targets, the looser one first."""
        if not self.fitting:
            return self.first, int(self.tighter * self.first)
        ratio = self.missed / self.fitting
        return int(self.fitting * ratio ** (2 / 3)), int(self.fitting * ratio ** (1 / 3))

    def loosen(self) -> None:
        """Raise the first target halfway to what missed, on a logarithmic scale: no walk reached the targets."""
        if not self.fitting:
            self.first = math.isqrt(max(1, self.first) * self.missed)

    def update(self, missed: Sequence[int], fitting: Sequence[int]) -> None:
        """Note the targets whose plans missed the budget by their addresses and those that did not.

        Neither is certain: a plan may fit that holds more than one that missed. Then the later call counts, and in one
        call what fitted.
        """
        if missed:
            self.missed = min(missed)
            self.fitting, self.first = min(self.fitting, self.missed), int(self.tighter * self.missed)
        if fitting:
            self.fitting = max(fitting)
            self.missed = max(self.missed, self.fitting)
