"""What XLA computes in one kernel: ops whose results never reach memory belong to the task that reads them.

    ops   dot ──▶ multiply ──▶ tanh ──▶ add ──▶ reduce          tasks   dot ──▶ reduce
                                                                        (multiply, tanh and add computed inside)

- Reshapes, transposes and names belong to each task that reads them, and one at the end of the step to the task before
  it.
- Elementwise ops belong to the only task that reads them. If they are cheap and read one array of their size, several
  tasks compute them.
- Other ops are tasks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

MAX_OPS, MAX_TASKS = 64, 8  # in a task; that compute one op
Kind = Literal["view", "cheap", "expensive", "reduction", "other"]


class Fusible(Hashable, Protocol):
    """An op: what it reads and writes, each value once."""

    @property
    def reads(self) -> Sequence[Any]: ...

    @property
    def writes(self) -> Sequence[Any]: ...


F = TypeVar("F", bound=Fusible)


class Fusion(Generic[F]):
    """For each op the roots of the tasks that compute it (`homes`); a root is its own."""

    def __init__(
        self,
        ops: Sequence[F],
        held: Collection[Any],
        kind_of: Callable[[F], Kind],
        elements_of: Callable[[Any], int],
        is_broadcast: Callable[[F], bool],
    ):
        """`ops` in an order that can run; values in `held` are results of the step, which always reach memory."""
        self.homes: dict[F, tuple[F, ...]] = {}
        self.kind_of, self.elements_of, self.is_broadcast = kind_of, elements_of, is_broadcast
        self.held = set(held)
        self.sizes: dict[F, int] = {}
        self.generated: dict[F, bool] = {}  # whether kernels of XLA compute all that reads an inlined op
        self.readers: dict[Any, list[F]] = {}
        self.made_by = {value: op for op in ops for value in op.writes}
        for op in ops:
            for value in op.reads:
                self.readers.setdefault(value, []).append(op)
        for op in reversed(ops):
            homes = self._inlined_into(op)
            self.homes[op] = homes or (op,)
            self.generated[op] = kind_of(op) != "other" and (not homes or self._all_generated(op))
            for home in self.homes[op]:
                self.sizes[home] = self.sizes.get(home, 0) + 1

    def members(self) -> dict[F, list[F]]:
        """Root of each task -> the ops that it computes, the root last; roots in the order of `ops`."""
        found: dict[F, list[F]] = {op: [] for op in reversed(self.homes) if op in self.homes[op]}
        for op in reversed(self.homes):
            for home in self.homes[op]:
                found[home].append(op)
        return found

    def _inlined_into(self, op: F) -> tuple[F, ...]:
        """The roots that compute an op; none if it is a root itself."""
        if len(op.writes) != 1 or self.held.intersection(op.writes):
            return ()
        readers, kind = self.readers.get(op.writes[0], []), self.kind_of(op)
        homes = tuple(dict.fromkeys(home for reader in readers for home in self.homes[reader]))
        if len(homes) > MAX_TASKS or any(self.sizes[home] >= MAX_OPS for home in homes):
            return ()
        if kind == "view":
            return homes
        if kind in ("other", "reduction"):
            return homes if len(readers) == 1 and self._is_last_view(readers[0]) else ()
        if not self._all_generated(op):
            return ()
        if len(homes) == 1 or (kind == "cheap" and self._arrays_read(op) <= 1):
            return homes
        return ()

    def _is_last_view(self, reader: F) -> bool:
        return self.homes[reader] == (reader,) and self.kind_of(reader) == "view"

    def _all_generated(self, op: F) -> bool:
        return all(self.generated[reader] for value in op.writes for reader in self.readers.get(value, []))

    def _arrays_read(self, op: F) -> int:
        """Operands as large as the result; what is broadcast to that size counts as small."""
        elements = self.elements_of(op.writes[0])
        large = [value for value in op.reads if self.elements_of(value) >= elements]
        return len([value for value in large if not self._is_made_by_broadcast(value)])

    def _is_made_by_broadcast(self, value: Any) -> bool:
        made = self.made_by.get(value)
        return made is not None and self.is_broadcast(made)
