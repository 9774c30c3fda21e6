"""The update phase of a training step: the nodes and state that implement the optimizer recipe.

    gradient ──▶ cast ──▶ accumulate ──▶ clip ──▶ optimizer ──▶ weights' (in place), moments' (in place)

A gradient is cast and accumulated as soon as it is complete, so that only the result is live. With `as_ready` the
parameter is updated at that point too, in the backward phase; otherwise all updates are in the update phase.

With `shards`, each rank updates its part of every parameter (`sharded_update.py`):

    gradient ──▶ cast ──▶ reduce-scatter ──▶ accumulate ──▶ clip ──▶ optimizer on the part ──▶ all-gather ──▶ weights'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.ir import NARROW_FLOATS, Graph, Phase, Role, TensorType, Val
from graph.ops.training.blockwise_optimizer import CODES, blocks
from graph.training.device_mesh import MAPPING, MESH, has_mesh
from graph.training.optimizer_recipe import DEFAULTS, EIGHT_BITS, Recipe
from graph.training.sharded_update import Ranks

SMALLEST_QUANTIZED = 4096  # elements; states of fewer stay in float32


class UpdateBuilder:
    """Adds update nodes to a builder: `ready` for each complete gradient, `finish` after the backward pass."""

    def __init__(self, builder: Builder, graph: Graph, recipe: Recipe):
        self.builder, self.recipe = builder, recipe
        self.parameters = {
            v for v, value in enumerate(graph.values) if value.role is Role.PARAMETER and value.type is not None
        }
        self.updated: set[int] = set()  # parameters whose gradient ends in an update
        self.sums: dict[int, Val] = {}  # parameter -> gradient sum, this micro-batch included
        self.parts: dict[int, Val] = {}  # parameter -> its gradient's part of this rank; without shards none
        self.ranks = Ranks(recipe.shards)
        self.step: Val | None = None
        self.constants: dict[Any, Val] = {}
        self.as_ready = recipe.update == "as_ready"
        if self.is_sharded and has_mesh(graph):
            raise BadGraph.one(
                "bad_recipe",
                "recipe.shards",
                f"{recipe.shards} shards and nodes with a {MESH}",
                "a graph without sharding annotations",
                "remove shards: the mesh says what is sharded",
            )
        # of the gradients, to be those of the mean loss over micro-batches and ranks
        self.divisor = recipe.accumulate * recipe.loss_scale * recipe.shards

    @property
    def is_sharded(self) -> bool:
        return self.recipe.shards > 1

    def ready(self, v: int, gradient: int) -> int:
        """The value that replaces the gradient of `v`: cast and accumulated as in the recipe."""
        type = self.builder.values[gradient].type
        if type is None:
            self._check_sizes_only(v)
            return gradient
        if v not in self.parameters and self.recipe.gradient_dtype is None:
            return gradient
        emit = self._emit(v, Phase.BACKWARD)
        whole = g = emit.cast(Val(gradient, type), self.recipe.gradient_dtype or type.dtype)
        if v not in self.parameters:
            return g.id
        if self.is_sharded:
            g = self.ranks.reduce_scatter(emit, g)
        if self.recipe.accumulate > 1:
            g = self.sums[v] = self._in_place(emit, "Add", self._state(v, "gradient_sum", g.dtype), g)
        if self.is_sharded:
            self.parts[v] = g
        if self.recipe.optimizer != "none":
            self.updated.add(v)
            if self.as_ready:
                self._update(v, g, None)
        return whole.id if self.is_sharded else g.id

    def _check_sizes_only(self, v: int) -> None:
        """Raise BadGraph when the recipe changes a parameter that has a size but no type."""
        value = self.builder.values[v]
        if value.role is Role.PARAMETER and self.recipe != Recipe():
            raise BadGraph.one(
                "bad_recipe",
                "recipe",
                f"parameter {quoted(value.name)} without a type",
                "typed parameters to update",
                "declare its shape and dtype, or remove the recipe",
            )

    def finish(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Add the updates of all parameters after the backward pass, in the order in which gradients were completed."""
        if self.recipe.optimizer == "none" or self.as_ready:
            return
        completed = sorted((gradient, v) for v, gradient in pairs if v in self.updated)
        gradients = [(v, self.parts.get(v) or self._emit(v).val(gradient)) for gradient, v in completed]
        factor = self._clipping(gradients) if self.recipe.clip is not None else None
        for v, g in gradients:
            self._update(v, g, factor)

    def _clipping(self, gradients: Sequence[tuple[int, Val]]) -> Val:
        """min(1, clip / norm) / divisor, with the global norm of the gradients divided by `divisor`.

        Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
        """
        emit = Emit(self.builder, "update/clip", Phase.UPDATE, self.constants)
        squares = [self._emit(v).op("remat::SquaredNorm", g) for v, g in gradients]
        wide = "float64" if any(s.dtype == "float64" for s in squares) else "float32"
        squares = [emit.cast(s, wide) for s in squares]
        total = emit.op("Sum", *squares) if len(squares) > 1 else squares[0]
        norm = emit.op("Sqrt", self.ranks.all_reduce(emit, total) if self.is_sharded else total)
        norm = emit.div_by(norm, self.divisor) if self.divisor != 1 else norm
        clip = emit.scalar_like(float(self.recipe.clip or 0), norm)
        ratio = emit.div(clip, emit.op("Max", norm, emit.scalar_like(1e-12, norm)))
        factor = emit.op("Min", ratio, emit.scalar_like(1, norm))
        return emit.div_by(factor, self.divisor) if self.divisor != 1 else factor

    def _update(self, v: int, gradient: Val, factor: Val | None) -> None:
        """Add the nodes that update one parameter and its state in place."""
        emit = self._emit(v)
        weight = emit.val(v)
        if self.recipe.loss_scale != 1 and gradient.dtype in NARROW_FLOATS:
            gradient = emit.cast(gradient, "float32")  # it would underflow otherwise, which the scale prevents
        if factor is not None:
            gradient = emit.mul(gradient, emit.cast(factor, gradient.dtype))
        elif self.divisor != 1:
            gradient = emit.div_by(gradient, self.divisor)
        master = self.recipe.master_weights and weight.dtype in NARROW_FLOATS
        part = weight if master or not self.is_sharded else self.ranks.part(emit, weight)
        old = self._state(v, "master", "float32") if master else part
        new = self._optimized(v, emit, old, gradient)
        if self.is_sharded:
            self.ranks.all_gather(emit, weight, emit.cast(new, weight.dtype))
        elif master:
            self._in_place(emit, "remat::Assign", weight, new)
        if self.recipe.ema is not None:
            average = self._state(v, "average", "float64" if weight.dtype == "float64" else "float32")
            self._in_place(emit, "remat::MovingAverage", average, new, decay=self.recipe.ema)
        if v in self.sums:
            self._in_place(emit, "remat::Clear", self.sums[v])

    def _optimized(self, v: int, emit: Emit, weight: Val, gradient: Val) -> Val:
        """The new weight; the optimizer state is updated in place."""
        recipe = self.recipe
        lr = recipe.learning_rate or (0.001 if recipe.optimizer == "adam" else 0.01)
        numbers: dict[str, Any] = {"lr": lr}
        if recipe.weight_decay:
            numbers["weight_decay"] = recipe.weight_decay
        if recipe.optimizer == "sgd":
            bits, states = self._moments(v, weight, ("momentum",) if recipe.momentum else ())
            numbers |= {"momentum": recipe.momentum, **({"nesterov": 1} if recipe.nesterov else {})}
            return self._in_place(emit, f"remat::SGD{bits}", weight, gradient, *states, states=states, **numbers)
        if recipe.optimizer == "adafactor":
            states = self._factored_states(v, weight)
            count = self._count()
            return self._in_place(emit, "remat::Adafactor", weight, gradient, count, *states, states=states, **numbers)
        bits, states = self._moments(v, weight, ("first_moment", "second_moment"))
        if recipe.betas != DEFAULTS.betas:
            numbers |= {"beta1": recipe.betas[0], "beta2": recipe.betas[1]}
        if recipe.epsilon != DEFAULTS.epsilon:
            numbers["epsilon"] = recipe.epsilon
        inputs = [gradient, *states, self._count()]
        return self._in_place(emit, f"remat::Adam{bits}", weight, *inputs, states=states, **numbers)

    def _moments(self, v: int, weight: Val, names: Sequence[str]) -> tuple[str, list[Val]]:
        """(suffix of the optimizer op, states): with 8 bits codes and block scales of each moment."""
        dtype = self.recipe.state_dtype
        if weight.dtype == "float64":
            dtype = "float64"
        elif dtype == EIGHT_BITS and weight.type.elements < SMALLEST_QUANTIZED:
            dtype = "float32"
        if dtype != EIGHT_BITS:
            return "", [self._state(v, name, dtype) for name in names]
        states = []
        for name in names:
            states.append(self._state(v, name, CODES))
            states.append(self._state(v, f"{name}_scale", "float32", (blocks(weight.type.elements),)))
        return EIGHT_BITS if names else "", states

    def _factored_states(self, v: int, weight: Val) -> list[Val]:
        """Means of the squared gradient over the last axis and over the one before; the whole of it below rank 2."""
        dtype = "float64" if weight.dtype == "float64" else "float32"
        if weight.rank < 2:
            return [self._state(v, "second_moment", dtype)]
        rows, columns = (*weight.shape[:-1], 1), (*weight.shape[:-2], 1, weight.shape[-1])
        return [self._state(v, "row_moment", dtype, rows), self._state(v, "column_moment", dtype, columns)]

    def _count(self) -> Val:
        """The step counter, from 1, shared by all parameters."""
        if self.step is None:
            phase = Phase.BACKWARD if self.as_ready else Phase.UPDATE
            emit = Emit(self.builder, "update/step", phase, self.constants)
            before = emit.val(
                self.builder.value("step", TensorType("int64", ()), Role.STATE, data=np.asarray(0, np.int64))
            )
            self.step = self._in_place(emit, "Add", before, emit.constant(np.asarray(1, np.int64)))
        return self.step

    def _in_place(
        self, emit: Emit, op: str, old: Val, *rest: Val, states: Sequence[Val] = (), **attributes: Any
    ) -> Val:
        """The first output of a new node that overwrites its first input; its other outputs overwrite `states`."""
        inputs = [old, *rest]
        places = [0, *(inputs.index(state) for state in states)]
        ids = self.builder.node(
            op,
            [x.id for x in inputs],
            name=emit.prefix,
            outputs=1 + len(states),
            attributes=attributes,
            in_place=tuple(enumerate(places)),
            phase=emit.phase,
            **emit.node_fields,
        )
        return emit.val(ids[0])

    def _state(self, v: int, what: str, dtype: str, shape: tuple[int, ...] | None = None) -> Val:
        """A new state value, by default with the shape of the parameter, or of its part of one rank."""
        value = self.builder.values[v]
        assert value.type is not None
        if shape is None:
            shape = self.ranks.shape_of_part(value.type) if self.is_sharded else value.type.shape
        type = TensorType(dtype, shape)
        annotations = {**value.annotations, "state_of": value.name}
        if MAPPING in annotations and shape != value.type.shape:
            annotations[MAPPING] = [-1] * len(shape)
        return Val(self.builder.value(f"{value.name}/{what}", type, Role.STATE, annotations=annotations), type)

    def _emit(self, v: int, phase: Phase | None = None) -> Emit:
        value = self.builder.values[v]
        if phase is None:
            phase = Phase.BACKWARD if self.as_ready else Phase.UPDATE
        return Emit(
            self.builder,
            f"update/{value.name}",
            phase,
            self.constants,
            annotations={**value.annotations, "update_of": value.name},
        )
