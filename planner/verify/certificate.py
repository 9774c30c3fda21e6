"""Stand-alone verifier of lower-bound certificates: `python certificate.py FILE`. Imports the standard library only.

A file holds the columns of a problem (see concepts/bounds.md) and claims: no legal sequence of tasks takes fewer than
`value` ticks within a budget, or none peaks below `value` bytes. A proof cuts the sequence at steps ("moments" in the
file): the first runs of tasks w(0), w(1), ..., in an order that holds in every sequence. A sequence then fixes 0/1
variables,

    D(k, t)     t has run before step k                      L(k, b)   a live copy of b is needed at or after step k
    A(j, k, t)  t runs between step j (included) and step k; the last window ends with the sequence

which satisfy these inequalities, with M the sum of A(j, k, u) over all u that write b:

    read    L(j, b) + M ≥ A(j, k, t)   for b that t reads         first   A(j, k, t) ≥ D(k, t) - D(j, t)
    carry   L(j, b) + M ≥ L(k, b)                                 part    A(j, k, t) ≥ A(inner window, t)
    before  D(k, t) ≥ D(k, u)          where t runs before u      stays   D(k + 1, t) ≥ D(k, t)
    again   recomputations of t between j and k ≥ A(j, k, t) - D(k, t) + D(j, t)
    price   budget ≥ bytes of residents, outputs and workspace at step k, and of every b with L(k, b)

A proof gives each inequality a multiplier, an integer ≥ 0 (weak duality). The weighted sum is linear in the variables,
and its minimum over 0 ≤ x ≤ 1 is a bound for any multipliers. With a "grain" of g bytes, "price" counts whole grains,
and "rounded" has further rows of prices, each in its grain: each size is rounded down to grains, and so is what the
bytes of fixed variables leave of the budget, which whole variables cannot exceed then (Chvátal, "Edmonds polytopes and
a hierarchy of combinatorial problems", 1973). A proof may branch on a variable: one proof for 0, one for 1. With
"first_of", the steps belong to a set of tasks one of which runs first: one proof for each task, under the condition
that the others have not run.

With an "alignment", the budget limits an arena, from address 0 to the end of its last byte, in which every address is a
multiple of the alignment. Each storage then takes its size rounded up, and all together the budget rounded up, because
only the last storage may end at any byte.

A claim of kind "makespan" is about engines side by side, each of which runs one task at a time: no sequence ends before
the busiest engine has run its tasks once, or before the longest chain of tasks that read what the task before writes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

FORMAT = "remat-certificate/1"
MAKESPAN = "makespan"  # kind of a claim about engines side by side
NEVER, FORBID, DEVICE, TO_LAST_READ, RESIDENT = 1, 1, 0, 0, 3  # in the columns `repeat`, `recompute`, `space`, `hold`
CHECKED_EVERY = 5_000  # rows between two calls of `check`
Variable = tuple[Any, ...]  # ("D", k, t), ("L", k, b) or ("A", j, k, t)
T = TypeVar("T")


class CertificateRejected(Exception):
    """The document is invalid, or a claim is not proven."""


def no_check() -> None:
    """The check of a verification that nothing ends early."""


def verify(document: dict[str, Any], check: Callable[[], None] = no_check) -> list[str]:
    """One sentence per proven claim. Raises CertificateRejected with the reason.

    `check` is called every few thousand rows and may raise to end the verification; no claim is proven then.
    """
    try:
        if document["format"] != FORMAT:
            raise CertificateRejected(f"unsupported format {document['format']!r}; expected {FORMAT}")
        if not document["claims"]:
            raise CertificateRejected("no claims in it")
        problem, known = document["problem"], dict[int, _ProblemColumns]()
        for claim in document["claims"]:
            if (alignment := _alignment(claim)) not in known:
                known[alignment] = _ProblemColumns(problem, alignment, check)
        return [_verified(known[_alignment(claim)], claim) for claim in document["claims"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        found = f"no {error} in it" if isinstance(error, KeyError) else "a part of the wrong form"
        raise CertificateRejected(f"not a certificate: {found}") from error


def proven_value(problem: dict[str, Any], claim: dict[str, Any]) -> int:
    """The largest value that the proof of the claim supports. Raises CertificateRejected."""
    return _proven(_ProblemColumns(problem, _alignment(claim)), claim)


def _alignment(claim: dict[str, Any]) -> int:
    """The alignment of addresses in bytes; 1 for a claim about the bytes that are live at once."""
    alignment = _weight(claim.get("alignment", 1))
    if not alignment or (alignment > 1 and claim["of"] != "cost"):
        raise CertificateRejected(f"alignment {alignment}: give a claim on the cost one of at least 1 byte")
    return alignment


def _proven(columns: _ProblemColumns, claim: dict[str, Any]) -> int:
    if claim["of"] == "peak":
        return _minimum(columns, claim, None) if claim["moments"] else columns.held_at_end()
    if claim["of"] != "cost":
        raise CertificateRejected(f"unknown bound {claim['of']!r}; use 'cost' or 'peak'")
    if claim["kind"] == MAKESPAN:
        return columns.makespan()
    once = int(sum(cost for cost, optional in zip(columns.cost, columns.optional, strict=True) if not optional))
    extra = _minimum(columns, claim, columns.rounded(_weight(claim["budget_bytes"]))) if claim["moments"] else 0
    ticks = once + extra
    return -(-ticks // columns.quantum) * columns.quantum


def _minimum(columns: _ProblemColumns, claim: dict[str, Any], budget: int | None) -> int:
    """Ticks of recomputation within the budget, or bytes if it is None, that the proof supports."""
    tasks, proof = claim["moments"], claim["proof"]
    if "first_of" not in proof:
        return _StepProof(columns, claim, tasks).minimum(proof, budget)
    sides = zip(tasks, proof["first_of"], strict=True)
    return min(_StepProof(columns, claim, [w], tasks).minimum(side, budget) for w, side in sides)


def _verified(columns: _ProblemColumns, claim: dict[str, Any]) -> str:
    of, value, order, phases = claim["of"], claim["value"], claim["order"], claim["phases"]
    if order not in ("free", "given") or phases not in ("strict", "mixed"):
        raise CertificateRejected("order must be 'free' or 'given', phases 'strict' or 'mixed'")
    under = f"order {order}, phases {phases}" + ("" if claim["repeats"] else ", every task once")
    if _weight(value) > (proven := _proven(columns, claim)):
        raise CertificateRejected(f"{value} is claimed, {proven} is proven")
    if of == "peak":
        return f"no sequence peaks below {value:,} bytes ({under})"
    if claim["kind"] == MAKESPAN:
        return f"no sequence takes fewer than {value} ticks on engines side by side ({under})"
    aligned = "" if _alignment(claim) == 1 else f" of addresses that are multiples of {_alignment(claim)}"
    within = f" within {claim['budget_bytes']:,} bytes{aligned}" if claim["moments"] else ""
    return f"no sequence{within} takes fewer than {value} ticks ({under})"


def _weight(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise CertificateRejected(f"{value!r} is not an integer >= 0")
    return value


class _ProblemColumns:
    """Columns of the problem, relaxed over its alternatives (minimum of each), and derived columns.

    Sizes are rounded up to multiples of the alignment.
    """

    def __init__(self, problem: dict[str, Any], alignment: int = 1, check: Callable[[], None] = no_check):
        self.alignment, self.check = alignment, check
        self.cost, self.workspace, self.reads = (list(problem[name]) for name in ("cost", "workspace", "reads"))
        self.writes, self.takeover, self.optional = problem["writes"], problem["takeover"], problem["optional"]
        self.phase, self.hold, self.space = problem["phase"], problem["hold"], problem["space"]
        self.tasks, self.size, self.after_every = len(self.cost), list(problem["size"]), problem["after_every"]
        self.writers: list[list[int]] = [[] for _ in self.size]  # ascending: the producer first
        for t, row in enumerate(self.checked(self.writes)):
            for b in row:
                self.writers[b].append(t)
        changed = [cost for row in problem["choices"] for _, cost, *_ in row["tasks"]]
        self.quantum = math.gcd(*self.cost, *changed) or 1  # the cost of every sequence is a multiple of it
        self._relax(problem["choices"])
        self.workspace, self.size = (list(map(self.rounded, sizes)) for sizes in (self.workspace, self.size))
        device = [size if space == DEVICE else 0 for size, space in zip(self.size, self.space, strict=True)]
        self.bytes = [0 if hold == RESIDENT else size for size, hold in zip(device, self.hold, strict=True)]
        self.always = sum(device) - sum(self.bytes)
        # A task that overwrites its input does not reproduce its result.
        self.once = [
            repeat == NEVER or recompute == FORBID or not set(reads).isdisjoint(writes)
            for repeat, recompute, reads, writes in self.checked(
                zip(problem["repeat"], problem["recompute"], self.reads, self.writes, strict=True)
            )
        ]
        self.shape_reads, self.after_first = problem["shape_reads"], problem["after_first"]
        self.engine = problem.get("engine", [])

    def checked(self, rows: Iterable[T]) -> Iterator[T]:
        """The rows, with a call of `check` every few thousand."""
        for number, row in enumerate(rows):
            if not number % CHECKED_EVERY:
                self.check()
            yield row

    def makespan(self) -> int:
        """Ticks of the busiest engine, or of the longest chain. The second writer of a storage may end first."""
        busy: dict[int, int] = {}
        start, longest = [0] * self.tasks, 0
        for t, (engine, optional) in enumerate(zip(self.engine, self.optional, strict=True)):
            for b in self.reads[t]:
                first = self.writers[b][0] if self.writers[b] and self.hold[b] != RESIDENT else t
                if first < t:
                    end = start[first] + (self.cost[first] if len(self.writers[b]) == 1 else 0)
                    start[t] = max(start[t], end)
            if not optional:
                busy[engine] = busy.get(engine, 0) + self.cost[t]
                longest = max(longest, start[t] + self.cost[t])
        return max([*busy.values(), longest], default=0)

    @cached_property
    def precedence(self) -> tuple[list[list[int]], list[list[int]]]:
        """(successors, predecessors) of each task, by first runs, in every legal order."""
        following: list[list[int]] = [[] for _ in self.cost]
        for u in self.checked(range(self.tasks)):
            read = [b for b in (*self.reads[u], *self.shape_reads[u]) if self.hold[b] != RESIDENT]
            for t in {self.writers[b][0] for b in (*read, *self.writes[u]) if self.writers[b]} - {u}:
                following[t].append(u)
            if not self.optional[u]:
                following[u].extend((*self.after_every[u], *self.after_first[u]))
        preceding: list[list[int]] = [[] for _ in self.cost]
        for t, row in enumerate(self.checked(following)):
            for u in row:
                preceding[u].append(t)
        return following, preceding

    def _relax(self, choices: list[dict[str, Any]]) -> None:
        """Minimum cost, workspace and size; the shared reads; size 0 for a takeover that depends on a choice."""
        sized = {b for row in choices for b, _ in row["buffers"]}
        changed = {t for row in choices for t, *_ in row["tasks"]}
        for b, sources in enumerate(self.checked(self.takeover)):
            if sources and not (sized.isdisjoint([b, *sources]) and changed.isdisjoint(self.writers[b])):
                self.size[b] = 0
        for row in choices:
            for t, cost, workspace, reads in row["tasks"]:
                self.cost[t], self.workspace[t] = min(self.cost[t], cost), min(self.workspace[t], workspace)
                self.reads[t] = [b for b in self.reads[t] if b in reads]
            for b, size in row["buffers"]:
                self.size[b] = min(self.size[b], size)

    def rounded(self, size: int) -> int:
        """Bytes rounded up to a multiple of the alignment."""
        return -(-size // self.alignment) * self.alignment

    def held(self, b: int) -> bool:
        """Whether b, not resident, is live when the sequence ends."""
        exists = not self.writers[b] or not self.optional[self.writers[b][0]]
        return exists and self.hold[b] not in (TO_LAST_READ, RESIDENT)

    def held_at_end(self) -> int:
        """Bytes live when the last step ends; residents only for an empty sequence."""
        return self.always + (0 if all(self.optional) else sum(s for b, s in enumerate(self.bytes) if self.held(b)))

    def output_bytes(self, task: int) -> int:
        """Bytes of outputs and workspace, less takeovers: each output may reuse one input, each input once."""
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
    """The steps of a proof and the weighted sum of its inequalities. `undone`: tasks that no step has run yet."""

    def __init__(self, columns: _ProblemColumns, claim: dict[str, Any], steps: list[int], undone: Sequence[int] = ()):
        self.columns, self.steps, self.repeats, self.undone = columns, steps, claim["repeats"], undone
        self.order, self.phases, self.end = claim["order"], claim["phases"], len(steps)
        self.ranges = dict[Variable, tuple[int, int]]()  # in all branches
        self.live = dict[int, tuple[int, list[tuple[Variable, int]]]]()
        for w in self.steps:
            if not 0 <= w < columns.tasks or columns.optional[w]:
                raise CertificateRejected(f"step at the first run of task {w}, which is unknown or optional")
        for k in range(1, self.end):
            if self.done[k].get(self.steps[k - 1]) != 1 or self.done[k - 1].get(self.steps[k]) != 0:
                raise CertificateRejected(
                    f"steps {k - 1} and {k}: task {self.steps[k - 1]} need not run before task {self.steps[k]}"
                )

    @cached_property
    def done(self) -> list[dict[int, int]]:
        """The fixed variables D by task, at each step and at the end."""
        end = {t: 1 for t, optional in enumerate(self.columns.optional) if not optional}
        return [*map(self._known, self.steps), end]

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

    def minimum(self, proof: dict[str, Any], budget: int | None, fixed: dict[Variable, int] | None = None) -> int:
        """Ticks of recomputation within the budget, or bytes if it is None, that the proof supports."""
        fixed = fixed or {}
        if "branch" in proof:
            sides = ((proof["zero"], 0), (proof["one"], 1))
            return min(self.minimum(side, budget, {**fixed, tuple(proof["branch"]): value}) for side, value in sides)
        rows, parts = [proof, *proof.get("rounded", [])], 0 if budget is None else _weight(proof["parts"])
        prices = [[_weight(y) for y in row["price"]] for row in rows]
        per = sum(prices[0]) if budget is None else parts
        if budget is None and (len(rows) > 1 or proof.get("grain", 1) != 1):
            raise CertificateRejected("a claim on the peak counts bytes, not grains")
        if any(len(price) != self.end for price in prices) or not per:
            raise CertificateRejected("give one price per step; the prices or the parts of a tick must not all be 0")
        self.sum: dict[Variable, int] = {}
        total = 0
        for price, row in zip(prices, rows, strict=True):
            total += self._weigh_memory(price, budget, row.get("grain", 1), fixed)
        for window in proof["windows"]:
            self._weigh_window(window["from"], window["to"], window)
        self._limit(proof["windows"], parts)
        self._weigh_done(proof)
        for variable, weight in self.columns.checked(self.sum.items()):
            low, high = self.ranges.get(variable) or self._range(variable)
            if low < high and variable in fixed:
                low = high = fixed[variable]
            total += weight * (low if weight > 0 else high)
        return -(-total // per)

    def _weigh_memory(self, price: list[int], budget: int | None, grain: int, fixed: dict[Variable, int]) -> int:
        """Add the inequalities "price", in grains; returns their weighted constants."""
        if not _weight(grain):
            raise CertificateRejected("a grain of 0 bytes")
        total = 0
        for k, (w, weight) in enumerate(zip(self.steps, price, strict=True)):
            if not weight:
                continue
            room = (budget or 0) - self.columns.always - self.columns.output_bytes(w)
            live, undecided = self._live(k)
            for variable, size in self.columns.checked(undecided):
                if (value := fixed.get(variable)) is None:
                    self._add(weight * (size // grain), variable)
                else:
                    live += size * value
            total -= weight * ((room - live) // grain)
        return total

    def _live(self, k: int) -> tuple[int, list[tuple[Variable, int]]]:
        """(bytes live in all branches, variables and bytes of buffers live in some) at a step."""
        if k not in self.live:
            sizes = enumerate(self.columns.checked(self.columns.bytes))
            ranges = [(("L", k, b), size, self._range_of_all(("L", k, b))) for b, size in sizes]
            always = sum(size * low for _, size, (low, high) in ranges if low == high)
            self.live[k] = always, [(variable, size) for variable, size, (low, high) in ranges if low < high]
        return self.live[k]

    def _weigh_done(self, proof: dict[str, Any]) -> None:
        """Add the inequalities "before" and "stays"."""
        for k, t, u, y in self.columns.checked(proof.get("before", [])):
            if t not in self.columns.precedence[1][u]:
                raise CertificateRejected(f"task {t} need not run before task {u}")
            self._add(-_weight(y), ("D", k, t))
            self._add(y, ("D", k, u))
        for k, t, y in self.columns.checked(proof.get("stays", [])):
            self._add(-_weight(y), ("D", k + 1, t))
            self._add(y, ("D", k, t))

    def _add(self, weight: int, variable: Variable) -> None:
        self.sum[variable] = self.sum.get(variable, 0) + weight

    def _weigh_window(self, j: int, k: int, window: dict[str, Any]) -> None:
        if not 0 <= j < k <= self.end:
            raise CertificateRejected(
                f"invalid window {j} to {k}: steps are 0 to {self.end - 1}, and {self.end} is the end"
            )
        for t, b, y in self.columns.checked(window.get("read", [])):
            if b not in self.columns.reads[t]:
                raise CertificateRejected(f"task {t} does not read buffer {b}")
            self._subtract_available(j, k, b, _weight(y))
            self._add(y, ("A", j, k, t))
        for b, y in self.columns.checked(window.get("carry", [])):
            self._subtract_available(j, k, b, _weight(y))
            self._add(y, ("L", k, b))
        for t, y in self.columns.checked(window.get("first", [])):
            self._add_recomputation(j, k, t, -_weight(y))
        for t, y in self.columns.checked(window.get("again", [])):
            self._add_recomputation(j, k, t, _weight(y))
            if self.columns.optional[t]:  # the first run of an optional task is extra cost too
                self._add(y, ("D", k, t))
                self._add(-y, ("D", j, t))
        for inner, to, t, y in self.columns.checked(window.get("part", [])):
            if not j <= inner < to <= k:
                raise CertificateRejected(f"window {inner} to {to} is not inside {j} to {k}")
            self._add(-_weight(y), ("A", j, k, t))
            self._add(y, ("A", inner, to, t))

    def _subtract_available(self, j: int, k: int, b: int, weight: int) -> None:
        """Subtract L(j, b) + M of the window, times the weight."""
        if self.columns.hold[b] == RESIDENT:
            raise CertificateRejected(f"buffer {b} is resident: reads of it need no live copy")
        self._add(-weight, ("L", j, b))
        for u in self.columns.writers[b]:
            self._add(-weight, ("A", j, k, u))

    def _add_recomputation(self, j: int, k: int, t: int, weight: int) -> None:
        """Add A(j, k, t) - D(k, t) + D(j, t), times the weight."""
        self._add(weight, ("A", j, k, t))
        self._add(-weight, ("D", k, t))
        self._add(weight, ("D", j, t))

    def _once(self, t: int) -> bool:
        return self.columns.once[t] or not self.repeats

    def _limit(self, windows: list[dict[str, Any]], parts: int) -> None:
        """Check dual feasibility: the multipliers of a task's recomputations sum to at most its cost.

        A task that is never recomputed has no limit.
        """
        spent: dict[tuple[int, int], int] = {}
        for window in windows:
            for t, y in self.columns.checked(window.get("again", [])):
                if self.columns.optional[t] or not self._once(t):
                    for k in range(window["from"], window["to"]):
                        spent[k, t] = spent.get((k, t), 0) + y
        for (_, t), weight in spent.items():
            if weight > parts * self.columns.cost[t]:
                raise CertificateRejected(f"multipliers for recomputing task {t} exceed its cost")

    def _range(self, variable: Variable) -> tuple[int, int]:
        """Bounds of a variable in all branches: (0, 0), (1, 1) or (0, 1)."""
        bounds = self.ranges[variable] = self._range_of_all(variable)
        return bounds

    def _range_of_all(self, variable: Variable) -> tuple[int, int]:
        """Bounds of a variable in all branches. Raises CertificateRejected for an unknown variable."""
        kind, *window, i = variable
        if not 0 <= i < (len(self.columns.bytes) if kind == "L" else self.columns.tasks) or min(window) < 0:
            raise CertificateRejected(f"unknown variable {variable}")
        if kind == "A":
            j, k = window
            return self._range_of_run(j, k, i)
        (k,) = window
        if kind == "D":
            value = self.done[k].get(i)
            return (0, 1) if value is None else (value, value)
        needed = self.columns.held(i) if k == self.end else i in self.columns.reads[self.steps[k]]
        return (1, 1) if needed else (0, 1)

    def _range_of_run(self, j: int, k: int, task: int) -> tuple[int, int]:
        """Bounds of A(j, k, task)."""
        before, after = self.done[j].get(task), self.done[k].get(task)
        if before == 0 and after == 1:
            return 1, 1
        late = any(self.done[j].get(u) == 1 for u in self.columns.after_every[task])
        return 0, int(after != 0 and not (self._once(task) and before == 1) and not late)


def _reached(rows: list[list[int]], *tasks: int) -> set[int]:
    seen, waiting = {*tasks}, [*tasks]
    while waiting:
        new = [t for t in rows[waiting.pop()] if t not in seen]
        seen.update(new)
        waiting.extend(new)
    return seen


def main(path: str) -> int:
    """Exit status: 0 if all claims of the file are proven, else 1. Prints one line per claim."""
    try:
        with open(path, encoding="utf-8") as file:
            proven = verify(json.load(file))
    except (CertificateRejected, OSError, ValueError, RecursionError) as reason:
        print("rejected:", reason)
        return 1
    for sentence in proven:
        print("accepted:", sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
