"""Random small problems with everything a problem can have, and random sequences for them."""

from __future__ import annotations

import random

from planner.problem import (
    ALLOW,
    BACKWARD,
    DEVICE,
    FORBID,
    FORWARD,
    FREE,
    HANDED_OUT,
    HOST,
    NEVER,
    PREFER,
    RESIDENT,
    SAME_ORDER,
    TO_LAST_READ,
    TO_THE_END,
    UPDATE,
    Problem,
)
from tests.planner.drawn import problem_of


def random_problem(rng: random.Random, tasks: int = 8) -> Problem:
    """Up to `tasks` tasks: several writers, held and resident buffers, takeover, both after relations."""
    n = rng.randint(1, tasks)
    m = rng.randint(1, n + 4)
    hold = rng.choices([TO_LAST_READ, TO_THE_END, HANDED_OUT, RESIDENT], [8, 1, 1, 1], k=m)
    writes: list[list[int]] = [[] for _ in range(n)]
    producer: list[int | None] = []
    for b in range(m):
        writer = rng.randrange(n) if rng.random() < 0.85 else None
        producer.append(writer)
        if writer is not None:
            writes[writer].append(b)
            if rng.random() < 0.15 and writer + 1 < n:
                writes[rng.randrange(writer + 1, n)].append(b)
    reads, shape_reads = [], []
    for t in range(n):
        there = [b for b in range(m) if producer[b] is None or producer[b] < t or hold[b] == RESIDENT]  # type: ignore[operator]
        reads.append(rng.sample(there, min(len(there), rng.choice([0, 1, 1, 2, 2, 3]))))
        shape_reads.append(rng.sample(there, 1) if there and rng.random() < 0.1 else [])
        rng.shuffle(writes[t])
    takeover = {}
    for b in range(m):
        writer = producer[b]
        if writer is not None and reads[writer] and rng.random() < 0.7:
            takeover[b] = rng.sample(reads[writer], rng.randint(1, len(reads[writer])))
    split = sorted(rng.choices(range(n + 1), k=2)) if rng.random() < 0.6 else [n, n]
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    return problem_of(
        reads,
        writes,
        m,
        shape_reads=shape_reads,
        takeover=takeover,
        after_every=[p for p in pairs if rng.random() < 0.04],
        after_first=[p for p in pairs if rng.random() < 0.04],
        cost=[rng.randint(0, 9) for _ in range(n)],
        workspace=[rng.choice([0, 0, 1, 5]) for _ in range(n)],
        size=[rng.choice([0, 1, 2, 3, 5, 5, 8]) for _ in range(m)],
        hold=hold,
        space=rng.choices([DEVICE, HOST], [9, 1], k=m),
        phase=[FORWARD if t < split[0] else BACKWARD if t < split[1] else UPDATE for t in range(n)],
        repeat=rng.choices([FREE, NEVER, SAME_ORDER], [8, 1, 1], k=n),
        recompute=rng.choices([ALLOW, FORBID, PREFER], [8, 1, 1], k=n),
        optional=[rng.random() < 0.08 for _ in range(n)],
        checkpoint=[rng.random() < 0.1 for _ in range(m)],
    )


def random_order(rng: random.Random, problem: Problem) -> list[int]:
    """A sequence that often may run: tasks in order, repeats thrown in, sometimes shuffled a little."""
    order = [t for t in range(problem.tasks) if not problem.optional[t] or rng.random() < 0.5]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
        order.insert(rng.randint(0, len(order)), rng.randrange(problem.tasks))
    if rng.random() < 0.3 and len(order) > 1:
        i, j = rng.sample(range(len(order)), 2)
        order[i], order[j] = order[j], order[i]
    if rng.random() < 0.02 and order:
        order.pop(rng.randrange(len(order)))
    return order


def training_problem(rng: random.Random, layers: int) -> Problem:
    """A step of training: layers forward with skips, their gradients backward, an update in place of each weight."""
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    size: list[int] = []
    hold: list[int] = []
    phase: list[int] = []
    repeat: list[int] = []
    takeover: dict[int, list[int]] = {}
    after_every: list[tuple[int, int]] = []

    def buffer(kind: int = TO_LAST_READ) -> int:
        size.append(rng.choice([1, 4, 4, 8, 16, 30]))
        hold.append(kind)
        return len(size) - 1

    def task(reading: list[int], writing: list[int], of: int, may: int = FREE) -> int:
        reads.append(list(dict.fromkeys(reading)))
        writes.append(writing)
        phase.append(of)
        repeat.append(may)
        return len(reads) - 1

    weights = [buffer(RESIDENT) for _ in range(layers)]
    users: list[list[int]] = [[] for _ in range(layers)]
    values, saved, extra = [buffer(RESIDENT)], [], []
    for i in range(layers):
        skip = [rng.choice(values)] if rng.random() < 0.3 else []
        out = buffer(HANDED_OUT if rng.random() < 0.05 else TO_LAST_READ)
        side = [buffer()] if rng.random() < 0.2 else []
        if rng.random() < 0.3:
            takeover[out] = [values[-1]]
        random_op = rng.random() < 0.1
        users[i].append(task([values[-1], weights[i], *skip], [out, *side], FORWARD, NEVER if random_op else FREE))
        saved.append(rng.sample([values[-1], out], rng.choice([1, 1, 2])) + side)
        extra.append(skip)
        values.append(out)
    gradient = buffer()
    task([values[-1]], [gradient], BACKWARD)
    weight_gradients = [0] * layers
    for i in reversed(range(layers)):
        down, weight_gradients[i] = buffer(), buffer(TO_THE_END if rng.random() < 0.2 else TO_LAST_READ)
        takeover[down] = [gradient]
        users[i].append(task([gradient, weights[i], *saved[i]], [down], BACKWARD))
        task([gradient, *saved[i], *extra[i]], [weight_gradients[i]], BACKWARD)
        gradient = down
    for i in range(layers):
        update = task([weights[i], weight_gradients[i]], [weights[i]], UPDATE, NEVER)
        after_every += [(user, update) for user in users[i]]
    n = len(reads)
    return problem_of(
        reads,
        writes,
        len(size),
        takeover=takeover,
        after_every=after_every,
        cost=[rng.randint(1, 30) for _ in range(n)],
        workspace=[rng.choice([0, 0, 0, 6]) for _ in range(n)],
        size=size,
        hold=hold,
        phase=phase,
        repeat=repeat,
    )


def returning_problem(rng: random.Random, layers: int) -> Problem:
    """A way out with skips whose values are read again on the way back, two tasks a layer, with everything there is.

    Repeats are worth it here, other than in most of what `random_problem` draws.
    """
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    size: list[int] = []
    takeover: dict[int, list[int]] = {}

    def task(reading: list[int]) -> int:
        """Its first output, a buffer."""
        reads.append(list(dict.fromkeys(reading)))
        writes.append([len(size) + i for i in range(rng.choice([1, 1, 1, 2]))])
        size.extend(rng.choice([0, 1, 2, 4, 5, 8, 9]) for _ in writes[-1])
        for b in writes[-1]:
            if rng.random() < 0.25 and reading:
                takeover[b] = rng.sample(reads[-1], rng.randint(1, len(reads[-1])))
        return writes[-1][0]

    weights = [len(size) + i for i in range(rng.choice([0, 1, 2]))]
    size += [rng.randint(1, 3) for _ in weights]
    values: list[int] = []
    for _ in range(layers):
        skip = [rng.choice(values)] if values and rng.random() < 0.3 else []
        values.append(task([*values[-1:], *skip, *rng.sample(weights, min(len(weights), rng.randint(0, 1)))]))
    gradient: list[int] = []
    for i in reversed(range(layers)):
        again = [*values[i : i + 1], *writes[i][1:]]
        gradient = [task([*gradient, *rng.sample(again, rng.randint(1, len(again))), *weights[:1]])]
    n, m = len(reads), len(size)
    hold = rng.choices([TO_LAST_READ, TO_THE_END, HANDED_OUT, RESIDENT], [30, 2, 2, 1], k=m)
    for b in weights:
        hold[b] = rng.choice([RESIDENT, RESIDENT, TO_LAST_READ])
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    return problem_of(
        reads,
        writes,
        m,
        takeover=takeover,
        after_every=[p for p in pairs if rng.random() < 0.01],
        after_first=[p for p in pairs if rng.random() < 0.02],
        cost=[rng.randint(0, 9) for _ in range(n)],
        workspace=[rng.choice([0, 0, 1, 4]) for _ in range(n)],
        size=size,
        hold=hold,
        phase=[FORWARD if t < layers else BACKWARD for t in range(n)] if rng.random() < 0.7 else [FORWARD] * n,
        repeat=rng.choices([FREE, NEVER, SAME_ORDER], [14, 1, 1], k=n),
        recompute=rng.choices([ALLOW, FORBID, PREFER], [14, 1, 1], k=n),
    )
