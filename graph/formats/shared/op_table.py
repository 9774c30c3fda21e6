"""Tables that say what another framework's op is in ops of ours.

MXNET = Table("mxnet")

@MXNET.op("Flatten", "flatten")
def flatten(e: Emit, use: Use, x: Val) -> Val:
    return e.op("Flatten", x, axis=1)

A rule sees typed inputs, so it can write lengths down. An op without a rule stays opaque as `mxnet::Name`.
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

#: What a rule may raise on attributes or types it was not made for.
OP_RULE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class Unmapped(Exception):
    """Raised by a rule for a use of its op that has no counterpart here: the node stays opaque."""


@dataclass(slots=True)
class OpUse:
    """One use of another framework's op, as a rule sees it."""

    op: str
    given: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # attributes as the file has them
    outputs: int = 1  # how many the file names
    declared: tuple[TensorType | None, ...] = ()  # what the file says of the outputs
    losses: list[Val] = field(default_factory=list)  # what training minimises, where the op is a loss without one

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.given)

    def output_type(self, position: int = 0) -> TensorType:
        """What the file says of an output. Raises Unmapped when it says nothing."""
        found = self.declared[position] if position < len(self.declared) else None
        if found is None:
            raise Unmapped
        return found


@dataclass(frozen=True, slots=True)
class Translation:
    """An op as a graph of its own. Values i0, i1, ... are its inputs, absent ones left out."""

    graph: Graph
    inputs: tuple[int | None, ...]  # per input of the op its value, None where absent
    outputs: tuple[int | None, ...]  # per output the file names its value, each written by a node of its own
    losses: tuple[int, ...]  # values the op's framework would minimise, beside the outputs


TranslationRule = Callable[..., Any]  # rule(emit, use, *inputs: Val or None) -> Val, or tuple of Val or None


class OpTable:
    """Rules by op type of one framework."""

    def __init__(self, framework: str):
        self.framework = framework
        self.rules: dict[str, TranslationRule] = {}

    def op(self, *types: str) -> Callable[[TranslationRule], TranslationRule]:
        """Register the decorated rule for each op type named."""

        def register(rule: TranslationRule) -> TranslationRule:
            for type in types:
                if type in self.rules:
                    raise ValueError(f"{self.framework} op {type} has two rules")
                self.rules[type] = rule
            return rule

        return register

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
    ) -> Translation | None:
        """The op in ops of ours, None where it has no counterpart.

        `inputs` are the types of the op's inputs, None where absent; `contents` what is known to be in them.
        Nodes are called after `name`. Raises BadGraph when the op does not take these inputs or attributes.
        """
        rule = self.rules.get(type)
        if rule is None:
            return None
        builder = Builder(name)
        emit, use = Emit(builder, name or type, Phase.FORWARD), OpUse(type, attributes, outputs, tuple(declared))
        given: list[Val | None] = []
        for i, t in enumerate(inputs):
            data = contents[i] if i < len(contents) else None
            role = Role.INPUT if data is None else Role.CONSTANT
            given.append(None if t is None else emit.val(builder.value(f"i{i}", t, role, data=data)))
        try:
            made = rule(emit, use, *given)
            found = made if isinstance(made, tuple) else (made,)
            ids = _written(emit, [*found[:outputs], *[None] * (outputs - len(found))])
        except Unmapped:
            return None
        except BadGraph as error:
            raise self._refused(type, name, str(error.findings[0].found)) from None
        except OP_RULE_ERRORS as error:
            why = str(error)[:300] if isinstance(error, ValueError) else "inputs the op does not take"
            raise self._refused(type, name, why) from None
        losses = tuple(v.id for v in use.losses)
        graph = builder.build([v for v in (*ids, *losses) if v is not None])
        return Translation(graph, tuple(None if v is None else v.id for v in given), ids, losses)

    def _refused(self, type: str, name: str, why: str) -> BadGraph:
        return BadGraph.one(
            "type_conflict",
            f"{self.framework} op {quoted(name or type)}",
            f"{type}: {why}",
            "inputs and attributes the op takes",
            "correct the shapes or attributes of this op",
        )


def _written(emit: Emit, found: Sequence[Val | None]) -> tuple[int | None, ...]:
    """Ids of the outputs; an input, a constant or a repeated value gets a node that hands it on."""
    written = {v for node in emit.builder.nodes for v in node.writes}
    ids: list[int | None] = []
    for val in found:
        if val is not None and val.id not in written - set(ids):
            val = emit.op("Identity", val)
        ids.append(None if val is None else val.id)
    return tuple(ids)
