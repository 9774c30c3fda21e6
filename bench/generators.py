"""Documents of any size for timing and scoring: transformers, chains, U-Nets, random layered graphs, ResNets.

All but `resnet` consist of opaque nodes with bytes and seconds; `resnet` is a forward model of standard ops.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

from bench.catalogue import Instance
from bench.tape import Document, Tape, elementwise_seconds, matmul_seconds

HALF = 2  # bytes of a 16-bit float


def transformer(nodes: int, tokens: int = 2048, width: int = 2048, heads: int = 16, sequence: int = 1024) -> Document:
    """A training step of a decoder with equal layers, at least `nodes` nodes, phases forward and backward."""
    per_layer = len(_decoder(2, tokens, width, heads, sequence)["nodes"]) - len(
        _decoder(1, tokens, width, heads, sequence)["nodes"]
    )
    ends = len(_decoder(1, tokens, width, heads, sequence)["nodes"]) - per_layer
    return _decoder(max(1, -(-(nodes - ends) // per_layer)), tokens, width, heads, sequence)


def _decoder(layers: int, tokens: int, width: int, heads: int, sequence: int) -> Document:
    tape = Tape(f"transformer of {layers} layers")
    hidden = tokens * width * HALF
    x = tape.op("Embed", [tape.input("ids", tokens * 8)], hidden, elementwise_seconds(2 * hidden))
    for _ in range(layers):
        x = _attention(tape, x, tokens, width, heads, sequence)
        x = _feed_forward(tape, x, tokens, width)
    return tape.training(tape.op("Loss", [x], 4, elementwise_seconds(hidden), saves="input"))


def _attention(tape: Tape, x: str, tokens: int, width: int, heads: int, sequence: int) -> str:
    hidden, scores = tokens * width * HALF, heads * tokens * sequence * HALF
    weight = width * width * HALF
    project = matmul_seconds(2 * tokens * width * width)
    product = matmul_seconds(2 * tokens * sequence * width)
    normed = tape.op("LayerNorm", [x], hidden, elementwise_seconds(2 * hidden), saves="input")
    q, k, v = (tape.matmul(normed, hidden, project, weight) for _ in range(3))
    s = tape.op("Scores", [q, k], scores, product, saves="others", heavy=True)
    s = tape.op("Mask", [s], scores, elementwise_seconds(2 * scores))
    p = tape.op("Softmax", [s], scores, elementwise_seconds(2 * scores), saves="output")
    context = tape.op("Context", [p, v], hidden, product, saves="others", heavy=True)
    out = tape.matmul(context, hidden, project, weight)
    return tape.op("Add", [x, out], hidden, elementwise_seconds(3 * hidden))


def _feed_forward(tape: Tape, x: str, tokens: int, width: int) -> str:
    hidden, wide = tokens * width * HALF, 4 * tokens * width * HALF
    weight, project = 4 * width * width * HALF, matmul_seconds(8 * tokens * width * width)
    normed = tape.op("LayerNorm", [x], hidden, elementwise_seconds(2 * hidden), saves="input")
    up = tape.matmul(normed, wide, project, weight)
    active = tape.op("Gelu", [up], wide, elementwise_seconds(2 * wide), saves="input")
    down = tape.matmul(active, hidden, project, weight)
    return tape.op("Add", [x, down], hidden, elementwise_seconds(3 * hidden))


def chain(length: int, seed: int = 0) -> Document:
    """A training step of a chain of `length` layers with random sizes and times."""
    chance = random.Random(seed)
    tape = Tape(f"chain of {length}")
    x = tape.input("x", 1000)
    for _ in range(length):
        size = chance.randint(1, 50) * 10
        saves = chance.choice(["input", "output", "input output"])
        x = tape.op("Layer", [x], size, chance.randint(1, 50) * 1e-6, saves=saves, heavy=chance.random() < 0.4)
    return tape.training(tape.op("Loss", [x], 4, 1e-6, saves="input"))


def unet(depth: int = 4, batch: int = 4, image: int = 256, channels: int = 64) -> Document:
    """A training step of a U-Net: what goes down is read again on the way up."""
    tape = Tape(f"U-Net of depth {depth}")
    x, skips = tape.input("image", batch * 3 * image * image * 4), []
    inputs = 3
    for level in range(depth):
        x = _double_convolution(tape, [x], inputs, channels << level, batch, image >> level)
        skips.append(x)
        size = tape.bytes[x] // 4
        x = tape.op("MaxPool", [x], size, elementwise_seconds(5 * size), saves="input")
        inputs = channels << level
    x = _double_convolution(tape, [x], inputs, channels << depth, batch, image >> depth)
    for level in reversed(range(depth)):
        size = tape.bytes[skips[level]]
        up = tape.op("Upsample", [x], size, elementwise_seconds(2 * size), weight_bytes=8 * (channels << level) ** 2)
        joined = tape.op("Concat", [skips[level], up], 2 * size, elementwise_seconds(4 * size))
        x = _double_convolution(tape, [joined], 2 * channels << level, channels << level, batch, image >> level)
    return tape.training(tape.op("Loss", [x], 4, elementwise_seconds(tape.bytes[x]), saves="input"))


def _double_convolution(tape: Tape, x: list[str], inputs: int, outputs: int, batch: int, image: int) -> str:
    size = batch * outputs * image * image * 4
    for channels in (inputs, outputs):
        seconds = matmul_seconds(2 * batch * image * image * 9 * channels * outputs)
        x = [tape.op("Conv", x, size, seconds, weight_bytes=36 * channels * outputs, heavy=True)]
        x = [tape.op("BatchNorm", x, size, elementwise_seconds(2 * size), saves="input")]
        x = [tape.op("Relu", x, size, elementwise_seconds(2 * size), saves="output")]
    return x[0]


def layered(nodes: int, seed: int = 0) -> Document:
    """A random layered graph without phases, after Gagrani et al. 2022: mostly local arcs, some long ones."""
    chance = random.Random(seed)
    tape = Tape(f"layered, {nodes} nodes, seed {seed}")
    earlier: list[list[str]] = []
    left = nodes
    while left:
        width = min(left, chance.randint(1, max(1, round(nodes**0.5))))
        layer = []
        for _ in range(width):
            near = earlier[-1] if earlier else []
            far = [v for values in earlier[:-1] for v in values[:2]]
            reads = chance.sample(near, min(len(near), chance.randint(1, 3)))
            if far and chance.random() < 0.3:
                reads += [v for v in chance.sample(far, 1) if v not in reads]
            size = max(1, round(chance.expovariate(1 / 200))) * 10
            layer.append(tape.op("Op", reads, size, chance.randint(1, 100) * 1e-6))
        earlier.append(layer)
        left -= width
    return _without_phases(tape)


#: Nodes -> reads, and layers between the first node and the last, of the random layered graphs of Bartan et al.,
#: "Moccasin", ICML 2023.
PUBLISHED_LAYERED = {100: (236, 19), 250: (944, 22), 500: (2461, 31), 1000: (5875, 49)}
#: The part of the reads that pass over a layer, how much narrower or wider than the mean a layer is at the most, and
#: the part of the next layer that a node is read by, as far as they lie side by side.
LONG, VARIES, DENSE = 0.14, 0.75, 0.2


def published_like(nodes: int, seed: int = 0) -> Document:
    """A random layered graph like the published one with that many nodes, in a random order; no phases.

    As Gagrani et al. draw them ("Neural Topological Ordering for Computation Graphs", 2022, appendix A), as far as the
    published graphs show it: one node reads nothing and one nobody reads, both take no time; most arcs lead to nodes of
    the next layer that lie at about the same place in it, the others to any later layer; bytes are drawn from a mixture
    of normal distributions.
    """
    chance = random.Random(seed)
    reads, count = PUBLISHED_LAYERED[nodes]
    layers = _layers(chance, nodes, count)
    arcs = _short_arcs(layers, reads - round(LONG * reads))
    while len(arcs) < reads:
        layer = chance.randrange(len(layers) - 2)
        arcs.add((chance.choice(layers[layer]), chance.choice(chance.choice(layers[layer + 2 :]))))
    sources: list[list[int]] = [[] for _ in range(nodes)]
    for source, reader in sorted(arcs):
        sources[reader].append(source)
    tape, names = Tape(f"layered as published, {nodes} nodes, seed {seed}"), dict[int, str]()
    ready = {0}
    while ready:
        node = chance.choice(sorted(ready))
        mean = chance.choice([500, 1000, 3000, 5000])
        size = max(1, round(chance.gauss(mean, mean / 2) / 10)) * 10
        seconds = chance.randint(1, 1000) * 1e-6 if 0 < node < nodes - 1 else 0.0
        names[node] = tape.op("Op", [names[source] for source in sources[node]], size, seconds)
        ready |= {reader for reader, read in enumerate(sources) if node in read and names.keys() >= {*read}}
        ready.remove(node)
    return _without_phases(tape)


def _layers(chance: random.Random, nodes: int, count: int) -> list[range]:
    """The first node, as many layers as asked for, the last node."""
    share = [chance.uniform(1 - VARIES, 1 + VARIES) for _ in range(count)]
    ends = [round(1 + (nodes - 2) * part / sum(share)) for part in itertools.accumulate(share)]
    return [range(1), *(range(begin, end) for begin, end in itertools.pairwise([1, *ends])), range(nodes - 1, nodes)]


def _short_arcs(layers: list[range], count: int) -> set[tuple[int, int]]:
    """So many arcs from a layer to the next, between nodes side by side first; each node has one on either side."""
    arcs, apart = set[tuple[int, int]](), list[tuple[float, int, int]]()
    for layer, below in itertools.pairwise(layers):
        reach = DENSE / 2 + 0.4 / min(len(layer), len(below))
        table = [
            [(abs((i + 0.5) / len(layer) - (j + 0.5) / len(below)) / reach, u, v) for j, v in enumerate(below)]
            for i, u in enumerate(layer)
        ]
        arcs |= {min(side)[1:] for side in (*table, *zip(*table, strict=True))}
        apart += itertools.chain.from_iterable(table)
    for _, u, v in sorted(apart):
        if len(arcs) >= count:
            break
        arcs.add((u, v))
    return arcs


#: Of the instance transformer120_n6k: its layers, nodes of one on the way out, of the loss, of a layer on the way back.
LAYERS, OUT, LOSS, BACK = 120, 18, 7, 32


def deep_transformer(layers: int) -> Document:
    """The instance transformer120_n6k with that many layers; 2,000 of them have 100,008 nodes."""
    document = json.loads(Instance("transformer120_n6k").bytes)
    rows = document["nodes"]
    maker = {row["outputs"][0]: node for node, row in enumerate(rows)}
    turn, tape = 1 + OUT * LAYERS, Tape(f"transformer of {layers} layers")
    size = {value["name"]: value["bytes"] for value in document["values"]}
    names: list[str] = []

    def copy(node: int, layer: int = 0, old_layer: int = 0) -> None:
        """Add the node as it stands in another place; what it reads of its layer's way out it reads of `layer`'s."""
        by = len(names) - node
        reads = [maker[name] for name in rows[node]["inputs"]]
        back = node >= turn + LOSS
        places = [read + OUT * (layer - old_layer) if back and read < turn else read + by for read in reads]
        inputs = [names[place] for place in places]
        names.append(tape.op("Op", inputs, size[rows[node]["outputs"][0]], rows[node]["cost"]["seconds"]))

    copy(0)
    for layer in range(layers):
        for node in range(OUT):
            copy(1 + OUT * min(layer, 1) + node)
    for node in range(turn, turn + LOSS):
        copy(node)
    for layer in reversed(range(layers)):
        old = LAYERS - 1 if layer == layers - 1 else min(layer, 1)
        for node in range(BACK):
            copy(turn + LOSS + BACK * (LAYERS - 1 - old) + node, layer, old)
    return _without_phases(tape)


def _without_phases(tape: Tape) -> Document:
    document = tape.document()
    for row in document["nodes"]:
        del row["phase"]
    return document


RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def resnet(
    depth: int = 50,
    batch: int = 32,
    classes: int = 1000,
    image: tuple[int, ...] = (3, 224, 224),
    preactivated: bool = True,
) -> Document:
    """A ResNet with bottleneck blocks and its loss (`loss`, of `labels`), forward only, in standard ops.

    He et al., "Identity Mappings in Deep Residual Networks", 2016; with `preactivated=False` the older
    form of "Deep Residual Learning for Image Recognition", 2015, whose sums are activated.
    """
    net = _Convolutional(f"ResNet-{depth}", batch, image)
    block = _preactivated_block if preactivated else _activated_block
    x = net.convolution("data", image[0], 64, 7, 2)
    x = net.pooled(net.activated(x))
    inputs = 64
    for stage, blocks in enumerate(RESNETS[depth]):
        width = 64 << stage
        for place in range(blocks):
            x = block(net, x, inputs, width, stride=2 if stage and not place else 1, widens=not place)
            inputs = 4 * width
    if preactivated:
        x = net.activated(x)
    features = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    return net.classified(features, inputs, classes)


def _preactivated_block(net: _Convolutional, x: str, inputs: int, width: int, stride: int, widens: bool) -> str:
    #   x ──▶ bn relu ──▶ conv bn relu conv bn relu conv ──▶ + ──▶
    #    ╰──────┴───────▶ conv where the block widens ────────╯
    net.channels = inputs
    active = net.activated(x)
    y = net.activated(net.convolution(active, inputs, width, 1, 1))
    y = net.activated(net.convolution(y, width, width, 3, stride))
    y = net.convolution(y, width, 4 * width, 1, 1)
    return net.node("Add", [y, net.convolution(active, inputs, 4 * width, 1, stride) if widens else x])


def _activated_block(net: _Convolutional, x: str, inputs: int, width: int, stride: int, widens: bool) -> str:
    #   x ──▶ conv bn relu conv bn relu conv bn ──▶ + relu ──▶
    #    ╰──────▶ conv bn where the block widens ───╯
    y = net.activated(net.convolution(x, inputs, width, 1, 1))
    y = net.activated(net.convolution(y, width, width, 3, stride))
    y = net.normalised(net.convolution(y, width, 4 * width, 1, 1))
    if widens:
        x = net.normalised(net.convolution(x, inputs, 4 * width, 1, stride))
    return net.node("Relu", [net.node("Add", [y, x])])


class _Convolutional:
    """Writes a forward model of standard ops; types are left to inference."""

    def __init__(self, name: str, batch: int, image: tuple[int, ...]):
        self.name, self.batch = name, batch
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.value("data", (batch, *image), "input")

    def value(self, name: str, shape: tuple[int, ...], role: str = "parameter", dtype: str = "float32") -> str:
        self.values.append({"name": name, "shape": list(shape), "dtype": dtype, "role": role})
        return name

    def node(self, op: str, inputs: list[str], out: str = "", **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        node = {"name": name, "op": op, "inputs": inputs, "outputs": [out or f"{name}_out"], "attributes": attributes}
        self.nodes.append(node)
        return out or f"{name}_out"

    def convolution(self, x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        w = self.value(f"w{len(self.nodes)}", (outputs, inputs, kernel, kernel))
        self.channels, pad = outputs, kernel // 2
        return self.node(
            "Conv", [x, w], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad, pad, pad, pad]
        )

    def normalised(self, x: str) -> str:
        at = len(self.nodes)
        learned = [self.value(f"{part}{at}", (self.channels,)) for part in ("scale", "bias")]
        running = [self.value(f"{part}{at}", (self.channels,), "state") for part in ("mean", "variance")]
        return self.node("BatchNormalization", [x, *learned, *running])

    def activated(self, x: str) -> str:
        return self.node("Relu", [self.normalised(x)])

    def pooled(self, x: str) -> str:
        return self.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])

    def classified(self, features: str, width: int, classes: int) -> Document:
        weights = [self.value("fc_weight", (classes, width)), self.value("fc_bias", (classes,))]
        scores = self.node("Gemm", [features, *weights], transB=1)
        labels = self.value("labels", (self.batch,), "input", "int64")
        loss = self.node("SoftmaxCrossEntropyLoss", [scores, labels], out="loss")
        return {
            "format": "remat/1",
            "name": self.name,
            "opset": {"": 21},
            "values": self.values,
            "nodes": self.nodes,
            "outputs": [loss],
        }


#: Forms by name, for `bench/scale.py`, `bench/digests.py` and tests: name -> (size -> document).
SHAPES = {"transformer": transformer, "chain": chain, "layered": layered}
