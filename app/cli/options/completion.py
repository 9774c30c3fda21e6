"""Shell completion of option values, looked up on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Imports inside functions: loaded per completion, so that `remat --help` takes under 0.3 s.

Completer = Callable[[str], list[str]]


def complete_from(*words: str) -> Completer:
    """Completer over fixed words."""
    return _among(lambda: words)


def planners() -> Iterable[str]:
    from planner.algorithms import PLANNERS

    return ("auto", *PLANNERS)


def devices() -> Iterable[str]:
    from graph.analysis.cost import DEVICES

    return DEVICES


def schemas() -> Iterable[str]:
    from app.catalogue import SCHEMA_NAMES

    return SCHEMA_NAMES


def networks() -> Iterable[str]:
    from app.zoo.catalogue import networks

    return networks()


def _among(words: Callable[[], Iterable[str]]) -> Completer:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


planner, device, schema, network = map(_among, (planners, devices, schemas, networks))
