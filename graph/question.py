"""What is differentiated by what: names of a request become ids of a graph, or findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graph.errors import Findings, quoted
from graph.ir import EMPTY, FLOATS, Graph, Role, Value

UNREACHABLE = ("null", "error", "zeros")


@dataclass(frozen=True, slots=True)
class Question:
    """What is differentiated by what, in ids."""

    targets: tuple[tuple[int, int | None], ...]  # (target, its head gradient; None: ones); repeats add up
    wanted: tuple[int, ...]
    stops: frozenset[int] = frozenset()  # values the gradient does not pass
    unreachable: str = "null"  # what a wanted value without gradient gets: nothing, an error, zeros


def resolve(
    graph: Graph,
    targets: Sequence[str],
    wanted: Sequence[str] | None = None,
    head_gradients: Mapping[str, str | None] = EMPTY,
    no_gradient: Collection[str] = (),
    unreachable: str = "null",
) -> Question:
    """The question in ids. Raises BadGraph for unknown names and unsuitable types."""
    ids = {value.name: v for v, value in enumerate(graph.values)}
    findings = Findings()

    def known(names: Collection[str], field: str) -> list[int]:
        for i, name in enumerate(names):
            if name not in ids:
                findings.add(
                    "undefined_value", f"differentiate.{field}[{i}]", quoted(str(name)), "the name of a value",
                    "name a value of the graph",
                )  # fmt: skip
        return [ids[name] for name in names if name in ids]

    of = known(targets, "of")
    by = known(wanted, "with_respect_to") if wanted is not None else [
        v for v, value in enumerate(graph.values) if value.role is Role.PARAMETER and carries_gradient(value)
    ]  # fmt: skip
    stops = known(no_gradient, "no_gradient")
    heads = dict(zip(known(head_gradients, "head_gradients"), head_gradients.values(), strict=False))
    if unreachable not in UNREACHABLE:
        findings.add(
            "bad_request", "differentiate.unreachable", repr(unreachable), "one of " + ", ".join(UNREACHABLE),
            "choose one of them",
        )  # fmt: skip
    for field, chosen in (("of", of), ("with_respect_to", by)):
        for v in chosen:
            if not carries_gradient(graph.values[v]):
                findings.add(
                    "not_floating", f"differentiate.{field}", f"{graph.values[v].name} of {graph.values[v].type}",
                    "a floating type", "name a floating value",
                )  # fmt: skip
    resolved = {target: _head(graph, ids, target, name, of, findings) for target, name in heads.items()}
    findings.settle()
    return Question(
        tuple((target, resolved.get(target)) for target in of), tuple(dict.fromkeys(by)), frozenset(stops), unreachable
    )


def _head(
    graph: Graph, ids: Mapping[str, int], target: int, name: str | None, of: Sequence[int], findings: Findings
) -> int | None:
    """Id of the head gradient of a target, None for ones."""
    path = f"differentiate.head_gradients.{graph.values[target].name}"
    if target not in of:
        findings.add("bad_request", path, "a head gradient", "a target", "name the value among the targets too")
    if name is None:
        return None
    if name not in ids:
        findings.add("undefined_value", path, quoted(str(name)), "the name of a value", "name a value of the graph")
        return None
    head, value = graph.values[ids[name]], graph.values[target]
    if (head.type, head.nbytes) != (value.type, value.nbytes):
        findings.add(
            "type_conflict", path, f"{quoted(name)} of {head.type}", f"{value.type}, as the target has",
            "give a head gradient of the target's type",
        )  # fmt: skip
    return ids[name]


def carries_gradient(value: Value) -> bool:
    """True for floating values, and for those of which only a size is known."""
    return value.type is None or value.type.dtype in FLOATS
