"""The update phase of a training step: the optimizer recipe, and the nodes and state that implement it.

    gradient ──▶ cast ──▶ accumulate ──▶ clip ──▶ optimizer ──▶ weights' (in place), moments' (in place)

A gradient is cast and accumulated as soon as it is complete, so that only the result is live. With `as_ready` the
parameter is updated at that point too, in the backward phase; otherwise all updates are in the update phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY, NARROW_FLOATS, Graph, Phase, Role, TensorType, Val

OPTIMIZERS = ("none", "sgd", "adam", "adafactor")
UPDATES = ("after_all", "as_ready")
STATE_DTYPES = ("float32", "bfloat16", "float16")
GRADIENT_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Optimizer and update options; the fields of `recipe` in a request."""

    optimizer: str = "none"
    learning_rate: float | None = None  # None: 0.001 for adam, 0.01 for the others
    momentum: float = 0.0  # of sgd; 0: no velocity buffer
    nesterov: bool = False  # of sgd with momentum
    betas: tuple[float, float] = (0.9, 0.999)  # of adam: decay of the first and of the second moment
    epsilon: float = 1e-8  # of adam: added to the root of the second moment
    weight_decay: float = 0.0  # sgd: added to the gradient; adam and adafactor: decoupled from it
    state_dtype: str = "float32"  # of velocity and moments; float64 parameters have float64 states
    loss_scale: float = 1.0  # factor of the loss's gradient; divided out again before clipping and update
    master_weights: bool = False  # True: update float32 copies of half-precision parameters
    ema: float | None = None  # decay of an exponential moving average of the weights; None: no average
    gradient_dtype: str | None = None  # cast each complete gradient to this dtype; None: no cast
    accumulate: int = 1  # micro-batches whose gradients are summed; the graph is the last of them
    clip: float | None = None  # maximum global gradient norm; None: no clipping
    update: str = "after_all"  # or "as_ready": update each parameter after its last reader


_DEFAULTS = Recipe()


def _number(low: float, high: float = float("inf"), open_low: bool = False) -> Callable[[Any], bool]:
    def fits(given: Any) -> bool:
        if isinstance(given, bool) or not isinstance(given, int | float):
            return False
        return (low < given if open_low else low <= given) and given < high

    return fits


#: field -> (validator, description of the expected value)
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "optimizer": (lambda x: x in OPTIMIZERS, "one of " + ", ".join(OPTIMIZERS)),
    "learning_rate": (_number(0, open_low=True), "a number above 0"),
    "momentum": (_number(0, 1), "a number from 0 to below 1"),
    "nesterov": (lambda x: isinstance(x, bool), "true or false"),
    "betas": (
        lambda x: isinstance(x, list | tuple) and len(x) == 2 and all(map(_number(0, 1), x)),
        "two numbers from 0 to below 1",
    ),
    "epsilon": (_number(0, open_low=True), "a number above 0"),
    "weight_decay": (_number(0), "a number from 0"),
    "state_dtype": (lambda x: x in STATE_DTYPES, "one of " + ", ".join(STATE_DTYPES)),
    "loss_scale": (_number(0, open_low=True), "a number above 0"),
    "master_weights": (lambda x: isinstance(x, bool), "true or false"),
    "ema": (lambda x: isinstance(x, bool) or _number(0, 1, open_low=True)(x), "true, false or a decay between 0 and 1"),
    "gradient_dtype": (lambda x: x in GRADIENT_DTYPES, "one of " + ", ".join(GRADIENT_DTYPES)),
    "accumulate": (lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 1, "a whole number from 1"),
    "clip": (_number(0, open_low=True), "a number above 0"),
    "update": (lambda x: x in UPDATES, "one of " + ", ".join(UPDATES)),
}


_UPDATING = ("sgd", "adam", "adafactor")
#: field -> optimizers that use it; the others are of every recipe
_OPTIMIZERS_OF: Mapping[str, tuple[str, ...]] = {
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "betas": ("adam",),
    "epsilon": ("adam",),
    "state_dtype": ("adam", "sgd"),
    **dict.fromkeys(
        ("learning_rate", "weight_decay", "loss_scale", "master_weights", "ema", "clip", "update"), _UPDATING
    ),
}


def parse_recipe(given: Mapping[str, Any] | None, update: str | None = None) -> Recipe:
    """The validated recipe; `update` is a shorthand for its optimizer. Raises BadGraph with every invalid field."""
    findings = Findings()
    chosen = {name: value for name, value in (given or EMPTY).items() if value is not None}
    if update is not None:
        if chosen.get("optimizer", update) != update:
            findings.add(
                "bad_recipe",
                "differentiate.update",
                repr(update),
                f"{chosen['optimizer']!r}, the optimizer of the recipe",
                "give the optimizer once",
            )
        chosen["optimizer"] = update
    for name, value in chosen.items():
        if name not in _FIELDS:
            findings.add(
                "unknown_field",
                f"recipe.{name}",
                repr(value)[:80],
                "one of " + ", ".join(_FIELDS),
                "remove it or correct its name",
            )
        elif not _FIELDS[name][0](value):
            findings.add("bad_recipe", f"recipe.{name}", repr(value)[:80], _FIELDS[name][1], "correct it")
    if not findings:
        _check_together(chosen, findings)
    findings.settle()
    if isinstance(chosen.get("ema"), bool):
        chosen["ema"] = 0.999 if chosen["ema"] else None
    if "betas" in chosen:
        chosen["betas"] = tuple(chosen["betas"])
    return Recipe(**{f.name: chosen[f.name] for f in fields(Recipe) if f.name in chosen})


def _check_together(chosen: Mapping[str, Any], findings: Findings) -> None:
    """Add findings for combinations of fields that are invalid."""
    optimizer = chosen.get("optimizer", "none")
    for name, value in chosen.items():
        takers = _OPTIMIZERS_OF.get(name, OPTIMIZERS)
        if value and optimizer not in takers:
            findings.add(
                "bad_recipe",
                f"recipe.{name}",
                repr(value)[:80],
                f"a recipe with the optimizer {' or '.join(takers)}",
                f'set "optimizer" to "{takers[0]}", or remove this field',
            )
    if chosen.get("nesterov") and not chosen.get("momentum"):
        findings.add("bad_recipe", "recipe.nesterov", "no momentum", "a momentum above 0", "set momentum")
    if chosen.get("clip") and chosen.get("update") == "as_ready":
        findings.add(
            "bad_recipe",
            "recipe.update",
            "'as_ready' with clip",
            "after_all: the norm needs every gradient",
            'remove clip, or set "update" to "after_all"',
        )


class UpdateBuilder:
    """Adds update nodes to a builder: `ready` for each complete gradient, `finish` after the backward pass."""

    def __init__(self, builder: Builder, graph: Graph, recipe: Recipe):
        self.builder, self.recipe = builder, recipe
        self.parameters = {
            v for v, value in enumerate(graph.values) if value.role is Role.PARAMETER and value.type is not None
        }
        self.updated: set[int] = set()  # parameters whose gradient ends in an update
        self.sums: dict[int, tuple[Val, Val]] = {}  # parameter -> (gradient sum before, after)
        self.step: Val | None = None
        self.constants: dict[Any, Val] = {}
        self.as_ready = recipe.update == "as_ready"
        self.divisor = recipe.accumulate * recipe.loss_scale  # of the gradients, to be those of the mean loss

    def ready(self, v: int, gradient: int) -> int:
        """The value that replaces the gradient of `v`: cast and accumulated as in the recipe."""
        type = self.builder.values[gradient].type
        if type is None:
            self._check_sizes_only(v)
            return gradient
        if v not in self.parameters and self.recipe.gradient_dtype is None:
            return gradient
        emit = self._emit(v, Phase.BACKWARD)
        g = emit.cast(Val(gradient, type), self.recipe.gradient_dtype or type.dtype)
        if v in self.parameters:
            if self.recipe.accumulate > 1:
                state = self._state(v, "gradient_sum", g.dtype)
                added = self._in_place(emit, "Add", state, g)
                self.sums[v] = state, added
                g = added
            if self.recipe.optimizer != "none":
                self.updated.add(v)
                if self.as_ready:
                    self._update(v, g, None)
        return g.id

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
        gradients = [(v, self._emit(v).val(gradient)) for gradient, v in completed]
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
        norm = emit.op("Sqrt", emit.op("Sum", *squares) if len(squares) > 1 else squares[0])
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
        old = self._state(v, "master", "float32") if master else weight
        new = self._optimized(v, emit, old, gradient)
        if master:
            self._in_place(emit, "remat::Assign", weight, new)
        if self.recipe.ema is not None:
            average = self._state(v, "average", "float64" if weight.dtype == "float64" else "float32")
            self._in_place(emit, "remat::MovingAverage", average, new, decay=self.recipe.ema)
        if v in self.sums:
            self._in_place(emit, "remat::Clear", self.sums[v][1])

    def _optimized(self, v: int, emit: Emit, weight: Val, gradient: Val) -> Val:
        """The new weight; the optimizer state is updated in place."""
        recipe = self.recipe
        lr = recipe.learning_rate or (0.001 if recipe.optimizer == "adam" else 0.01)
        numbers: dict[str, Any] = {"lr": lr}
        if recipe.weight_decay:
            numbers["weight_decay"] = recipe.weight_decay
        wide = "float64" if weight.dtype == "float64" else recipe.state_dtype
        if recipe.optimizer == "sgd":
            states = [self._state(v, "momentum", wide)] if recipe.momentum else []
            numbers |= {"momentum": recipe.momentum, **({"nesterov": 1} if recipe.nesterov else {})}
            return self._in_place(emit, "remat::SGD", weight, gradient, *states, states=states, **numbers)
        if recipe.optimizer == "adafactor":
            states = self._factored_states(v, weight)
            count = self._count()
            return self._in_place(emit, "remat::Adafactor", weight, gradient, count, *states, states=states, **numbers)
        states = [self._state(v, name, wide) for name in ("first_moment", "second_moment")]
        if recipe.betas != _DEFAULTS.betas:
            numbers |= {"beta1": recipe.betas[0], "beta2": recipe.betas[1]}
        if recipe.epsilon != _DEFAULTS.epsilon:
            numbers["epsilon"] = recipe.epsilon
        return self._in_place(emit, "remat::Adam", weight, gradient, *states, self._count(), states=states, **numbers)

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
        """A new state value, by default with the shape of the parameter."""
        value = self.builder.values[v]
        assert value.type is not None
        type = TensorType(dtype, value.type.shape if shape is None else shape)
        annotations = {**value.annotations, "state_of": value.name}
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
