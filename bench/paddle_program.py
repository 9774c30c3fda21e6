"""A transformer as a Paddle program: checkpoints at block ends, tensors spread over a mesh of two dimensions.

mesh  [[0, 1], [2, 3]]      the batch is cut along axis 0, heads and inner widths along axis 1

.venv/bin/python -m bench.paddle_program transformer.pdmodel
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, CHECKPOINT, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import slots_of
from graph.formats.paddle.proto import LOD_TENSOR, paddle
from graph.formats.paddle.write_ops import op_attribute

MESHES = [[0, 1], [2, 3]]
FLOAT, INT = 5, 3  # VarType numbers
WHOLE: tuple[int, ...] = (-1, -1)


class Program:
    """Collects variables and ops of block 0. Each op says its mesh; each variable its mapping."""

    def __init__(self, mesh: Any = None):
        self.message = paddle()["ProgramDesc"]()
        self.message.version.version = 0
        self.block = self.message.blocks.add(idx=0, parent_idx=-1)
        self.mesh = mesh
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.count = 0

    def variable(
        self,
        name: str,
        shape: Sequence[int],
        cut: Sequence[int] | None = None,
        *,
        weight: bool = False,
        dtype: int = FLOAT,
    ) -> str:
        var = self.block.vars.add(name=name, persistable=weight, is_parameter=weight)
        var.type.type = LOD_TENSOR
        var.type.lod_tensor.tensor.data_type = dtype
        var.type.lod_tensor.tensor.dims.extend(shape)
        self.shapes[name] = tuple(shape)
        if self.mesh is not None:
            ids, lengths = flat_mesh(self.mesh)
            var.attrs.add(name=MESH + AUTO_PARALLEL_SUFFIX, type=3).ints.extend(ids)
            var.attrs.add(name=MESH_SHAPE, type=3).ints.extend(lengths)
            mapping = list(cut) if cut is not None else [-1] * len(shape)
            var.attrs.add(name=MAPPING + AUTO_PARALLEL_SUFFIX, type=3).ints.extend(mapping)
        return name

    def op(
        self,
        type: str,
        inputs: Sequence[str],
        made: Sequence[int],
        cut: Sequence[int] | None = None,
        name: str = "",
        more: Sequence[tuple[Sequence[int], int]] = (),
        **attributes: Any,
    ) -> str:
        """The first output, a new variable of shape `made`; `more` are (shape, dtype) of further ones."""
        self.count += 1
        out = self.variable(name or f"{type}_{self.count}.tmp_0", made, cut)
        outputs = [out, *(self.variable(f"{out}.{k}", s, dtype=d) for k, (s, d) in enumerate(more, 1))]
        op = self.block.ops.add(type=type)
        ins, outs = slots_of(type)
        for slots, names, target in ((ins, list(inputs), op.inputs), (outs, outputs, op.outputs)):
            for k, slot in enumerate(slots):
                given = names[k:] if slot.endswith("*") else names[k : k + 1]
                if given:
                    target.add(parameter=slot.rstrip("*"), arguments=given)
        plain = [op_attribute(key, value) for key, value in {**attributes, "op_role": 0}.items()]
        if self.mesh is not None:
            ids, lengths = flat_mesh(self.mesh)
            plain += [op_attribute(MESH + AUTO_PARALLEL_SUFFIX, ids), op_attribute(MESH_SHAPE, lengths)]
        for entry in plain:
            held = op.attrs.add(name=entry["name"], type=entry["type"])
            for key in entry.keys() - {"name", "type"}:
                if isinstance(entry[key], list):
                    getattr(held, key).extend(entry[key])
                else:
                    setattr(held, key, entry[key])
        return out

    def checkpoint(self, name: str) -> str:
        (var,) = (var for var in self.block.vars if var.name == name)
        var.attrs.add(name=CHECKPOINT, type=0, i=1)
        return name


def transformer(
    blocks: int = 4,
    batch: int = 8,
    tokens: int = 64,
    width: int = 64,
    heads: int = 4,
    words: int = 512,
    dropout: float = 0.1,
    spread: bool = True,
) -> bytes:
    """A decoder of `blocks` blocks, whose ends are checkpoints, with its loss; forward only."""
    p = Program(MESHES if spread else None)
    ids = p.variable("ids", (batch, tokens), (0, -1), dtype=INT)
    labels = p.variable("labels", (batch, tokens, 1), (0, -1, -1), dtype=INT)
    table = p.variable("embedding", (words, width), weight=True)
    x = p.op("lookup_table_v2", [table, ids], (batch, tokens, width), (0, -1, -1))
    for k in range(blocks):
        x = _attention(p, x, k, batch, tokens, width, heads, dropout)
        x = _feed_forward(p, x, k, batch, tokens, width, dropout)
        p.checkpoint(x)
    head = p.variable("head", (width, words), (-1, 1), weight=True)
    scores = p.op("matmul_v2", [x, head], (batch, tokens, words), (0, -1, 1))
    each = p.op(
        "softmax_with_cross_entropy",
        [scores, labels],
        (batch, tokens, 1),
        (0, -1, -1),
        more=[((batch, tokens, words), FLOAT)],
        axis=-1,
    )
    p.op("reduce_mean", [each], (1,), name="loss", reduce_all=True)
    return p.message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _attention(p: Program, x: str, k: int, batch: int, tokens: int, width: int, heads: int, dropout: float) -> str:
    hidden, each = (batch, tokens, width), width // heads
    by_head, cut = (batch, heads, tokens, each), (0, 1, -1, -1)
    normed = _normed(p, x, f"b{k}.ln1", hidden, width)
    parts = []
    for what in ("q", "k", "v"):
        w = p.variable(f"b{k}.{what}.w", (width, width), (-1, 1), weight=True)
        y = p.op("matmul_v2", [normed, w], hidden, (0, -1, 1))
        y = p.op("reshape2", [y], (batch, tokens, heads, each), (0, -1, 1, -1), shape=[0, 0, heads, each])
        parts.append(p.op("transpose2", [y], by_head, cut, axis=[0, 2, 1, 3]))
    q, key, v = parts
    scores = p.op("matmul_v2", [q, key], (batch, heads, tokens, tokens), cut, trans_y=True)
    scores = p.op("scale", [scores], (batch, heads, tokens, tokens), cut, scale=each**-0.5)
    weights = p.op("softmax", [scores], (batch, heads, tokens, tokens), cut, axis=-1)
    weights = _dropped(p, weights, (batch, heads, tokens, tokens), cut, dropout)
    y = p.op("matmul_v2", [weights, v], by_head, cut)
    y = p.op("transpose2", [y], (batch, tokens, heads, each), (0, -1, 1, -1), axis=[0, 2, 1, 3])
    y = p.op("reshape2", [y], hidden, (0, -1, 1), shape=[0, 0, width])
    w = p.variable(f"b{k}.o.w", (width, width), (1, -1), weight=True)
    y = _dropped(p, p.op("matmul_v2", [y, w], hidden, (0, -1, -1)), hidden, (0, -1, -1), dropout)
    return p.op("elementwise_add", [x, y], hidden, (0, -1, -1))


def _feed_forward(p: Program, x: str, k: int, batch: int, tokens: int, width: int, dropout: float) -> str:
    hidden, wide = (batch, tokens, width), (batch, tokens, 4 * width)
    normed = _normed(p, x, f"b{k}.ln2", hidden, width)
    up = p.variable(f"b{k}.up.w", (width, 4 * width), (-1, 1), weight=True)
    down = p.variable(f"b{k}.down.w", (4 * width, width), (1, -1), weight=True)
    y = p.op("gelu", [p.op("matmul_v2", [normed, up], wide, (0, -1, 1))], wide, (0, -1, 1))
    y = _dropped(p, p.op("matmul_v2", [y, down], hidden, (0, -1, -1)), hidden, (0, -1, -1), dropout)
    return p.op("elementwise_add", [x, y], hidden, (0, -1, -1), name=f"block{k}.out")


def _normed(p: Program, x: str, name: str, hidden: tuple[int, ...], width: int) -> str:
    weights = [p.variable(f"{name}.{part}", (width,), weight=True) for part in ("scale", "bias")]
    return p.op("layer_norm", [x, *weights], hidden, (0, -1, -1), begin_norm_axis=2, epsilon=1e-5)


def _dropped(p: Program, x: str, shape: tuple[int, ...], cut: Sequence[int], ratio: float) -> str:
    if not ratio:
        return x
    mask = [(shape, 20)]
    return p.op("dropout", [x], shape, cut, more=mask, dropout_prob=ratio, dropout_implementation="upscale_in_train")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(transformer())
