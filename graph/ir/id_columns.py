"""Value ids of many nodes as columns, for tests of a whole graph at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from graph.ir.records import ABSENT, Graph, Node, Role


def id_columns(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(row of each entry, entry) of every entry but ABSENT, in order: two of int64[entries]."""
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    index = np.fromiter(chain.from_iterable(rows), np.int64, int(counts.sum()))
    present = index != ABSENT
    return np.repeat(np.arange(len(rows)), counts)[present], index[present]


def read_rows(nodes: Iterable[Node]) -> list[tuple[int, ...]]:
    """The value ids that each node reads, captures of its bodies included; ids may repeat or be ABSENT."""
    return [node.reads if node.bodies else node.inputs for node in nodes]


def given_values(roles: Sequence[Role]) -> np.ndarray:
    """bool[values]: whether the value has a role other than that of the output of a node."""
    activation = Role.ACTIVATION
    return np.fromiter((role is not activation for role in roles), bool, len(roles))


def first_writers(nodes: Sequence[Node], values: int) -> np.ndarray:
    """int64[values]: the first node that writes each value; the number of nodes if none does."""
    writer, (node, written) = np.full(values, len(nodes), np.int64), id_columns([node.outputs for node in nodes])
    writer[written[::-1]] = node[::-1]
    return writer


def reads_follow_writes(nodes: Sequence[Node], writer: np.ndarray, given: np.ndarray) -> bool:
    """Whether each value that a node reads is given, or written by an earlier node: `writer`, as of `first_writers`."""
    node, read = id_columns(read_rows(nodes))
    return bool((given[read] | (writer[read] < node)).all())


def writers_of_sound_graph(graph: Graph, captured: Iterable[int]) -> list[int] | None:
    """Per value the node that writes it, or -1; None if the graph breaks a rule of definition or of order.

    The rules: each value that is not given is written once, before it is read; given ones are not written; nodes follow
    those in `after`; the inputs of the graph are the values of role INPUT. All ids are in range. O(nodes + reads).
    """
    nodes, values, captures = graph.nodes, graph.values, list(captured)
    given = given_values([value.role for value in values])
    given[captures] = True
    _, written = id_columns([node.outputs for node in nodes])
    writes = np.bincount(written, minlength=len(values))
    if (writes != ~given).any():  # written once if it is not given, else never
        return None
    writer = first_writers(nodes, len(values))
    role = Role.INPUT
    inputs = {v for v, value in enumerate(values) if value.role is role}.difference(captures)
    if inputs.symmetric_difference(graph.inputs) or not reads_follow_writes(nodes, writer, given):
        return None
    ordered = [(n, node.after) for n, node in enumerate(nodes) if node.after]
    if any(before >= n for n, after in ordered for before in after):
        return None
    writer[given] = -1
    found: list[int] = writer.tolist()
    return found
