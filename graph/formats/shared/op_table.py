"""Op tables: rules that translate another framework's op to ONNX and `remat` ops.

MXNET = OpTable("mxnet")

@MXNET.op("Flatten", "flatten")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Flatten", x, axis=1)

Ops that only rename or rescale are rows: MXNET.rows(unary, {"Neg": "negative"}). Rules receive typed inputs and may
emit constant shapes. An op without a rule stays opaque as `mxnet::Name`. So does a use with an attribute that the rule
does not read, unless the table lists the attribute as harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.formats.shared.attributes import Attributes
from graph.ir import EMPTY, Graph, Phase, Role, TensorType, Val

#: Exceptions that a rule may raise for unsupported attributes or types.
OP_RULE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class Unmapped(Exception):
    """Raised by a rule when this use of the op has no translation: the node stays opaque."""


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why an op stays opaque; `reason` is empty for an op without a rule."""

    reason: str = ""


@dataclass(slots=True)
class OpUse(Attributes):
    """One use of another framework's op, and its attributes: the input of a rule."""

    op: str
    given: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # attributes as the file has them
    outputs: int = 1  # number of outputs named in the file
    declared: tuple[TensorType | None, ...] = ()  # types of the outputs declared in the file
    losses: list[Val] = field(default_factory=list)  # set by rules of loss ops whose outputs omit the loss value
    read: set[str] = field(default_factory=set)  # names of the attributes that look-ups requested

    def output_type(self, position: int = 0) -> TensorType:
        """Type of an output declared in the file. Raises Unmapped when undeclared."""
        type = self.declared[position] if position < len(self.declared) else None
        if type is None:
            raise Unmapped
        return type


@dataclass(frozen=True, slots=True)
class Translation:
    """Translation of one op: a graph whose values i0, i1, ... are the op's present inputs."""

    graph: Graph
    inputs: tuple[int | None, ...]  # per input of the op: value id, None where absent
    outputs: tuple[int | None, ...]  # per output named in the file: value id, each written by a different node
    losses: tuple[int, ...]  # loss values that the framework minimises, in addition to the outputs


TranslationRule = Callable[..., Any]  # rule(emit, use, *inputs: Val or None) -> Val, or tuple of Val or None


class OpTable:
    """Translation rules of one framework by op type."""

    def __init__(self, framework: str, harmless: str = ""):
        """`harmless`: attributes without an effect on any op, see `harmless`."""
        self.framework = framework
        self.rules: dict[str, TranslationRule] = {}
        self._harmless: dict[str, frozenset[str]] = {"": frozenset(harmless.split())}

    def op(self, *types: str) -> Callable[[TranslationRule], TranslationRule]:
        """Decorator: register a rule for the op types named. Raises ValueError for a second rule of one type."""

        def register(rule: TranslationRule) -> TranslationRule:
            for type in types:
                if type in self.rules:
                    raise ValueError(f"{self.framework} op {type} has two rules")
                self.rules[type] = rule
            return rule

        return register

    def rows(self, rule_of: Callable[[str], TranslationRule], rows: Mapping[str, str]) -> None:
        """Register `rule_of(op)` for each row, a standard op and the op types of the framework: "Neg": "negative"."""
        for op, types in rows.items():
            self.op(*types.split())(rule_of(op))

    def rules_of(self, rows: Mapping[str, TranslationRule]) -> None:
        """Register a rule for the op types of each row: "square Sqr": rule."""
        for types, rule in rows.items():
            self.op(*types.split())(rule)

    def harmless(self, rows: Mapping[str, str]) -> None:
        """List attributes that change neither results nor gradients: {"op types": "name name=value"}.

        `name=value` is harmless with this value only, such as a default or the flag of an absent fusion.
        """
        for types, attributes in rows.items():
            for type in types.split():
                self._harmless[type] = self._harmless.get(type, frozenset()) | frozenset(attributes.split())

    def is_harmless(self, type: str, name: str, value: Any) -> bool:
        """True for an attribute that is listed as harmless for the op type, or for all."""
        listed = self._harmless[""] | self._harmless.get(type, frozenset())
        return name in listed or f"{name}={_plain_text(value)}" in listed

    def translate(
        self,
        type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[TensorType | None],
        *,
        name: str = "",
        outputs: int = 1,
        declared: Sequence[TensorType | None] = (),
        contents: Sequence[np.ndarray | None] = (),
    ) -> Translation | Untranslated:
        """The op translated to a graph, or why it stays opaque.

        `inputs` are the types of the op's inputs, None where absent; `contents` their constant values where known;
        `name` is the prefix of node names. Raises BadGraph when the op does not accept these inputs or attributes.
        """
        rule = self.rules.get(type)
        if rule is None:
            return Untranslated()
        builder = Builder(name)
        emit, use = Emit(builder, name or type, Phase.FORWARD), OpUse(type, attributes, outputs, tuple(declared))
        given = _declared_inputs(emit, inputs, contents)
        try:
            returned = rule(emit, use, *given)
            results = returned if isinstance(returned, tuple) else (returned,)
            ids = _distinct_outputs(emit, [*results[:outputs], *[None] * (outputs - len(results))])
        except Unmapped:
            return Untranslated("these attributes or inputs have no translation")
        except BadGraph as error:
            raise self._type_conflict(type, name, str(error.findings[0].found)) from None
        except OP_RULE_ERRORS as error:
            reason = str(error)[:300] if isinstance(error, ValueError) else "inputs the op does not take"
            raise self._type_conflict(type, name, reason) from None
        if unread := [name for name, value in use.unread().items() if not self.is_harmless(type, name, value)]:
            return Untranslated(f"attribute {', '.join(map(quoted, unread))} has no translation")
        losses = tuple(v.id for v in use.losses)
        graph = builder.build([v for v in (*ids, *losses) if v is not None])
        return Translation(graph, tuple(None if v is None else v.id for v in given), ids, losses)

    def _type_conflict(self, type: str, name: str, reason: str) -> BadGraph:
        return BadGraph.one(
            "type_conflict",
            f"{self.framework} op {quoted(name or type)}",
            f"{type}: {reason}",
            "inputs and attributes the op takes",
            "correct the shapes or attributes of this op",
        )


def _plain_text(value: Any) -> str:
    """Text of an attribute as lists of harmless values have it: 0 for False, 1 for True, no point after integers."""
    text = str(value).replace(" ", "")
    text = {"False": "0", "false": "0", "True": "1", "true": "1"}.get(text, text)
    return text.removesuffix(".0")


def _declared_inputs(
    emit: Emit, types: Sequence[TensorType | None], contents: Sequence[np.ndarray | None]
) -> list[Val | None]:
    """Inputs i0, i1, ... of the translation; constants where the content is known, None where absent."""
    found: list[Val | None] = []
    for i, type in enumerate(types):
        data = contents[i] if i < len(contents) else None
        role = Role.INPUT if data is None else Role.CONSTANT
        found.append(None if type is None else emit.val(emit.builder.value(f"i{i}", type, role, data=data)))
    return found


def _distinct_outputs(emit: Emit, results: Sequence[Val | None]) -> tuple[int | None, ...]:
    """Ids of the outputs; an input, a constant or a repeated value is copied by an Identity node."""
    written = {v for node in emit.builder.nodes for v in node.writes}
    ids: list[int | None] = []
    for val in results:
        if val is not None and val.id not in written - set(ids):
            val = emit.op("Identity", val)
        ids.append(None if val is None else val.id)
    return tuple(ids)
