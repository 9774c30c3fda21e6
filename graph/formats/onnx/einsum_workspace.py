"""Bytes that the `Einsum` of onnxruntime 1.31 holds beside inputs and output, for one or two operands.

The kernel brings the indices of each operand into one order, sums over those that one operand has alone, multiplies
stacks of matrices, and copies their product into the output (onnxruntime/core/providers/cpu/math/einsum_utils).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from graph.builder.contraction import index_terms
from graph.ir import TensorType


def einsum_workspace(equation: str | bytes, operands: Sequence[TensorType], output: TensorType) -> int:
    """Bytes held at once, inputs and output excluded; the output is allocated after the product."""
    text = equation.decode() if isinstance(equation, bytes) else equation
    terms, result = index_terms(text, [len(type.shape) for type in operands])
    letters = sorted(dict.fromkeys("".join(terms)), key=lambda letter: letter in text)  # those of "..." come first
    pairs = list(zip(terms, operands, strict=True))
    shapes = [dict.fromkeys(letters, 1) | dict(zip(term, type.shape, strict=True)) for term, type in pairs]
    copied = [list(term) != [letter for letter in letters if letter in term] for term in terms]
    live = sum(_elements(shape) for shape, is_copied in zip(shapes, copied, strict=True) if is_copied)
    diagonals = [type.elements for term, type in pairs if len({*term}) < len(term)]  # each is taken from a copy
    left, *others = shapes
    alone = [c for c in letters if c not in result and not any(c in term for term in terms[1:])]
    if alone:
        left |= dict.fromkeys(alone, 1)
        live += _elements(left)
    if not others:
        candidate, product, peak = [c for c in letters if c in result], _elements(left), live
    else:
        (right,) = others
        summed = [c for c in letters if c in terms[1] and c not in result]
        kept = [c for c in letters if c not in summed]
        both = [c for c in kept if left[c] > 1 and right[c] > 1]
        lefts = [c for c in kept if left[c] > 1 and c not in both]
        rights = [c for c in kept if c not in both and c not in lefts]
        peak = live
        for shape, other, order in (
            (left, right, [*both, *lefts, *summed, *rights]),
            (right, left, [*both, *summed, *rights, *lefts]),
        ):
            held, highest = _arranged(shape, [c for c in summed if other[c] == 1 < shape[c]], letters, order)
            peak = max(peak, live + highest)
            live += held
        candidate = [c for c in (*both, *lefts, *rights) if c in result]
        product = math.prod(max(left[c], right[c]) for c in kept)
        live += product
    transposed = product if candidate != list(result) else 0
    item = output.nbytes // max(1, output.elements)
    return item * max(*diagonals, peak - product, live + transposed)


def _arranged(
    shape: dict[str, int], alone: Iterable[str], letters: Sequence[str], order: Sequence[str]
) -> tuple[int, int]:
    """(elements held, most elements held) for an operand summed over `alone`, one by one, then in `order`."""
    held = peak = 0
    for letter in alone:
        shape[letter] = 1
        peak = max(peak, held + _elements(shape))
        held = _elements(shape)
    is_reshape = [c for c in order if shape[c] > 1] == [c for c in letters if shape[c] > 1]
    if list(order) != list(letters) and not (held and is_reshape):  # an input is copied even for a reshape
        peak = max(peak, held + _elements(shape))
        held = _elements(shape)
    return held, peak


def _elements(shape: Mapping[str, int]) -> int:
    return math.prod(shape.values())
