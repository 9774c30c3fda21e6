"""Read, pass, write, read: the same graph under the same names, or a refusal that names what the format cannot say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from bench.mxnet_symbols import Symbols
from bench.paddle_program import Program
from graph.buffer_sharing.sharing import value_devices
from graph.errors import BadGraph
from graph.formats.caffe2.compat import devices as caffe2_devices
from graph.formats.caffe2.compat.names import with_version_names
from graph.formats.readers import load
from graph.formats.writers import dump
from graph.ir import Graph, Role
from graph.limits import ShapeOverrides
from graph.ssa.naming import naming_of
from graph.transforms.copy_fusion import without_round_trips
from graph.transforms.dead_code import without_dead_nodes, without_identities
from graph.transforms.device_placement import CopyStyle, with_copies
from graph.transforms.extract import extract
from graph.transforms.remove_reshapes import without_reshapes
from graph.transforms.rename import rename_value
from graph.transforms.structural_equality import difference
from tests.graph.formats.caffe2.nets import LSTM_SHAPES, fill, lstm, net, op
from tests.graph.formats.mxnet.symbols import lenet
from tests.graph.formats.mxnet.test_reader import _scan
from tests.graph.formats.paddle.test_reader import _branch, _pir, add_doubling_loop, small


def caffe2(message: Any, **shapes: tuple[int, ...]) -> Graph:
    return load(message.SerializeToString(), shapes=ShapeOverrides(inputs=shapes))


def reused_blobs() -> Graph:
    """Names written several times, an identity, a dead op, weights with fills, and two devices."""
    message = net(
        fill("w", 5, 6),
        fill("b", 5),
        op("FC", "x w b", "y", device=1),
        op("Relu", "y", "y", device=1),
        op("Alias", "y", "z", device=1),
        op("Softmax", "z", "y", device=1),
        op("Exp", "z", "unused"),
        op("SoftmaxWithLoss", "y label", "p loss"),
        inputs="x label w b",
        outputs="p loss",
    )
    return caffe2(message, x=(4, 6), label=(4,))


def conditional_net() -> Graph:
    inner = net(op("If", "c x y", "y", then_net=net(op("Sqr", "x", "y"))))
    message = net(
        op("Copy", "x", "y"),
        op("Copy", "x", "z"),
        op("If", "c x y z", "y z", then_net=inner, else_net=net(op("Sqr", "x", "z"))),
        op("Relu", "y", "r"),
        inputs="c x",
        outputs="r z",
    )
    return caffe2(message, c=(1,), x=(3,))


def looping_net() -> Graph:
    ask, loop = net(op("Add", "i one", "i"), op("LE", "i most", "go")), net(op("Mul", "x two", "x"))
    message = net(
        op("Relu", "x0", "x"),
        op("While", "go i one most x two", "i x", cond_net=ask, loop_net=loop),
        op("Tanh", "x", "t"),
        inputs="go i one most x0 two",
        outputs="i t",
    )
    return caffe2(message, go=(1,), i=(1,), one=(1,), most=(1,), x0=(3,), two=(1,))


def symbol_with_loop() -> Graph:
    s = Symbols()
    xs, h, w = (s.variable(n, __shape__=d) for n, d in (("xs", "(5, 3)"), ("h0", "(3,)"), ("w", "(3,)")))
    places = {"in_data_locs": "(0,)", "in_state_locs": "(1,)", "remain_locs": "(2,)"}
    sizes = {"num_args": 4, "num_outputs": 2, "num_out_data": 1}
    loop = s.op("_foreach", "loop", xs, s.op("tanh", "first", h), w, subgraphs=[_scan()], **sizes, **places)
    parts = s.op("SliceChannel", "parts", [loop[0], 0, 0], num_outputs=3, axis=1)
    last = s.op("identity", "last", [loop[0], 1, 0])
    return load(s.data(s.op("exp", "e", last), [parts[0], 0, 0], [parts[0], 2, 0]))


def looping_program() -> Graph:
    """x doubled until it reaches a bound, then scaled."""
    p = Program()
    p.variable("x0", (1,))
    p.variable("most", (1,))
    p.op("relu", ["x0"], (1,), name="x")
    add_doubling_loop(p)
    p.op("assign", ["x"], (1,), name="same")
    p.op("relu", ["same"], (1,), name="z")
    return load(p.message.SerializeToString())


MODELS: dict[str, Callable[[], Graph]] = {
    "caffe2 blobs": reused_blobs,
    "caffe2 if": conditional_net,
    "caffe2 while": looping_net,
    "caffe2 lstm": lambda: caffe2(lstm(), **LSTM_SHAPES),
    "mxnet lenet": lambda: load(lenet(), shapes=ShapeOverrides(batch=4)),
    "mxnet foreach": symbol_with_loop,
    "paddle transformer": lambda: load(small(blocks=1)),
    "paddle branch": lambda: load(_branch().message.SerializeToString()),
    "paddle while": looping_program,
    "paddle pir": lambda: load(json.dumps(_pir()).replace("[-1,", "[4,").encode()),
}


def renamed(graph: Graph) -> Iterator[Graph]:
    """One graph for each value, under another name."""
    for v, value in enumerate(graph.values):
        yield rename_value(graph, v, f"new_{value.name}")


def extracted(graph: Graph) -> Iterator[Graph]:
    """The part up to each activation, the whole with a prefix, and the part from each activation to the last value."""
    made = [value.name for value in graph.values if value.role is Role.ACTIVATION]
    for name in made:
        yield extract(graph, [name])
    yield extract(graph, [graph.values[v].name for v in graph.outputs], prefix="part/")
    for name in made:
        with suppress(BadGraph):  # a value that cannot be given alone
            yield extract(graph, [graph.values[graph.nodes[-1].writes[0]].name], [name])


def copied(graph: Graph) -> Iterator[Graph]:
    """With copies of the first input, and without those that are copied back."""
    name = graph.values[graph.inputs[0]].name
    with suppress(BadGraph):  # a name that is written on two devices
        placed = with_copies(graph, {name: "gpu:2"}).graph
        yield placed
        yield without_round_trips(placed)


def copied_in_caffe2(graph: Graph) -> Iterator[Graph]:
    style = CopyStyle(caffe2_devices.copy_op, caffe2_devices.copy_name, caffe2_devices.operand_devices)
    with suppress(BadGraph):
        yield with_copies(graph, {graph.values[graph.inputs[0]].name: "gpu:2"}, style=style).graph


PASSES: dict[str, Callable[[Graph], Iterator[Graph]]] = {
    "none": lambda graph: iter([graph]),
    "rename": renamed,
    "prune": lambda graph: iter([without_dead_nodes(graph)]),
    "remove_identities": lambda graph: iter([without_identities(graph)]),
    "remove_reshapes": lambda graph: iter([without_reshapes(graph)]),
    "version_names": lambda graph: iter([with_version_names(graph, style).graph for style in ("all", "needed")]),
    "extract": extracted,
    "insert_copies": copied,
    "insert_copies, caffe2": copied_in_caffe2,
}
#: (model, pass) -> graphs that the format can write, of those that the pass makes; without an entry all of them.
#: Refused: names of values that the reader adds; names that MXNet or PIR derive; two names where a loop or branch has
#: one; copies between devices outside Caffe2; parts of an op.
WRITTEN: dict[tuple[str, str], int] = {
    ("caffe2 blobs", "rename"): 11,
    ("caffe2 blobs", "extract"): 12,
    ("caffe2 if", "rename"): 3,
    ("caffe2 if", "version_names"): 0,
    ("caffe2 if", "extract"): 9,
    ("caffe2 while", "rename"): 5,
    ("caffe2 while", "version_names"): 0,
    ("caffe2 while", "extract"): 6,
    ("caffe2 lstm", "rename"): 13,
    ("caffe2 lstm", "extract"): 9,
    ("mxnet lenet", "rename"): 10,
    ("mxnet lenet", "version_names"): 1,
    ("mxnet lenet", "extract"): 7,
    ("mxnet lenet", "insert_copies"): 0,
    ("mxnet lenet", "insert_copies, caffe2"): 0,
    ("mxnet foreach", "rename"): 3,
    ("mxnet foreach", "version_names"): 1,
    ("mxnet foreach", "insert_copies"): 0,
    ("mxnet foreach", "insert_copies, caffe2"): 0,
    ("paddle transformer", "rename"): 44,
    ("paddle transformer", "extract"): 36,
    ("paddle transformer", "insert_copies"): 0,
    ("paddle transformer", "insert_copies, caffe2"): 0,
    ("paddle branch", "rename"): 2,
    ("paddle branch", "version_names"): 0,
    ("paddle branch", "extract"): 3,
    ("paddle branch", "insert_copies"): 0,
    ("paddle branch", "insert_copies, caffe2"): 0,
    ("paddle while", "rename"): 5,
    ("paddle while", "version_names"): 0,
    ("paddle while", "extract"): 10,
    ("paddle while", "insert_copies"): 0,
    ("paddle while", "insert_copies, caffe2"): 0,
    ("paddle pir", "rename"): 0,
    ("paddle pir", "version_names"): 1,
    ("paddle pir", "extract"): 1,
    ("paddle pir", "insert_copies"): 0,
    ("paddle pir", "insert_copies, caffe2"): 0,
}


def written_names(graph: Graph) -> list[str]:
    """Per value its name in a program with mutable names."""
    return naming_of(graph, one_declaration=False).names


def names_in_file(graph: Graph) -> set[str]:
    """Names of the values, without those that a reader adds between the nodes of one op."""
    return {name for name in written_names(graph) if "/" not in name.removeprefix("part/")}


def devices(graph: Graph) -> Counter[tuple[str, str | None]]:
    """How often each name of the file is written on each device."""
    found = zip(written_names(graph), value_devices(graph), strict=True)
    return Counter((name, device) for name, device in found if name in names_in_file(graph))


def written(graph: Graph, format: str) -> bool:
    """Whether the format can write the graph; then it reads the same graph again."""
    try:
        data = dump(graph, format)
    except BadGraph as error:
        assert {finding.code for finding in error.findings} == {"not_representable"}
        return False
    again = load(data)
    assert difference(without_dead_nodes(as_read(graph)), without_dead_nodes(again)) is None
    names = [[written_names(g)[v] for v in g.outputs] for g in (graph, again)]
    assert set(names[0]) == set(names[1])
    assert names_in_file(graph) <= names_in_file(again)
    assert not devices(graph) - devices(again)
    return True


def as_read(graph: Graph) -> Graph:
    """The graph with copies as the reader of Caffe2 translates them."""
    nodes = [replace(n, op="remat::Copy") if n.op.startswith("caffe2::Copy") else n for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("model", MODELS)
def test_what_a_pass_changes_survives_the_file_or_is_refused(model: str, name: str) -> None:
    graphs = list(PASSES[name](MODELS[model]()))
    done = sum(written(graph, model.split()[0]) for graph in graphs)
    assert done == WRITTEN.get((model, name), len(graphs))
