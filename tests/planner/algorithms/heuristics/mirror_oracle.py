"""The mirroring heuristic as its description reads: sets, everything recomputed, no shared code."""

from __future__ import annotations

from planner.problem import ALLOW, FORBID, FORWARD, FREE, PREFER, RESIDENT, TO_LAST_READ, Problem


class MirrorOracle:
    """Stage per forward task and the judged groups, slowly."""

    def __init__(self, problem: Problem):
        self.p = problem
        self.forward = [t for t in range(problem.tasks) if problem.phase[t] == FORWARD]
        self.reads = {t: set(problem.reads[t].tolist()) for t in range(problem.tasks)}
        self.writes = {t: set(problem.writes[t].tolist()) for t in range(problem.tasks)}
        self.maker = {b: t for t in reversed(range(problem.tasks)) for b in self.writes[t]}
        self.readers = {b: {t for t in self.reads if b in self.reads[t]} for b in range(problem.buffers)}
        waits = {(a, b) for a in range(problem.tasks) for b in problem.after_first[a].tolist()}
        self.before = {
            t: {self.maker[b] for b in self.reads[t] if b in self.maker} | {a for a, b in waits if b == t}
            for t in self.forward
        }
        self.behind = {t: {s for s in self.forward if t in self.before[s]} for t in self.forward}
        self.target = {
            t
            for t in self.forward
            if not self.behind[t] or any(problem.hold[b] not in (TO_LAST_READ, RESIDENT) for b in self.writes[t])
        }
        self.stage: dict[int, int] = {}
        self.groups: list[tuple[frozenset[int], int, int]] = []
        self.run()

    def cheap(self, t: int) -> bool:
        said = self.p.recompute[t]
        if self.p.phase[t] != FORWARD or self.p.repeat[t] != FREE or said == FORBID:
            return False
        return bool(said == PREFER or (said == ALLOW and not self.p.heavy[t]))

    def run(self) -> None:
        work = sorted(self.target, reverse=True)
        while work:
            start = work.pop(0)
            if start not in self.stage:
                region, borders = self.region(start)
                work += borders
                self.judge(region)

    def region(self, start: int) -> tuple[set[int], list[int]]:
        region: set[int] = set()
        borders: list[int] = []

        def backwards(t: int) -> None:
            if t not in region:
                region.add(t)
                for p in sorted(self.before[t]):
                    if self.cheap(p):
                        backwards(p)
                    else:
                        borders.append(p)

        def forwards(t: int, been: set[int]) -> None:
            if t in been:
                return
            been.add(t)
            if t in self.target or not self.cheap(t):
                backwards(t)
                return
            for s in self.behind[t]:
                forwards(s, been)

        backwards(start)
        while True:
            read = {b for t in region for b in self.reads[t]}
            outside = [t for t in self.forward if t not in region and self.reads[t] & read]
            if not outside:
                return region, borders
            for t in outside:
                forwards(t, set())

    def judge(self, region: set[int]) -> None:
        for t in region:
            if not self.cheap(t):
                self.stage[t] = 0
        while True:
            frontier = {
                t
                for t in region
                if t not in self.stage and all(not self.cheap(p) or self.stage.get(p) == 0 for p in self.before[t])
            }
            groups = self.grouped(frontier)
            kept = next((g for g in groups if self.price(g, frontier)[1] >= self.price(g, frontier)[0]), None)
            if kept is None:
                break
            self.groups.append((kept, *self.price(kept, frontier)))
            self.stage.update(dict.fromkeys(kept, 0))
        self.groups += [(g, *self.price(g, frontier)) for g in groups]
        for t in region:
            self.stage.setdefault(t, 1)

    def grouped(self, frontier: set[int]) -> list[frozenset[int]]:
        groups: list[frozenset[int]] = []
        for t in sorted(frontier):
            if not any(t in group for group in groups):
                group = {t}
                while True:
                    read = {b for member in group for b in self.reads[member]}
                    more = {s for s in frontier if self.reads[s] & read} - group
                    if not more:
                        break
                    group |= more
                groups.append(frozenset(group))
        return groups

    def price(self, group: frozenset[int], frontier: set[int]) -> tuple[int, int]:
        inputs = {b for t in group for b in self.reads[t]}
        released = {b for b in inputs if self.readers[b] <= frontier}
        allocated = {b for t in group for b in self.writes[t] if self.readers[b]} | (inputs - released)
        size = self.p.size
        return sum(int(size[b]) for b in allocated), sum(int(size[b]) for b in released)
