"""Floating-point operations and bytes of equations, from shapes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

REDUCTIONS = ("reduce_", "cum", "arg")
#: Operations per number or key that a generator draws, as XLA counts them on a CPU, by the dtype of the key.
DRAWS = ("random_bits", "random_split", "random_fold_in")
DRAW_FLOPS = {"key<fry>": 200, "key<rbg>": 37, "key<urbg>": 37}


def array_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and numpy dtype of the bytes that hold a value; those of the words of a random key."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        return tuple(words.shape), words.dtype
    return tuple(aval.shape), aval.dtype


def size_of(aval: Any) -> int:
    """Bytes of a value."""
    shape, dtype = array_of(aval)
    return 0 if dtype == jax.dtypes.float0 else math.prod(shape) * int(dtype.itemsize)


def flops_of(equation: Any) -> int:
    """Floating-point operations of an equation of a jaxpr; nested ones counted, of a `while` one iteration."""
    name, params = equation.primitive.name, equation.params
    out = sum(math.prod(variable.aval.shape) for variable in equation.outvars if hasattr(variable.aval, "shape"))
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return int(2 * out * math.prod(left[axis] for axis in contracted))
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, params["dimension_numbers"]
        return int(2 * out * math.prod(kernel) // kernel[numbers.rhs_spec[0]])
    if name == "cond":
        return max((_body_flops(branch) for branch in params["branches"]), default=0)
    if name == "while":
        return _body_flops(params["body_jaxpr"]) + _body_flops(params["cond_jaxpr"])
    nested = params.get("jaxpr", params.get("call_jaxpr"))
    if nested is not None:
        return int(params.get("length", 1)) * _body_flops(nested)
    if name in DRAWS:
        return int(out) * DRAW_FLOPS.get(str(equation.invars[0].aval.dtype), 1)
    if name.startswith(REDUCTIONS):
        return int(math.prod(equation.invars[0].aval.shape))
    return int(out)


def _body_flops(nested: Any) -> int:
    return sum(flops_of(equation) for equation in getattr(nested, "jaxpr", nested).eqns)
