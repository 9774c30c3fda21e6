"""Paddle's `while_loop(condition, body, variables)` as a Loop; the callables add ops, variables may be nested.

variables [i, [x, y]]     condition(program, {i: i, x: x, y: y}) -> name of a scalar bool
                          body(block) -> [i1, [x1, y1]], nested like the variables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graph.errors import BadGraph, quoted
from graph.formats.document.schema import NodeRow
from graph.formats.shared.blocks import Block, CarriedState, add_loop
from graph.formats.shared.program import Program

#: condition(program that receives its ops, variable -> its name there) -> name of the returned value
LoopCondition = Callable[[Program, Mapping[str, str]], str]
LoopBody = Callable[[Block], Any]


def while_loop(
    program: Program,
    name: str,
    condition: LoopCondition,
    body: LoopBody,
    variables: Any,
    results: Sequence[str],
    max_trips: int | None = None,
) -> NodeRow:
    """Add the loop; `results` are the names of the flattened variables after it.

    Raises BadGraph with the code `bad_request` naming the invalid argument.
    """
    for what, given in (("condition", condition), ("body", body)):
        if not callable(given):
            raise _bad(name, what, f"{given!r:.60}", "a graph", "give a function that adds its ops")
    if not isinstance(variables, list | tuple):
        raise _bad(name, "variables", f"{variables!r:.60}", "a list", "give a list of names")
    flat = _flat(variables)
    if not flat:
        raise _bad(name, "variables", "no variables", "at least one", "name what changes from trip to trip")
    first = _checked_condition(program, name, condition(program, {v: v for v in flat}))
    block = Block(program)
    block.program.types.update((v, program.types.get(v)) for v in flat)
    returned = body(block)
    after = _checked_results(name, variables, returned)
    next_condition = _checked_condition(
        block.program, name, condition(block.program, dict(zip(flat, after, strict=True)))
    )
    states = [CarriedState(v, v, new, result) for v, new, result in zip(flat, after, results, strict=True)]
    return add_loop(program, name, first, block, next_condition, states, max_trips)


def _bad(name: str, what: str, found: str, expected: str, remedy: str) -> BadGraph:
    return BadGraph.one("bad_request", f"{name}.{what}", found, expected, remedy)


def _flat(structure: Any) -> list[str]:
    """Names of a nested list or mapping, in order."""
    if isinstance(structure, Mapping):
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        return [name for part in structure for name in _flat(part)]
    return [str(structure)]


def _checked_condition(program: Program, name: str, flag: Any) -> str:
    """The returned condition, checked to be one computed bool. Raises BadGraph."""
    if not isinstance(flag, str) or flag not in program.types or flag in program.contents:
        raise _bad(name, "condition", f"{flag!r:.60} returned", "a value that is computed", "compare the variables")
    type = program.types[flag]
    if type is not None and (type.dtype != "bool" or type.elements != 1):
        raise _bad(
            name, "condition", f"{quoted(flag)} of {type} returned", "one element of bool", "compare or reduce it"
        )
    return flag


def _checked_results(name: str, variables: Any, returned: Any) -> list[str]:
    """Flattened names returned by the body, checked to be nested like the variables. Raises BadGraph."""
    if not isinstance(returned, list | tuple):
        returned = [returned]
    if _nesting(variables) != _nesting(returned):
        raise _bad(
            name,
            "body",
            f"{returned!r:.60} returned",
            f"values in the structure of {variables!r:.60}",
            "return one value for each variable",
        )
    return _flat(returned)


def _nesting(structure: Any) -> Any:
    """The nesting without names; lists and tuples are equal."""
    if isinstance(structure, Mapping):
        return {key: _nesting(part) for key, part in structure.items()}
    if isinstance(structure, list | tuple):
        return [_nesting(part) for part in structure]
    return None
