"""Whether claims of bounds are proven: `python certificate.py FILE`. Uses the standard library, and nothing of ours.

A file holds the columns of a problem (see concepts/bounds.md) and claims: no legal sequence of tasks takes fewer than
`value` ticks within a budget, or none peaks below `value` bytes. A proof names moments: the first runs of tasks
w(0), w(1), ..., which come one after the other in every sequence. A sequence then fixes numbers that are 0 or 1,

    D(k, t)     t has run before moment k                    L(k, b)   at moment k a copy of b is there that is needed
    A(j, k, t)  t runs between j (included) and k; the last window ends with the sequence

and between them, with M the sum of A(j, k, u) over all u that write b, this holds:

    read    L(j, b) + M ≥ A(j, k, t)   for b that t reads         first   A(j, k, t) ≥ D(k, t) - D(j, t)
    carry   L(j, b) + M ≥ L(k, b)                                 part    A(j, k, t) ≥ A(inner window, t)
    before  D(k, t) ≥ D(k, u)          where t runs before u      stays   D(k + 1, t) ≥ D(k, t)
    again   runs of t between j and k, its first one left out ≥ A(j, k, t) - D(k, t) + D(j, t)
    price   budget ≥ bytes of residents, outputs and workspace at moment k, and of every b with L(k, b)

A proof weighs these with integers ≥ 0. The weighted sum is linear in the numbers, and its least value over all of
them between 0 and 1 is a bound, however the weights were found. A proof may branch: a number is 0, or it is 1. Or its
moments are those of tasks of which one runs first, whichever: it has a proof for each, where the others are to come.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

FORMAT = "remat-certificate/1"
NEVER, FORBID, DEVICE, TO_LAST_READ, RESIDENT = 1, 1, 0, 0, 3  # in the columns `repeat`, `recompute`, `space`, `hold`
Number = tuple[Any, ...]  # ("D", k, t), ("L", k, b) or ("A", j, k, t)


class CertificateRejected(Exception):
    """A claim is not proven."""


def verify(document: dict[str, Any]) -> list[str]:
    """What has been proven, in words, claim by claim. Raises Refused with the reason."""
    try:
        if document["format"] != FORMAT:
            raise CertificateRejected(f"the format is {document['format']!r}, not {FORMAT}")
        columns = _ProblemColumns(document["problem"])
        return [_verified(columns, claim) for claim in document["claims"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CertificateRejected(f"this is no certificate: {type(error).__name__}: {error}") from error


def proven_value(problem: dict[str, Any], claim: dict[str, Any]) -> int:
    """The largest value that the proof of the claim shows. Raises Refused."""
    return _proven(_ProblemColumns(problem), claim)


def _proven(columns: _ProblemColumns, claim: dict[str, Any]) -> int:
    if claim["of"] == "peak":
        return _least(columns, claim, None) if claim["moments"] else columns.held_at_end()
    if claim["of"] != "cost":
        raise CertificateRejected(f"a bound of {claim['of']!r}; there are bounds of cost and of peak")
    once = int(sum(cost for cost, optional in zip(columns.cost, columns.optional, strict=True) if not optional))
    return once + (_least(columns, claim, _weight(claim["budget_bytes"])) if claim["moments"] else 0)


def _least(columns: _ProblemColumns, claim: dict[str, Any], budget: int | None) -> int:
    """What the proof shows of its moments, or of whichever comes first."""
    tasks, proof = claim["moments"], claim["proof"]
    if "first_of" not in proof:
        return _StepProof(columns, claim, tasks).least(proof, budget)
    sides = zip(tasks, proof["first_of"], strict=True)
    return min(_StepProof(columns, claim, [w], tasks).least(side, budget) for w, side in sides)


def _verified(columns: _ProblemColumns, claim: dict[str, Any]) -> str:
    of, value, order, phases = claim["of"], claim["value"], claim["order"], claim["phases"]
    if order not in ("free", "given") or phases not in ("strict", "mixed"):
        raise CertificateRejected("the order is free or given, phases are strict or mixed")
    under = f"order {order}, phases {phases}" + ("" if claim["repeats"] else ", every task once")
    if _weight(value) > (most := _proven(columns, claim)):
        raise CertificateRejected(f"{value} is claimed, {most} is proven")
    if of == "peak":
        return f"no sequence peaks below {value} bytes ({under})"
    within = f" within {claim['budget_bytes']} bytes" if claim["moments"] else ""
    return f"no sequence{within} takes fewer than {value} ticks ({under})"


def _weight(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise CertificateRejected(f"{value!r} is no integer of at least 0")
    return value


class _ProblemColumns:
    """The problem, as the least of what its alternatives need, and what follows from it."""

    def __init__(self, problem: dict[str, Any]):
        self.cost, self.workspace, self.reads = (list(problem[name]) for name in ("cost", "workspace", "reads"))
        self.writes, self.takeover, self.optional = problem["writes"], problem["takeover"], problem["optional"]
        self.phase, self.hold, self.space = problem["phase"], problem["hold"], problem["space"]
        self.tasks, self.size, self.after_every = len(self.cost), list(problem["size"]), problem["after_every"]
        self.writers: list[list[int]] = [[] for _ in self.size]  # ascending: the producer first
        for t, row in enumerate(self.writes):
            for b in row:
                self.writers[b].append(t)
        self._relax(problem["choices"])
        device = [size if space == DEVICE else 0 for size, space in zip(self.size, self.space, strict=True)]
        self.bytes = [0 if hold == RESIDENT else size for size, hold in zip(device, self.hold, strict=True)]
        self.always = sum(device) - sum(self.bytes)
        # A task that overwrites what it reads does not give the same again.
        self.once = [
            repeat == NEVER or recompute == FORBID or not set(reads).isdisjoint(writes)
            for repeat, recompute, reads, writes in zip(
                problem["repeat"], problem["recompute"], self.reads, self.writes, strict=True
            )
        ]
        self.shape_reads, self.after_first = problem["shape_reads"], problem["after_first"]

    @cached_property
    def precedence(self) -> tuple[list[list[int]], list[list[int]]]:
        """Of each task those whose first run follows its own, and those whose first run precedes it, in any order."""
        following: list[list[int]] = [[] for _ in self.cost]
        for u in range(self.tasks):
            read = [b for b in (*self.reads[u], *self.shape_reads[u]) if self.hold[b] != RESIDENT]
            for t in {self.writers[b][0] for b in (*read, *self.writes[u]) if self.writers[b]} - {u}:
                following[t].append(u)
            if not self.optional[u]:
                following[u].extend((*self.after_every[u], *self.after_first[u]))
        preceding: list[list[int]] = [[] for _ in self.cost]
        for t, row in enumerate(following):
            for u in row:
                preceding[u].append(t)
        return following, preceding

    def _relax(self, choices: list[dict[str, Any]]) -> None:
        """Least cost, workspace and size, the reads of all; what takes over under some of them only has no bytes."""
        sized = {b for row in choices for b, _ in row["buffers"]}
        changed = {t for row in choices for t, *_ in row["tasks"]}
        for b, sources in enumerate(self.takeover):
            if sources and not (sized.isdisjoint([b, *sources]) and changed.isdisjoint(self.writers[b])):
                self.size[b] = 0
        for row in choices:
            for t, cost, workspace, reads in row["tasks"]:
                self.cost[t], self.workspace[t] = min(self.cost[t], cost), min(self.workspace[t], workspace)
                self.reads[t] = [b for b in self.reads[t] if b in reads]
            for b, size in row["buffers"]:
                self.size[b] = min(self.size[b], size)

    def held(self, b: int) -> bool:
        """A copy of b is there when the sequence ends, beside residents."""
        made = not self.writers[b] or not self.optional[self.writers[b][0]]
        return made and self.hold[b] not in (TO_LAST_READ, RESIDENT)

    def held_at_end(self) -> int:
        """Bytes when the last step ends; a sequence of no steps has residents alone."""
        return self.always + (0 if all(self.optional) else sum(s for b, s in enumerate(self.bytes) if self.held(b)))

    def made_at(self, task: int) -> int:
        """Bytes of outputs and workspace, less what outputs may take over: each one input, each input once."""
        by_output, by_input = 0, dict.fromkeys(self.reads[task], 0)
        for b in self.writes[task]:
            fitting = [
                s
                for s in self.takeover[b]
                if s in by_input
                and self.hold[s] != RESIDENT
                and self.space[s] == self.space[b]
                and self.size[s] >= self.size[b]
            ]
            by_output += self.bytes[b] if fitting else 0
            for s in fitting:
                by_input[s] = max(by_input[s], self.bytes[b])
        outputs = sum(self.bytes[b] for b in self.writes[task])
        return int(outputs + self.workspace[task] - min(by_output, sum(by_input.values())))


class _StepProof:
    """The moments of a proof, and the sum of what it weighs. `undone`: tasks that have not run at any of them."""

    def __init__(self, columns: _ProblemColumns, claim: dict[str, Any], moments: list[int], undone: Sequence[int] = ()):
        self.columns, self.moments, self.repeats, self.undone = columns, moments, claim["repeats"], undone
        self.order, self.phases, self.end = claim["order"], claim["phases"], len(moments)
        for w in self.moments:
            if not 0 <= w < columns.tasks or columns.optional[w]:
                raise CertificateRejected(f"the moment of task {w}, which need not run")
        for k in range(1, self.end):
            if self.done[k].get(self.moments[k - 1]) != 1 or self.done[k - 1].get(self.moments[k]) != 0:
                raise CertificateRejected(f"task {self.moments[k - 1]} need not run before task {self.moments[k]}")

    @cached_property
    def done(self) -> list[dict[int, int]]:
        """D of the tasks of which it is certain, at each moment and at the end."""
        end = {t: 1 for t, optional in enumerate(self.columns.optional) if not optional}
        return [*map(self._known, self.moments), end]

    def _known(self, task: int) -> dict[int, int]:
        columns = self.columns
        if self.order == "given":
            return {t: int(t < task) for t in range(columns.tasks) if t >= task or not columns.optional[t]}
        following, preceding = columns.precedence
        done = dict.fromkeys(_reached(preceding, task), 1)
        if self.phases == "strict":
            now = columns.phase[task]
            both = zip(columns.phase, columns.optional, strict=True)
            done |= {t: int(p < now) for t, (p, optional) in enumerate(both) if p > now or (p < now and not optional)}
        return done | dict.fromkeys(_reached(following, task, *self.undone), 0)

    def least(self, proof: dict[str, Any], budget: int | None, fixed: dict[Number, int] | None = None) -> int:
        """Ticks of repeats within the budget, or without one bytes, that the proof shows."""
        fixed = fixed or {}
        if "branch" in proof:
            sides = ((proof["zero"], 0), (proof["one"], 1))
            return min(self.least(side, budget, {**fixed, tuple(proof["branch"]): value}) for side, value in sides)
        price, parts = [_weight(y) for y in proof["price"]], 0 if budget is None else _weight(proof["parts"])
        if len(price) != self.end or not (per := sum(price) if budget is None else parts):
            raise CertificateRejected(
                "there is one price a moment, and not all of them and not the parts of a tick are 0"
            )
        self.sum: dict[Number, int] = {}
        total = 0
        for k, w in enumerate(self.moments):
            total += price[k] * (self.columns.always + self.columns.made_at(w) - (budget or 0))
            for b, size in enumerate(self.columns.bytes if price[k] else []):
                self._add(price[k] * size, "L", k, b)
        for window in proof["windows"]:
            self._weigh_window(window["from"], window["to"], window)
        self._limit(proof["windows"], parts)
        for k, t, u, y in proof.get("before", []):
            if t not in self.columns.precedence[1][u]:
                raise CertificateRejected(f"task {t} need not run before task {u}")
            self._add(-_weight(y), "D", k, t)
            self._add(y, "D", k, u)
        for k, t, y in proof.get("stays", []):
            self._add(-_weight(y), "D", k + 1, t)
            self._add(y, "D", k, t)
        for number, weight in self.sum.items():
            low, high = self._range(number)
            if low <= (value := fixed.get(number, -1)) <= high:
                low = high = value
            total += weight * (low if weight > 0 else high)
        return -(-total // per)

    def _add(self, weight: int, *number: Any) -> None:
        self.sum[number] = self.sum.get(number, 0) + weight

    def _weigh_window(self, j: int, k: int, window: dict[str, Any]) -> None:
        if not 0 <= j < k <= self.end:
            raise CertificateRejected(
                f"window {j} to {k}: there are moments 0 to {self.end - 1}, and {self.end} is the end"
            )
        for t, b, y in window.get("read", []):
            if b not in self.columns.reads[t]:
                raise CertificateRejected(f"task {t} does not read buffer {b}")
            self._there(j, k, b, _weight(y))
            self._add(y, "A", j, k, t)
        for b, y in window.get("carry", []):
            self._there(j, k, b, _weight(y))
            self._add(y, "L", k, b)
        for t, y in window.get("first", []):
            self._more(j, k, t, -_weight(y))
        for t, y in window.get("again", []):
            self._more(j, k, t, _weight(y))
            if self.columns.optional[t]:  # its first run costs more as well
                self._add(y, "D", k, t)
                self._add(-y, "D", j, t)
        for inner, to, t, y in window.get("part", []):
            if not j <= inner < to <= k:
                raise CertificateRejected(f"window {inner} to {to} is no part of {j} to {k}")
            self._add(-_weight(y), "A", j, k, t)
            self._add(y, "A", inner, to, t)

    def _there(self, j: int, k: int, b: int, weight: int) -> None:
        """L(j, b) and all that write b in the window, taken off."""
        if self.columns.hold[b] == RESIDENT:
            raise CertificateRejected(f"buffer {b} is resident: it is there whoever writes it")
        self._add(-weight, "L", j, b)
        for u in self.columns.writers[b]:
            self._add(-weight, "A", j, k, u)

    def _more(self, j: int, k: int, t: int, weight: int) -> None:
        """A(j, k, t) - D(k, t) + D(j, t)."""
        self._add(weight, "A", j, k, t)
        self._add(-weight, "D", k, t)
        self._add(weight, "D", j, t)

    def _once(self, t: int) -> bool:
        return self.columns.once[t] or not self.repeats

    def _limit(self, windows: list[dict[str, Any]], parts: int) -> None:
        """No run may be weighed with more than it costs; one that never is has no limit."""
        spent: dict[tuple[int, int], int] = {}
        for window in windows:
            for t, y in window.get("again", []):
                if self.columns.optional[t] or not self._once(t):
                    for k in range(window["from"], window["to"]):
                        spent[k, t] = spent.get((k, t), 0) + y
        for (_, t), weight in spent.items():
            if weight > parts * self.columns.cost[t]:
                raise CertificateRejected(f"repeats of task {t} are weighed with more than their cost")

    def _range(self, number: Number) -> tuple[int, int]:
        """What the number can be: 0, 1 or either. Raises Refused for one that there is not."""
        kind, *window, i = number
        if not 0 <= i < (len(self.columns.bytes) if kind == "L" else self.columns.tasks) or min(window) < 0:
            raise CertificateRejected(f"number {number}, which there is not")
        if kind == "A":
            before, after = (self.done[k].get(i) for k in window)
            if before == 0 and after == 1:
                return 1, 1
            done = self.done[window[0]]
            late = any(done.get(u) == 1 for u in self.columns.after_every[i])
            return 0, int(after != 0 and not (self._once(i) and before == 1) and not late)
        (k,) = window
        if kind == "D":
            value = self.done[k].get(i)
            return (0, 1) if value is None else (value, value)
        there = self.columns.held(i) if k == self.end else i in self.columns.reads[self.moments[k]]
        return (1, 1) if there else (0, 1)


def _reached(rows: list[list[int]], *tasks: int) -> set[int]:
    seen, waiting = {*tasks}, [*tasks]
    while waiting:
        new = [t for t in rows[waiting.pop()] if t not in seen]
        seen.update(new)
        waiting.extend(new)
    return seen


def main(path: str) -> int:
    """0 when the file's claims are proven, else 1; what was found of each is printed."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    try:
        for said in verify(document):
            print("accepted:", said)
    except CertificateRejected as reason:
        print("refused:", reason)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
