"""MXNet symbols of any size: an attention decoder for translation, and the older ResNet.

.venv/bin/python -m bench.mxnet_symbols decoder decoder-symbol.json
.venv/bin/python -m bench.mxnet_symbols resnet resnet152-symbol.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.generators import RESNETS

Entry = list[int]


class Symbols:
    """Collects nodes of a symbol; `spelling` is the name of the attributes, which changed over the years."""

    def __init__(self, spelling: str = "attrs"):
        self.nodes: list[dict[str, Any]] = []
        self.spelling = spelling
        self.shared: dict[str, Entry] = {}

    def variable(self, name: str, **attributes: Any) -> Entry:
        """The variable of a name; the same again when it was made before."""
        if name not in self.shared:
            self.shared[name] = self._node({"op": "null", "name": name, "inputs": []}, attributes)
        return self.shared[name]

    def op(
        self,
        op: str,
        name: str,
        *inputs: Entry,
        control_deps: Sequence[int] = (),
        subgraphs: Sequence[Any] = (),
        **attributes: Any,
    ) -> Entry:
        node: dict[str, Any] = {"op": op, "name": name, "inputs": list(inputs)}
        if control_deps:
            node["control_deps"] = list(control_deps)
        if subgraphs:
            node["subgraphs"] = list(subgraphs)
        return self._node(node, attributes)

    def layer(self, op: str, name: str, x: Entry, *weights: str, owner: str = "", **attributes: Any) -> Entry:
        """An op with variables of its own, or those of `owner`."""
        return self.op(op, name, x, *(self.variable(f"{owner or name}_{w}") for w in weights), **attributes)

    def dense(self, name: str, x: Entry, units: int, owner: str = "", bias: bool = True, **attributes: Any) -> Entry:
        weights = ("weight", "bias") if bias else ("weight",)
        more = {} if bias else {"no_bias": True}
        return self.layer("FullyConnected", name, x, *weights, owner=owner, num_hidden=units, **more, **attributes)

    def act(self, name: str, x: Entry, kind: str) -> Entry:
        return self.op("Activation", name, x, act_type=kind)

    def _node(self, node: dict[str, Any], attributes: dict[str, Any]) -> Entry:
        if attributes:
            node[self.spelling] = {key: str(value) for key, value in attributes.items()}
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]

    def symbol(self, *heads: Entry) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "arg_nodes": [n for n, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": list(range(len(self.nodes) + 1)),
            "heads": [list(head) for head in heads],
            "attrs": {"mxnet_version": ["int", 10500]},
        }

    def data(self, *heads: Entry) -> bytes:
        return json.dumps(self.symbol(*heads)).encode()


def decoder(
    batch: int = 128,
    source: int = 110,
    steps: int = 80,
    width: int = 2048,
    scoring: int = 1024,
    layers: int = 2,
    words: int = 8000,
) -> bytes:
    """The decoder of a translation model with attention by a scoring network, unrolled over `steps`.

    Per step: tanh(keys [batch, source, scoring] + query) is scored, softmax weighs the source. These features are
    the memory; they are cheap to compute again. Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly
    Learning to Align and Translate", 2015; the case of Zheng et al., "Echo", ISCA 2020.
    """
    s = Symbols()
    states = s.variable("source", __shape__=f"({batch}, {source}, {width})")
    ids = s.variable("target", __shape__=f"({batch}, {steps})")
    keys = s.dense("keys", states, scoring, flatten=False)
    embedded = s.layer("Embedding", "embed", ids, "weight", input_dim=words, output_dim=width)
    cut = s.op("SliceChannel", "embedded", embedded, num_outputs=steps, axis=1, squeeze_axis=True)
    zero = s.variable("begin", __shape__=f"({batch}, {width})")
    context, hidden, cells = zero, [zero] * layers, [zero] * layers
    made = []
    for t in range(steps):
        x = s.op("Concat", f"in{t}", [cut[0], t, 0], context, dim=1, num_args=2)
        for k in range(layers):
            hidden[k], cells[k] = _lstm(s, f"l{k}t{t}", f"l{k}", x, hidden[k], cells[k], width)
            x = hidden[k]
        context = _attended(s, t, keys, states, x, scoring, source, width)
        both = s.op("Concat", f"both{t}", x, context, dim=1, num_args=2)
        made.append(s.act(f"out{t}", s.dense(f"mix{t}", both, width, owner="mix"), "tanh"))
    joined = s.op("Concat", "outputs", *made, dim=0, num_args=steps)
    scores = s.dense("words", joined, words)
    label = s.variable("label", __shape__=f"({batch * steps},)")
    return s.data(s.op("SoftmaxOutput", "softmax", scores, label, normalization="batch"))


def _lstm(s: Symbols, name: str, owner: str, x: Entry, h: Entry, c: Entry, width: int) -> tuple[Entry, Entry]:
    gates = s.op(
        "elemwise_add",
        f"{name}_gates",
        s.dense(f"{name}_i2h", x, 4 * width, owner=f"{owner}_i2h"),
        s.dense(f"{name}_h2h", h, 4 * width, owner=f"{owner}_h2h"),
    )
    (cut, _, _) = s.op("SliceChannel", f"{name}_cut", gates, num_outputs=4, axis=1)
    i, f, o = (s.act(f"{name}_{g}", [cut, k, 0], "sigmoid") for g, k in (("i", 0), ("f", 1), ("o", 3)))
    g = s.act(f"{name}_g", [cut, 2, 0], "tanh")
    kept, new = s.op("elemwise_mul", f"{name}_fc", f, c), s.op("elemwise_mul", f"{name}_ig", i, g)
    cell = s.op("elemwise_add", f"{name}_c", kept, new)
    return s.op("elemwise_mul", f"{name}_h", o, s.act(f"{name}_tc", cell, "tanh")), cell


def _attended(s: Symbols, t: int, keys: Entry, states: Entry, h: Entry, scoring: int, source: int, width: int) -> Entry:
    query = s.dense(f"q{t}", h, scoring, owner="query", bias=False)
    spread = s.op("broadcast_add", f"sum{t}", keys, s.op("expand_dims", f"qe{t}", query, axis=1))
    features = s.act(f"features{t}", spread, "tanh")
    scores = s.dense(f"score{t}", features, 1, owner="score", bias=False, flatten=False)
    weights = s.op("softmax", f"weights{t}", s.op("Reshape", f"flat{t}", scores, shape=f"(0, {source})"))
    row = s.op("expand_dims", f"row{t}", weights, axis=1)
    return s.op("Reshape", f"context{t}", s.op("batch_dot", f"mean{t}", row, states), shape=f"(-1, {width})")


def resnet(
    depth: int = 152,
    batch: int = 32,
    classes: int = 1000,
    image: tuple[int, ...] = (3, 224, 224),
    preactivated: bool = True,
) -> bytes:
    """A ResNet with bottleneck blocks, as MXNet's own example has it; not preactivated, the older form of 2015."""
    s = Symbols()
    block = _preactivated if preactivated else _activated
    x = s.variable("data", __shape__=str((batch, *image)))
    x = _activated_norm(s, "conv0", _convolution(s, "conv0", x, 64, 7, 2))
    x = s.op("Pooling", "pool0", x, kernel="(3, 3)", stride="(2, 2)", pad="(1, 1)", pool_type="max")
    for stage, blocks in enumerate(RESNETS[depth]):
        for place in range(blocks):
            stride = 2 if stage and not place else 1
            x = block(s, f"s{stage}b{place}", x, 64 << stage, stride, widens=not place)
    if preactivated:
        x = _activated_norm(s, "last", x)
    x = s.op("Pooling", "pool1", x, kernel="(7, 7)", global_pool=True, pool_type="avg")
    x = s.dense("fc", s.op("Flatten", "flat", x), classes)
    return s.data(s.op("SoftmaxOutput", "softmax", x, s.variable("label"), normalization="batch"))


def _preactivated(s: Symbols, name: str, x: Entry, width: int, stride: int, widens: bool) -> Entry:
    active = _activated_norm(s, f"{name}_n1", x)
    y = _activated_norm(s, f"{name}_n2", _convolution(s, f"{name}_c1", active, width, 1, 1))
    y = _activated_norm(s, f"{name}_n3", _convolution(s, f"{name}_c2", y, width, 3, stride))
    y = _convolution(s, f"{name}_c3", y, 4 * width, 1, 1)
    short = _convolution(s, f"{name}_short", active, 4 * width, 1, stride) if widens else x
    return s.op("elemwise_add", f"{name}_add", y, short)


def _activated(s: Symbols, name: str, x: Entry, width: int, stride: int, widens: bool) -> Entry:
    y = _activated_norm(s, f"{name}_n1", _convolution(s, f"{name}_c1", x, width, 1, 1))
    y = _activated_norm(s, f"{name}_n2", _convolution(s, f"{name}_c2", y, width, 3, stride))
    y = _norm(s, f"{name}_n3", _convolution(s, f"{name}_c3", y, 4 * width, 1, 1))
    if widens:
        x = _norm(s, f"{name}_ns", _convolution(s, f"{name}_short", x, 4 * width, 1, stride))
    return s.act(f"{name}_relu", s.op("elemwise_add", f"{name}_add", y, x), "relu")


def _convolution(s: Symbols, name: str, x: Entry, filters: int, kernel: int, stride: int) -> Entry:
    return s.layer(
        "Convolution",
        name,
        x,
        "weight",
        num_filter=filters,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        pad=(kernel // 2, kernel // 2),
        no_bias=True,
    )


def _norm(s: Symbols, name: str, x: Entry) -> Entry:
    return s.layer(
        "BatchNorm", f"{name}_bn", x, "gamma", "beta", "moving_mean", "moving_var", fix_gamma=False, eps=2e-5
    )


def _activated_norm(s: Symbols, name: str, x: Entry) -> Entry:
    return s.act(f"{name}_relu", _norm(s, name, x), "relu")


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes({"decoder": decoder, "resnet": resnet}[sys.argv[1]]())
