"""Memory over time from a memory snapshot of PyTorch, `torch.cuda.memory._snapshot()`, pickled.

    opcodes ──read_pickle──▶ dicts, lists, strings, numbers ──memory_curve──▶ a `remat-snapshot/1` document

Nothing is unpickled: opcodes that build plain data are carried out here, and every other one is refused by its name,
those that import something first of all.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

from app.errors import Unparseable
from graph.errors import Finding

FORMAT = "remat-snapshot/1"
MAX_BYTES = 512 * 2**20
MAX_OPCODES = 20_000_000
MAX_DEPTH = 64  # nesting of containers being filled
MAX_POINTS = 2_000  # of a curve; each is the largest of its part
REMEDY = "write it with pickle.dump(torch.cuda.memory._snapshot(), file)"

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_ARGUMENTS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IMPORTS = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})


def read_pickle(data: bytes) -> Any:
    """The plain data of a pickle: dicts, lists, tuples, strings, numbers, truth values and None.

    O(opcodes). Raises Unparseable for damaged data, other opcodes, and data beyond the limits.
    """
    if len(data) > MAX_BYTES:
        remedy = "record fewer events: max_entries=100000"
        _refuse("too_large", f"{len(data):,} bytes", f"at most {MAX_BYTES:,}", remedy)
    reader = _Reader()
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(data)):
            if count >= MAX_OPCODES:
                limit = f"at most {MAX_OPCODES} opcodes"
                _refuse("too_large", "more", limit, "record fewer events: max_entries=100000")
            if opcode.name == "STOP":
                return reader.pop()
            reader.carry_out(opcode.name, argument, position or 0)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        _refuse("not_a_snapshot", str(error)[:200] or "a damaged file", "a whole pickle", REMEDY)
    _refuse("not_a_snapshot", "no STOP opcode", "a whole pickle", REMEDY)


class _Reader:
    """Stack and memo of a pickle being read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def carry_out(self, name: str, argument: Any, position: int) -> None:
        """One opcode. Raises Unparseable for one that builds no plain data, IndexError and TypeError for wrong ones."""
        if name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name == "MARK":
            self._mark()
        elif name == "TUPLE":
            items = self.since_mark()
            self.stack.append(tuple(items))
        elif name in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[name])]
            self.stack.append(tuple(reversed(items)))
        elif name in ("APPEND", "APPENDS"):
            items = [self.pop()] if name == "APPEND" else self.since_mark()
            _filled(self.stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self.since_mark()
            target = _filled(self.stack[-1], dict)
            for key, value in zip(items[::2], items[1::2], strict=True):
                target[_key(key)] = value
        elif name not in ("PROTO", "FRAME"):
            self._refuse_opcode(name, argument, position)

    def _mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            _refuse("not_a_snapshot", f"more than {MAX_DEPTH} containers within each other", "a snapshot", REMEDY)
        self.marks.append(self.stack)
        self.stack = []

    def _refuse_opcode(self, name: str, argument: Any, position: int) -> NoReturn:
        what = f"{name} at byte {position}"
        if name in _IMPORTS:
            named = ".".join(map(str, self.stack[-2:])) if name == "STACK_GLOBAL" else str(argument).replace(" ", ".")
            what = f"{name} {named[:200]} at byte {position}"
        _refuse("unsafe_pickle", what, "plain data: dicts, lists, strings and numbers", REMEDY)


def _filled(target: Any, kind: type[Any]) -> Any:
    if type(target) is not kind:
        raise TypeError("items for an object that holds none")
    return target


def _key(key: Any) -> str:
    if not isinstance(key, str):  # hashes of numbers can be made to collide
        raise TypeError("a key that is no text")
    return key


def memory_curve(snapshot: Any) -> dict[str, Any]:
    """The `remat-snapshot/1` document of a snapshot: bytes allocated over time on the device with the most events.

    What was allocated before the recording began is counted from the first point on. Raises Unparseable for other data
    and for a snapshot without events.
    """
    traces, segments = _list(snapshot, "device_traces"), _list(snapshot, "segments")
    device = max(range(len(traces)), key=lambda d: len(_list(traces, d)), default=0)
    changes: list[tuple[float, int]] = []
    for event in _list(traces, device) if traces else ():
        action = _field(event, "action", str)
        if action in ("alloc", "free_requested"):
            size = int(_field(event, "size", int))
            changes.append((float(_field(event, "time_us", int, float)), size if action == "alloc" else -size))
    if not changes:
        remedy = "call torch.cuda.memory._record_memory_history() before the step"
        _refuse("not_a_snapshot", "no allocation events", "a snapshot with its history", remedy)
    at_end = sum(_field(row, "allocated_size", int) for row in segments if _field(row, "device", int) == device)
    base = at_end - sum(size for _, size in changes)
    live, first, levels = base, changes[0][0], list[tuple[float, int]]()
    for when, size in changes:
        live += size
        levels.append((when - first, live))
    part = -(-len(levels) // MAX_POINTS)
    points = [max(levels[i : i + part], key=lambda level: level[1]) for i in range(0, len(levels), part)]
    return {
        "format": FORMAT,
        "device": f"cuda:{device}",
        "events": len(levels),
        "base_bytes": base,
        "peak_bytes": max(base, *(bytes for _, bytes in levels)),
        "seconds": levels[-1][0] / 1e6,
        "curve": {"time_us": [when for when, _ in points], "bytes": [bytes for _, bytes in points]},
    }


def _list(of: Any, key: str | int) -> list[Any]:
    found = of.get(key) if isinstance(of, dict) else of[key] if isinstance(of, list) and isinstance(key, int) else None
    if not isinstance(found, list):
        _refuse("not_a_snapshot", f"no list {key!r}", "segments and device_traces", REMEDY)
    return found


def _field(record: Any, name: str, *kinds: type[Any]) -> Any:
    """A text, or a number in the range of a signed 64-bit integer. Raises Unparseable."""
    value: Any = record.get(name) if isinstance(record, dict) else None
    if type(value) not in kinds or (not isinstance(value, str) and not 0 <= value < 2**63):
        _refuse(
            "not_a_snapshot",
            f"{name} is no {'text' if kinds[0] is str else 'number'}",
            "the fields of PyTorch's history",
            REMEDY,
        )
    return value


def _refuse(code: str, found: str, expected: str, remedy: str) -> NoReturn:
    finding = Finding(code, "body", found, expected, remedy)
    raise Unparseable(str(finding), [finding])
