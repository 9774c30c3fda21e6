"""Optimizer state sharded over ranks: collective nodes, and the part of a tensor that one rank holds.

A part is flat: elements [rank · k, (rank + 1) · k) of the tensor padded with zeros to `ranks` · k elements. The graph
is that of one rank, the same for every rank: `Part` reads the rank of its process. These ops have no kernel, since
one process executes; plans never repeat a collective.
Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020; gradients are reduced as soon as they are complete, as in stage 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from graph.builder.emit import Emit
from graph.ir import Effect, TensorType, Val

DOMAIN = "collective"


@dataclass(frozen=True, slots=True)
class Ranks:
    """Emits the nodes that exchange data between `count` ranks."""

    count: int

    def shape_of_part(self, type: TensorType) -> tuple[int]:
        return (-(-type.elements // self.count),)

    def part(self, emit: Emit, whole: Val) -> Val:
        """This rank's part of a tensor that every rank has."""
        return self._node(emit, "Part", [whole], TensorType(whole.dtype, self.shape_of_part(whole.type)))

    def reduce_scatter(self, emit: Emit, whole: Val) -> Val:
        """This rank's part of the sum over ranks."""
        return self._node(emit, "ReduceScatter", [whole], TensorType(whole.dtype, self.shape_of_part(whole.type)))

    def all_reduce(self, emit: Emit, x: Val) -> Val:
        """The sum over ranks."""
        return self._node(emit, "AllReduce", [x], x.type)

    def all_gather(self, emit: Emit, old: Val, part: Val) -> Val:
        """The parts of all ranks without the padding, written over `old`."""
        return self._node(emit, "AllGather", [old, part], old.type, ((0, 0),))

    def _node(
        self, emit: Emit, op: str, inputs: list[Val], type: TensorType, in_place: tuple[tuple[int, int], ...] = ()
    ) -> Val:
        communicates = {} if op == "Part" else {"effect": Effect.COLLECTIVE, "recompute": "never"}
        (v,) = emit.builder.node(
            f"{DOMAIN}::{op}",
            [x.id for x in inputs],
            name=emit.prefix,
            types=[type],
            attributes={"ranks": self.count},
            phase=emit.phase,
            in_place=in_place,
            **communicates,
            **emit.node_fields,
        )
        return emit.val(v)
