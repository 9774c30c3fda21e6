"""Documents with something wrong in them: fields lost, swapped, repeated, of another kind, bytes cut or flipped."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

#: What a field may be replaced with.
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "float32",
    "forward",
    "é" * 300,
    [],
    [[]],
    [-1],
    {},
    {"x": 1},
    [0] * 50,
)

Place = tuple[Any, Any]  # (the dict or list, its key or index)


def damaged(document: dict[str, Any], chance: random.Random) -> bytes:
    """`document` as JSON bytes after one to three random injuries; it may still be sound."""
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(document))
        if places:
            chance.choice([_lost, _replaced, _repeated, _swapped, _renamed, _borrowed])(places, chance)
    data = json.dumps(document).encode()
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    if chance.random() < 0.1 and data:
        at = chance.randrange(len(data))
        data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data


def _places(part: Any) -> Iterator[Place]:
    """Every field and entry of the document, outer ones first."""
    keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    for key in keys:
        yield part, key
        yield from _places(part[key])


def _lost(places: list[Place], chance: random.Random) -> None:
    part, key = chance.choice(places)
    del part[key]


def _replaced(places: list[Place], chance: random.Random) -> None:
    part, key = chance.choice(places)
    part[key] = copy.deepcopy(chance.choice(JUNK))


def _repeated(places: list[Place], chance: random.Random) -> None:
    part, key = chance.choice(places)
    if isinstance(part, list):
        part.insert(chance.randrange(len(part) + 1), copy.deepcopy(part[key]))
    else:
        part[f"{key}s"] = copy.deepcopy(part[key])


def _swapped(places: list[Place], chance: random.Random) -> None:
    part, key = chance.choice(places)
    other = chance.choice(list(part) if isinstance(part, dict) else range(len(part)))
    part[key], part[other] = part[other], part[key]


def _renamed(places: list[Place], chance: random.Random) -> None:
    """A string becomes another one of the document: references to other values, ops, phases."""
    words = [place for place in places if isinstance(place[0][place[1]], str)]
    if words:
        (part, key), (other, there) = chance.choice(words), chance.choice(words)
        part[key] = other[there]


def _borrowed(places: list[Place], chance: random.Random) -> None:
    """A field takes what stands in another place."""
    (part, key), (other, there) = chance.choice(places), chance.choice(places)
    part[key] = copy.deepcopy(other[there])
