"""Ops of a parsed module: names resolved, types read, and calls of functions replaced by what they call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from graph.errors import BadGraph, quoted
from graph.formats.stablehlo.records import Body, Module, Op, Value
from graph.formats.stablehlo.syntax import Parsed, Region, Statement
from graph.ir import TensorType
from graph.limits import Limits

MAIN = "main"
CALLS = frozenset({"func.call", "call", "stablehlo.composite"})
#: Ops with one result, and their least operands.
FORMS = {
    "broadcast_in_dim": 1,
    "constant": 0,
    "convolution": 2,
    "dot_general": 2,
    "iota": 0,
    "reshape": 1,
    "sdy.sharding_constraint": 1,
}
RETURNS = frozenset({"func.return", "return", "stablehlo.return", "sdy.return"})

_FLOATS = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8e4m3fn",
    "f8E4M3FNUZ": "float8e4m3fnuz",
    "f8E5M2": "float8e5m2",
    "f8E5M2FNUZ": "float8e5m2fnuz",
    "f8E8M0FNU": "float8e8m0",
    "f4E2M1FN": "float4e2m1",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "i1": "bool",
}
_INTEGER = re.compile(r"(?P<unsigned>ui|u)?(?:si|i)?(?P<bits>2|4|8|16|32|64)")
_TENSOR = re.compile(r"tensor<(?P<shape>(?:(?:\d{1,18}|\?)x)*)(?P<dtype>[^,x?][^,]*?)(?:,.*)?>", re.DOTALL)
_DONATED = re.compile(r"tf\.aliasing_output = (\d{1,9})\b")
_FREED = "jax.buffer_donor = true"
_CONSTANT = re.compile(r"dense<(-?\d{1,18})>")
_NAME = re.compile(r'"(?P<name>(?:[^"\\]|\\.)*)"')
_LINE = re.compile(r'"(?P<file>[^"\s]+)":(?P<line>\d+)')
_ALIAS = re.compile(r"#[\w$.\-]*")


def inlined(parsed: Parsed, limits: Limits) -> Module:
    """The function `main`, or the first one, with all it calls. Raises BadGraph."""
    if not parsed.functions:
        raise BadGraph.one("not_a_model", "document", "no function", "a StableHLO module", "send `lowered.as_text()`")
    main = parsed.functions.get(MAIN) or next(iter(parsed.functions.values()))
    return _Inliner(parsed, limits).module(main)


def type_of(text: str, place: str) -> TensorType | None:
    """Type of the text of an MLIR type; None for a token. Raises BadGraph.

    Example:
        >>> str(type_of("tensor<4x8xbf16>", "%0"))
        'bfloat16[4,8]'
    """
    if text == "!stablehlo.token":
        return None
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise BadGraph.one(
            "unknown_dtype", place, quoted(text), "a tensor or a token", "export the program without tuples"
        )
    lengths = match["shape"].split("x")[:-1]
    if "?" in lengths:
        raise BadGraph.one(
            "unknown_size", place, quoted(text), "a known shape", "lower the program for arguments of fixed shapes"
        )
    return TensorType(_dtype_of(match["dtype"], place), tuple(map(int, lengths)))


def _dtype_of(text: str, place: str) -> str:
    if text in _FLOATS:
        return _FLOATS[text]
    match = _INTEGER.fullmatch(text)
    if match is None:
        expected = "an element type of StableHLO that is not quantized"
        raise BadGraph.one("unknown_dtype", place, quoted(text), expected, "convert it before the export")
    return f"{'uint' if match['unsigned'] else 'int'}{match['bits']}"


class _Inliner:
    def __init__(self, parsed: Parsed, limits: Limits):
        self.parsed, self.limits = parsed, limits
        self.count = 0  # of ops and calls
        self.ops_named, self.values_named = Counter[str](), Counter[str]()
        self.calls: list[str] = []  # functions that are being inlined
        self.call_location = ""  # of the innermost call
        self.locations: dict[str, tuple[str, str]] = {}

    def module(self, main: Region) -> Module:
        body = Body([], [], [])
        donors = []
        for declared in main.arguments:
            name, _ = self._place(declared.location)
            value = self._value(name or declared.name[1:], declared.type, declared.name)
            body.inputs.append(value)
            donors.append((value, declared.attributes))
        body.results = self._block(main, dict(zip(self._names(main), body.inputs, strict=True)), body.ops)
        return Module(self.parsed.name, body, _donations(donors, body))

    def _names(self, region: Region) -> list[str]:
        return [declared.name for declared in region.arguments]

    def _value(self, name: str, type: str, place: str) -> Value:
        return Value(_unique(name, self.values_named), type_of(type, place))

    def _block(self, region: Region, known: dict[str, Value], ops: list[Op]) -> list[Value]:
        """Append the ops of a block to `ops`; returns what the block returns."""
        for statement in region.statements:
            if statement.op in RETURNS:
                return [self._read(name, known, statement) for name in statement.operands]
            if statement.op in CALLS:
                self._call(statement, known, ops)
            else:
                self._op(statement, known, ops)
        return []

    def _read(self, name: str, known: Mapping[str, Value], statement: Statement) -> Value:
        value = known.get(name) or known.get(name.removesuffix("#0"))
        if value is None:
            place = quoted(statement.text)
            raise BadGraph.one("undefined_value", place, name, "a value defined above", "export the program again")
        return value

    def _call(self, statement: Statement, known: dict[str, Value], ops: list[Op]) -> None:
        """Inline a function. A composite op is what decomposes it."""
        self._count()
        callee = self._callee(statement)
        function = self.parsed.functions.get(callee)
        operands = [self._read(name, known, statement) for name in statement.operands]
        if function is None or len(function.arguments) != len(operands):
            expected = "a function of the module with as many arguments"
            raise BadGraph.one("undefined_value", quoted(statement.text), callee, expected, "export the program again")
        if callee in self.calls or len(self.calls) >= self.limits.depth:
            expected = f"calls at most {self.limits.depth} deep, none of itself"
            raise BadGraph.one("too_deep", quoted(statement.text), " > ".join(self.calls), expected, "flatten them")
        around = self.call_location
        self.call_location, _ = self._place_in_call(statement)
        self.calls.append(callee)
        results = self._block(function, dict(zip(self._names(function), operands, strict=True)), ops)
        self.calls.pop()
        self.call_location = around
        known.update(zip(statement.outputs, results, strict=False))

    def _callee(self, statement: Statement) -> str:
        if statement.op != "stablehlo.composite":
            return statement.callee
        match = re.search(r'decomposition = @"?([\w.$\-]+)', statement.text)
        return match[1] if match else statement.callee

    def _op(self, statement: Statement, known: dict[str, Value], ops: list[Op]) -> None:
        self._count()
        _check_form(statement)
        if statement.op == "sdy.sharding_constraint" or "custom_call @Sharding(" in statement.text:
            known[statement.outputs[0]] = self._read(statement.operands[0], known, statement)
            return
        location, line = self._place_in_call(statement)
        kind = statement.op.removeprefix("stablehlo.")
        operands = [self._read(name, known, statement) for name in statement.operands]
        if kind == "optimization_barrier":
            for name, operand in zip(statement.outputs, operands, strict=True):
                op = Op(_unique(kind, self.ops_named), kind, [operand], [], statement.text, location, line)
                known[name] = Value(_unique(op.name, self.values_named), operand.type)
                op.outputs.append(known[name])
                ops.append(op)
            return
        op = Op(_unique(kind, self.ops_named), kind, operands, [], statement.text, location, line)
        op.bodies = [self._region(region, statement, known) for region in statement.regions]
        several = len(statement.types) > 1
        for i, (name, type) in enumerate(zip(statement.outputs, statement.types, strict=True)):
            value = self._value(f"{op.name}.{i}" if several else op.name, type, op.name)
            match = _CONSTANT.search(statement.text) if kind == "constant" else None
            value.constant = int(match[1]) if match else None
            op.outputs.append(value)
            known[name] = value
        if kind == "while":  # what a loop hands on as it came is not another value
            carried = {len(op.operands), len(op.outputs), *(len(body.inputs) for body in op.bodies)}
            if len(op.bodies) != 2 or carried != {len(op.bodies[1].results)}:
                raise _malformed(statement)
            kept = zip(op.bodies[1].inputs, op.bodies[1].results, strict=True)
            for name, operand, (begin, end) in zip(statement.outputs, operands, kept, strict=True):
                known[name] = operand if begin is end else known[name]
        ops.append(op)

    def _region(self, region: Region, statement: Statement, known: Mapping[str, Value]) -> Body:
        """A nested block, which sees the values around it."""
        inner, body = dict(known), Body([], [], [])
        names, types = self._names(region), [declared.type for declared in region.arguments]
        if statement.bound:
            names, types = statement.bound, statement.types
        for name, type in zip(names, types, strict=False):
            inner[name] = self._value(name[1:], type, name)
            body.inputs.append(inner[name])
        body.results = self._block(region, inner, body.ops)
        return body

    def _count(self) -> None:
        """Count an op or a call, of which there are many more than the text has where functions call twice."""
        self.count += 1
        if self.count > self.limits.nodes:
            found = f"more than {self.limits.nodes:,} ops once calls are inlined"
            raise BadGraph.one("too_large", "document", found, "fewer", "plan a smaller model, or raise the limit")

    def _place_in_call(self, statement: Statement) -> tuple[str, str]:
        """Place of a statement; its name follows that of the call which is inlined."""
        name, line = self._place(statement.location)
        around = self.call_location
        return (name if not around or name.startswith(around) else f"{around}/{name}".rstrip("/")), line

    def _place(self, location: str, depth: int = 0) -> tuple[str, str]:
        """(name in the user's program, file and line) of the text of a location; "" where it has none."""
        if location not in self.locations:
            self.locations[location] = "", ""  # of a location that names itself
            name, line = _NAME.match(location), _LINE.match(location)
            aliases = _ALIAS.findall(location) if depth < self.limits.depth else []
            inner = [self._place(self.parsed.locations.get(alias, ""), depth + 1) for alias in aliases]
            own = name["name"] if name and not line else ""
            self.locations[location] = (
                own or next((found for found, _ in inner if found), ""),
                (f"{line['file'].rpartition('/')[2]}:{line['line']}" if line else "")
                or next((found for _, found in inner if found), ""),
            )
        return self.locations[location]


def _check_form(statement: Statement) -> None:
    """Raise BadGraph for an op of FORMS with another number of results, or fewer operands."""
    operands, results = len(statement.operands), len(statement.outputs)
    kind = statement.op.removeprefix("stablehlo.")
    if kind == "optimization_barrier":
        is_right = operands == results
    else:
        needed = FORMS.get(kind, 1 if "custom_call @Sharding(" in statement.text else None)
        is_right = needed is None or (operands >= needed and results == 1)
    if not is_right:
        raise _malformed(statement)


def _malformed(statement: Statement) -> BadGraph:
    found = f"{len(statement.operands)} operands, {len(statement.outputs)} results, {len(statement.regions)} regions"
    expected = "as many as StableHLO gives this op"
    return BadGraph.one("not_a_model", quoted(statement.text), found, expected, "export the program again")


def _unique(name: str, used: Counter[str]) -> str:
    """The name, with a number if it was used before."""
    while True:
        used[name] += 1
        if used[name] == 1:
            return name
        name = f"{name}_{used[name] - 1}"


def _donations(donors: list[tuple[Value, str]], body: Body) -> dict[int, int]:
    """Result -> argument whose storage it takes: as named, else the first of the same type as a freed argument."""
    donated: dict[int, int] = {}
    for argument, (_, attributes) in enumerate(donors):
        if (match := _DONATED.search(attributes)) and int(match[1]) < len(body.results):
            donated[int(match[1])] = argument
    for argument, (value, attributes) in enumerate(donors):
        if _FREED in attributes:
            free = (r for r, result in enumerate(body.results) if r not in donated and result.type == value.type)
            if (result := next(free, None)) is not None:
                donated[result] = argument
    return donated
