"""Kinds of request fields: what a field accepts as JSON, as a Python keyword and as a command-line flag.

One `Kind` holds the parser and its description, so that bounds and choices are stated once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from planner.errors import BadRequest, Finding
from planner.request.budget import MAX_BYTES, MAX_OVERHEAD, parse_budget, parse_fraction, parse_size
from planner.request.field_parsers import Parser, bad_field, nearest, parse_fields
from planner.request.target_runtime import RUNTIMES, runtime_named

# Imports inside functions: the planners need numpy, and `remat --help` reads this module.

DEFAULT_SEARCH_SECONDS, MAX_SEARCH_SECONDS = 10.0, 24 * 3600
MAX_SHAPE_SETS = 16
MAX_LENGTH = 2**31 - 1
LENGTH_TEXT = re.compile("[0-9]{1,10}")

# Types of Python keywords, named by `Kind.keyword`.
Bytes = int | str  # 8589934592, "8GiB" or "8GB"
Names = list[str] | tuple[str, ...]
Section = Literal["plan", "timeline", "layout", "explain", "source", "graph", "summary"]
RETURNABLE: tuple[str, ...] = get_args(Section)
#: Parts of the section `plan` that "summary" leaves out, besides the certificate of the bound.
NOT_IN_SUMMARY = ("order", "kept", "recomputed", "choices", "offloaded")


def without_proof(plan: Mapping[str, Any], left_out: Collection[str] = ()) -> dict[str, Any]:
    """Section `plan` without the certificate of its bound, which is most of it, and without the parts `left_out`."""
    bound = {name: value for name, value in plan["bound"].items() if name != "certificate"}
    return {name: value for name, value in plan.items() if name not in left_out} | {"bound": bound}


@dataclass(frozen=True, slots=True)
class FlagValue:
    """Value of a command-line flag."""

    metavar: str  # name of the value in `--help`; "" for a switch, which has none
    type: type = str  # `list`: text, repeatable; `bool`: switch
    words: tuple[str, ...] = ()  # offered by shell completion
    catalogue: str = ""  # offered instead: the names of "planner" or "device"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field accepts."""

    parse: Parser  # (wire value, path) -> parsed value; raises BadRequest
    schema: Mapping[str, Any]  # JSON Schema; may refer to `#/$defs/Differentiate` and `#/$defs/ShapeSet`
    keyword: str  # type of the Python keyword, as source text
    flag: FlagValue | None = None  # None: not available as a flag
    names_values: Literal["no", "all", "inside"] = "no"  # which strings of the value are names of graph values


@dataclass(frozen=True, slots=True)
class InputShapes:
    """One set of input shapes; overrides `inputs`, `batch` and `dims` of the request."""

    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


# Parsers: (wire value, path) -> parsed value; raise BadRequest


def _seconds(given: Any, path: str) -> float:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 < given <= MAX_SEARCH_SECONDS:
        raise bad_field(path, given, f"seconds above 0 and at most {MAX_SEARCH_SECONDS}")
    return float(given)


def _bytes(given: Any, path: str) -> int:
    budget = parse_size(given, path)
    if budget.bytes is None:
        raise bad_field(path, given, "bytes, not a share")
    return budget.bytes


def _memory(given: Any, path: str) -> str | int:
    """Bytes in the grammar of budgets, or the name of a device."""
    try:
        return _bytes(given, path)
    except BadRequest:
        if isinstance(given, str) and given[:1].isalpha():
            return str(_device(given, path))
        raise


def _device(given: Any, path: str) -> str | Mapping[str, Any]:
    """A device name or profile, as given. Unknown and incomplete ones are refused here, before a model is read."""
    from graph.analysis.devices import DEVICES, device_faults

    remedy = "see `remat devices`"
    if isinstance(given, str) and given not in DEVICES:
        known = "one of " + ", ".join(DEVICES)
        raise BadRequest.one("bad_device", path, repr(given)[:80], known, nearest(given, DEVICES, remedy))
    faults = [] if isinstance(_instance_of(str, Mapping)(given, path), str) else device_faults(given)
    findings = [(f"{path}.{name}"[:80], *text.rsplit("; ", 1)) for name, text in faults]
    if findings:
        raise BadRequest([Finding("bad_device", at, found, "a device", how) for at, found, how in findings])
    return given  # type: ignore[no-any-return]


def _planner(given: Any, path: str) -> str:
    from planner.algorithms import PLANNERS

    known = ("auto", *PLANNERS)
    if given not in known:
        raise BadRequest.one(
            "unknown_planner",
            path,
            repr(given)[:80],
            "one of " + ", ".join(known),
            nearest(given, known, "name one of these"),
        )
    return str(given)


def _runtime(given: Any, path: str) -> str:
    return runtime_named(given if isinstance(given, str) else repr(given)).name


def _instance_of(*types: type, expected: str = "an object") -> Parser:
    def parse(given: Any, path: str) -> Any:
        if not isinstance(given, types):
            raise bad_field(path, given, expected)
        return given

    return parse


def _value(given: Any, path: str) -> str:
    if not isinstance(given, str) or not given:
        raise bad_field(path, given, "a name")
    return given


def _names(given: Any, path: str, what: str = "value names") -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(x, str) for x in given):
        raise bad_field(path, given, f"a list of {what}")
    return tuple(dict.fromkeys(given))


def _patterns(given: Any, path: str) -> tuple[str, ...]:
    return _names(given, path, "name patterns")


def _sections(given: Any, path: str) -> tuple[str, ...]:
    names = _names([given] if isinstance(given, str) else given, path, "sections")
    if unknown := [x for x in names if x not in RETURNABLE]:
        raise bad_field(path, unknown, "any of " + ", ".join(RETURNABLE))
    return names


def _shapes(given: Any, path: str) -> dict[str, tuple[int, ...]]:
    if not isinstance(given, Mapping):
        raise bad_field(path, given, 'a mapping such as {"x": [16, 3, 224, 224]}')
    shapes = {}
    for value, shape in given.items():
        if isinstance(shape, str) and all(LENGTH_TEXT.fullmatch(n) for n in shape.split("x")):
            shape = [int(n) for n in shape.split("x")]
        if not isinstance(shape, (list, tuple)) or not all(_is_length(n) for n in shape):
            raise bad_field(f"{path}.{value}", shape, 'lengths such as [16, 3, 224, 224] or "16x3x224x224"')
        shapes[str(value)] = tuple(shape)
    return shapes


def _lengths(expected: str) -> Parser:
    def parse(given: Any, path: str) -> dict[str, int]:
        if not isinstance(given, Mapping) or not all(_is_length(n) for n in given.values()):
            raise bad_field(path, given, expected)
        return {str(k): n for k, n in given.items()}

    return parse


def _is_length(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_LENGTH


def _shape_sets(given: Any, path: str) -> tuple[InputShapes, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > MAX_SHAPE_SETS:
        expected = f'a list of at most {MAX_SHAPE_SETS} sets such as {{"inputs": {{"x": [16, 128]}}}}'
        raise bad_field(path, given, expected)
    findings: list[Finding] = []
    sets = []
    parsers = {name: kind.parse for name, kind in SHAPE_KINDS.items()}
    for place, entry in enumerate(given):
        if not isinstance(entry, Mapping) or not entry:
            raise bad_field(f"{path}[{place}]", entry, "an object with inputs, batch or dims")
        sets.append(parse_fields(entry, parsers, findings, f"{path}[{place}]."))
    if findings:
        raise BadRequest(findings)
    return tuple(InputShapes(**one) for one in sets)


# JSON Schemas

STRING: dict[str, Any] = {"type": "string"}
ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
BYTES_TEXT = STRING | {"pattern": r"^\s*[0-9]{1,9}(\.[0-9]{1,9})?\s*([KMG]?B|[KMG]iB)\s*$", "examples": ["8GiB", "8GB"]}
BUDGET_PERCENT = STRING | {"pattern": r"^\s*(100|[1-9][0-9]?)(\.0{1,9})?\s*%\s*$", "examples": ["50%"]}
PERCENT = STRING | {"pattern": r"^\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*%\s*$", "examples": ["10%"]}
SHAPE_TEXT = STRING | {"pattern": r"^[0-9]{1,9}(x[0-9]{1,9})*$"}


def _any(*schemas: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"anyOf": [*schemas], **more}


def _array(items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _integer(minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def _number(maximum: int, minimum: str = "exclusiveMinimum") -> dict[str, Any]:
    return {"type": "number", minimum: 0, "maximum": maximum}


# Kinds


def nullable(kind: Kind) -> Kind:
    """The kind with None, which stands for the default."""
    schema = kind.schema if "anyOf" in kind.schema else _any(kind.schema)
    schema = {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    parse = kind.parse
    return replace(
        kind,
        parse=lambda given, path: None if given is None else parse(given, path),
        schema=schema,
        keyword=f"{kind.keyword} | None",
    )


def one_of(*choices: str, parse: Parser | None = None) -> Kind:
    """Kind of a few words; `parse` if they have an error message of their own."""

    def parse_word(given: Any, path: str) -> str:
        if given not in choices or not isinstance(given, str):
            raise bad_field(path, given, "one of " + ", ".join(choices))
        return given

    keyword = "Literal[" + ", ".join(f'"{choice}"' for choice in choices) + "]"
    return Kind(
        parse or parse_word, STRING | {"enum": [*choices]}, keyword, FlagValue("|".join(choices), words=choices)
    )


def whole(minimum: int, maximum: int = 2**63 - 1) -> Kind:
    def parse(given: Any, path: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not minimum <= given <= maximum:
            raise bad_field(path, given, f"a whole number from {minimum} to {maximum}")
        return given

    return Kind(parse, _integer(minimum, maximum), "int", FlagValue("N", int))


SWITCH = Kind(_instance_of(bool, expected="true or false"), {"type": "boolean"}, "bool", FlagValue("", bool))
SEARCH_TIME = Kind(_seconds, _number(MAX_SEARCH_SECONDS), "float", FlagValue("S", float))
WHOLE_BYTES, LENGTH = _integer(0, MAX_BYTES), _integer(0, MAX_LENGTH)
BUDGET = Kind(
    parse_budget, _any(BUDGET_PERCENT, BYTES_TEXT, WHOLE_BYTES, _number(1)), "float | Bytes", FlagValue("SIZE")
)
SHARE = Kind(parse_fraction, _any(PERCENT, _number(MAX_OVERHEAD, "minimum")), "float | str", FlagValue("SHARE"))
BYTES = Kind(_bytes, _any(BYTES_TEXT, WHOLE_BYTES), "Bytes", FlagValue("SIZE"))
DEVICE_FLAG = FlagValue("NAME", catalogue="device")
MEMORY = Kind(
    _memory,
    _any(STRING, WHOLE_BYTES, examples=["a100-80gb", "80GiB"]),
    "Bytes",
    replace(DEVICE_FLAG, metavar="DEVICE|SIZE"),
)
PLANNER = Kind(_planner, STRING, "str", FlagValue("NAME", catalogue="planner"))
RUNTIME = one_of(*RUNTIMES, parse=_runtime)
OBJECT = Kind(_instance_of(Mapping), ANY_OBJECT, "Mapping[str, Any]")
DEVICE = Kind(_device, _any(STRING, ANY_OBJECT), "str | Mapping[str, Any]", replace(DEVICE_FLAG, metavar="NAME|OBJECT"))
DIFFERENTIATE = Kind(
    _instance_of(bool, Mapping),
    _any({"type": "boolean"}, {"$ref": "#/$defs/Differentiate"}),
    "bool | Mapping[str, Any]",
    FlagValue("", bool),
    "inside",
)
VALUE = Kind(_value, STRING | {"minLength": 1}, "str", FlagValue("NAME"), "all")
VALUES = Kind(_names, _array(STRING), "Names", FlagValue("VALUE", list), "all")
PATTERNS = Kind(_patterns, _array(STRING), "Names", FlagValue("PATTERN", list), "all")
SECTION = STRING | {"enum": [*RETURNABLE]}
SECTIONS = Kind(_sections, _any(SECTION, _array(SECTION)), "Section | list[Section] | tuple[Section, ...]")
SHAPES = Kind(
    _shapes,
    {
        "type": "object",
        "additionalProperties": _any(_array(LENGTH), SHAPE_TEXT),
        "examples": [{"x": [16, 3, 224, 224]}],
    },
    "Mapping[str, list[int] | tuple[int, ...] | str]",
    FlagValue("NAME=16x3x224x224", list),
    "inside",
)
LENGTHS = {"type": "object", "additionalProperties": LENGTH}
DIMS = Kind(
    _lengths('a mapping from dimension to length, such as {"N": 8}'),
    LENGTHS,
    "Mapping[str, int]",
    FlagValue("N=8", list),
)
MAX_LENGTHS = Kind(
    _lengths('a mapping from value or loop to its largest length, such as {"boxes": 100}'),
    LENGTHS | {"examples": [{"boxes": 100}]},
    "Mapping[str, int]",
    FlagValue("NAME=N", list),
    "inside",
)
BATCH = nullable(whole(1, MAX_LENGTH))
SHAPE_KINDS = {"inputs": SHAPES, "batch": BATCH, "dims": DIMS}
SHAPE_SETS = Kind(
    _shape_sets,
    _array({"$ref": "#/$defs/ShapeSet"}, maxItems=MAX_SHAPE_SETS, examples=[[{"batch": 4}, {"batch": 8}]]),
    "list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]",
    FlagValue("JSON", list),
    "inside",
)
