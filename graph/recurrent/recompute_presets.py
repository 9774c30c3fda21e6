"""Recompute presets: names of a step worth recomputing, by kind of cell.

LSTM-like cells: the computation of the gates, from the last products to the unit op or the activations.
Attention: the block from the product with a state to the product with the memory: scores, weights and context.
Source: Caffe2's rnn_cell wraps LSTM cells with their gates, attention cells with the whole attention block.
"""

from __future__ import annotations

from collections.abc import Iterator

from graph.analysis.aliasing import is_view
from graph.ir import ABSENT, Graph, Node, consumers, producers
from graph.ops.control_flow import LoopInterface
from graph.recurrent.step_graph import STEP_OP, written_by

GATE_INPUTS = {"remat::LSTMUnit": 2, "remat::GRUUnit": 1}  # unit op -> position of the gates among its inputs
PRODUCT_OPS = frozenset({"Gemm", "MatMul", "remat::MatMul", "Conv"})
GATE_ACTIVATIONS = frozenset({"Sigmoid", "Tanh", "HardSigmoid"})
CHEAP_OPS = frozenset(
    {"Add", "Sum", "Mul", "Sub", "Split", "Concat", "Slice", "Reshape", "Squeeze", "Unsqueeze", "Transpose"}
)


def recompute_hints(scan: Node) -> dict[str, list[str]]:
    """Recompute lists for the step of a Scan: names it writes, under `gates` and `attention`."""
    trips = LoopInterface.of(scan)
    body = trips.body.graph
    states = {trips.state_out(i) for i in range(trips.states)}
    presets = {"gates": _closed(body, _gates(body), states), "attention": _closed(body, _attention(body), states)}
    return {kind: names for kind, names in presets.items() if names}


def _gates(body: Graph) -> set[int]:
    """Nodes from the products of a step to the unit op or gate activations, both included."""
    producer = producers(body)
    nodes: set[int] = set()
    for n, node in enumerate(body.nodes):
        if node.op in GATE_INPUTS:
            _upwards(body, producer, node.inputs[GATE_INPUTS[node.op]], nodes)
        elif node.op in GATE_ACTIVATIONS:
            nodes.add(n)
            _upwards(body, producer, node.inputs[0], nodes)
    return nodes


def _upwards(body: Graph, producer: list[int], v: int, nodes: set[int]) -> None:
    """Add the cheap nodes that compute `v`, and the products at their start."""
    waiting = [v]
    while waiting:
        n = producer[waiting.pop()]
        if n < 0 or n in nodes:
            continue
        node = body.nodes[n]
        if node.op in PRODUCT_OPS:
            nodes.add(n)
        elif node.op in CHEAP_OPS:
            nodes.add(n)
            waiting += [w for w in node.inputs if w != ABSENT]


def _attention(body: Graph) -> set[int]:
    """Nodes between each softmax of the step and the products around it, both included."""
    producer, readers = producers(body), consumers(body)
    nodes: set[int] = set()
    for n, node in enumerate(body.nodes):
        if node.op != "Softmax":
            continue
        nodes.add(n)
        for side in (_before(body, producer, node), _behind(body, readers, node)):
            nodes.update(side)
    return nodes


def _before(body: Graph, producer: list[int], node: Node) -> Iterator[int]:
    """Ancestors of the softmax: up to the product of the scores, and through it to the product of the query."""
    waiting, seen, products = [(w, 0) for w in node.inputs if w != ABSENT], set(), 0
    while waiting:
        v, products = waiting.pop()
        n = producer[v]
        if n < 0 or n in seen:
            continue
        before = body.nodes[n]
        if before.op not in CHEAP_OPS | GATE_ACTIVATIONS | PRODUCT_OPS | {
            "Relu",
            "Exp",
            "Div",
            "ReduceSum",
        } and not is_view(body, before):
            continue
        seen.add(n)
        yield n
        behind = products + (before.op in PRODUCT_OPS)
        if behind < 2:
            waiting += [(w, behind) for w in before.inputs if w != ABSENT]


def _behind(body: Graph, readers: list[list[int]], node: Node) -> Iterator[int]:
    """Descendants of the softmax: up to the product with the values, and reshapes of its result."""
    waiting, seen = list(node.writes), set()
    while waiting:
        for n in readers[waiting.pop()]:
            after = body.nodes[n]
            if n in seen or (after.op not in CHEAP_OPS | PRODUCT_OPS and not is_view(body, after)):
                continue
            seen.add(n)
            yield n
            if after.op not in PRODUCT_OPS:
                waiting += after.writes


def _closed(body: Graph, nodes: set[int], states: set[int]) -> list[str]:
    """Names that these nodes write, all outputs of their ops included, states of the step excluded; in order."""
    written = {name for node in body.nodes if states.intersection(node.writes) for name in written_by(body, node)}
    names: dict[str, None] = {}
    for n in sorted(nodes):
        node = body.nodes[n]
        own = written_by(body, node)
        if STEP_OP not in node.annotations and is_view(body, node):
            continue
        if not written.intersection(own):
            names.update(dict.fromkeys(name for name in own if name))
    return list(names)
