"""Contractions of `Einsum`: the indices of its operands, and contraction of many operands in pairs.

bej,eji,be->bi        becomes        bej,be->bej    bej,eji->bi
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Sequence

from graph.builder.emit import Emit
from graph.ir import Val


def contracted(emit: Emit, terms: Sequence[str], operands: Sequence[Val], result: str) -> Val:
    """The contraction of operands with indices `terms` to `result`, as nodes of at most two operands.

    Each step contracts the pair with the smallest product, then the one with the least work. Runtimes contract from the
    left instead, whose products may be larger than all operands.
    """
    terms, operands = list(terms), list(operands)
    lengths: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        lengths |= {letter: n for letter, n in zip(term, x.shape, strict=True) if n != 1 or letter not in lengths}

    def size(indices: Iterable[str]) -> int:
        return math.prod(lengths[letter] for letter in indices)

    def product(pair: tuple[int, int]) -> str:
        """The indices of the pair that another operand or the result has."""
        needed = {*result, *"".join(term for k, term in enumerate(terms) if k not in pair)}
        return "".join(dict.fromkeys(letter for k in pair for letter in terms[k] if letter in needed))

    while len(terms) > 2:
        pairs = itertools.combinations(range(len(terms)), 2)
        i, j = min(pairs, key=lambda pair: (size(product(pair)), size({*terms[pair[0]], *terms[pair[1]]})))
        term = product((i, j))
        value = emit.op("Einsum", operands[i], operands[j], equation=f"{terms[i]},{terms[j]}->{term}")
        terms[i], operands[i] = term, value
        del terms[j], operands[j]
    return emit.op("Einsum", *operands, equation=",".join(terms) + "->" + result)  # type: ignore[no-any-return]


def index_terms(equation: str | bytes, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Index letters of each operand and of the result; "..." is written out in letters that the equation lacks."""
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    hidden = [rank - len(term.replace(".", "")) for term, rank in zip(terms, ranks, strict=True) if "." in term]
    if not arrow:
        letters = "".join(terms).replace(".", "")
        result = "..." * bool(hidden) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    most = max(hidden, default=0)
    free = "".join(c for c in string.ascii_letters if c not in equation)[:most]
    written_out = [
        term.replace("...", free[most - (rank - len(term.replace(".", ""))) :])
        for term, rank in zip(terms, ranks, strict=True)
    ]
    return written_out, result.replace("...", free)
