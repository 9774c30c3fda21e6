"""The optimizer recipe: the fields of `recipe` in a request, and which combinations are valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from graph.errors import Findings
from graph.ir import EMPTY

OPTIMIZERS = ("none", "sgd", "adam", "adafactor")
UPDATES = ("after_all", "as_ready")
EIGHT_BITS = "8bit"  # blockwise codes, see `graph.ops.training.blockwise_optimizer`
STATE_DTYPES = ("float32", "bfloat16", "float16", EIGHT_BITS)
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
    shards: int = 1  # ranks that hold equal parts of the optimizer state; 1: no collectives
    loss_scale: float = 1.0  # factor of the loss's gradient; divided out again before clipping and update
    master_weights: bool = False  # True: update float32 copies of half-precision parameters
    ema: float | None = None  # decay of an exponential moving average of the weights; None: no average
    gradient_dtype: str | None = None  # cast each complete gradient to this dtype; None: no cast
    accumulate: int = 1  # micro-batches whose gradients are summed; the graph is the last of them
    clip: float | None = None  # maximum global gradient norm; None: no clipping
    update: str = "after_all"  # or "as_ready": update each parameter after its last reader


DEFAULTS = Recipe()


def _number(low: float, high: float = float("inf"), open_low: bool = False) -> Callable[[Any], bool]:
    def fits(given: Any) -> bool:
        if isinstance(given, bool) or not isinstance(given, int | float):
            return False
        return (low < given if open_low else low <= given) and given < high

    return fits


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1


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
    "shards": (_is_count, "a whole number from 1"),
    "loss_scale": (_number(0, open_low=True), "a number above 0"),
    "master_weights": (lambda x: isinstance(x, bool), "true or false"),
    "ema": (lambda x: isinstance(x, bool) or _number(0, 1, open_low=True)(x), "true, false or a decay between 0 and 1"),
    "gradient_dtype": (lambda x: x in GRADIENT_DTYPES, "one of " + ", ".join(GRADIENT_DTYPES)),
    "accumulate": (_is_count, "a whole number from 1"),
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
    "shards": ("adam", "sgd"),  # the factored moments of adafactor are means over rows and columns of whole matrices
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
    if chosen.get("state_dtype", "float32") != "float32" and optimizer == "sgd" and not chosen.get("momentum"):
        findings.add(
            "bad_recipe",
            "recipe.state_dtype",
            "sgd without momentum, which has no state",
            "a momentum above 0",
            "set momentum, or remove this field",
        )
    if chosen.get("clip") and chosen.get("update") == "as_ready":
        findings.add(
            "bad_recipe",
            "recipe.update",
            "'as_ready' with clip",
            "after_all: the norm needs every gradient",
            'remove clip, or set "update" to "after_all"',
        )
