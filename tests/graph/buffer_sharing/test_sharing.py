"""Values under shared names compute what they did; names that lose a value are refused, each for its reason."""

import random

import msgspec
import numpy as np
import pytest

from graph.buffer_sharing.live_ranges import free_points
from graph.buffer_sharing.shared_program import check_shared_names, shared_document
from graph.buffer_sharing.sharing import share_buffers, sharing_report, value_devices
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.ir import Role, TensorType
from graph.transforms.structural_equality import difference
from tests.strategies import random_graph

F8 = TensorType("float32", (8,))


def drawn(text, outputs, annotations=None):
    """A graph of opaque ops from "x>a a,b>c": each word is one node, its name that of its first output."""
    b, ids = Builder("drawn"), {}
    for word in text.split():
        inputs, _, made = word.partition(">")
        for name in inputs.split(","):
            if name and name not in ids:
                ids[name] = b.value(name, F8, Role.INPUT)
        names = made.split(",")
        new = b.node(
            "my::Op",
            [ids[name] for name in inputs.split(",") if name],
            name=names[0],
            outputs=names,
            types=[F8] * len(names),
            annotations=(annotations or {}).get(names[0], {}),
        )
        ids.update(zip(names, new, strict=True))
    return b.build([ids[name] for name in outputs.split(",") if name])


def reloaded(graph, names):
    return load(msgspec.json.encode(shared_document(graph, names)))


def renamed(graph, **names):
    return [names.get(value.name, value.name) for value in graph.values]


def codes(graph, **names):
    with pytest.raises(BadGraph) as refusal:
        check_shared_names(graph, renamed(graph, **names))
    return [finding.code for finding in refusal.value.findings]


@pytest.mark.parametrize("seed", range(60))
def test_a_graph_under_shared_names_is_the_same_computation(seed):
    graph = random_graph(random.Random(seed), 14)
    sharing = share_buffers(graph, in_place=seed % 3 > 0)
    again = reloaded(graph, sharing.names)
    assert difference(graph, again) is None
    assert sharing.bound_bytes <= sharing.bytes <= sharing.separate_bytes
    before, after = execute(graph, seed=1).outputs, execute(again, seed=1).outputs
    for old, new in zip(graph.outputs, again.outputs, strict=True):
        np.testing.assert_array_equal(before[graph.values[old].name], after[again.values[new].name])


def test_a_chain_of_unknown_ops_needs_two_buffers():
    #   x ── a ── b ── c ── d        no op may write over what it reads: two names take turns
    sharing = share_buffers(drawn("x>a a>b b>c c>d", "d"))
    assert sharing.names == ["x", "a", "d", "a", "d"]
    assert sharing.buffers == {"a": 32, "d": 32}
    assert (sharing.separate_bytes, sharing.bytes, sharing.bound_bytes) == (128, 64, 64)


def test_an_op_writes_over_its_input_only_as_its_last_reader():
    b = Builder("in place")
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Relu", [x], outputs=["a"])
    (c,) = b.node("Tanh", [a], outputs=["c"])
    (d,) = b.node("Neg", [a], outputs=["d"])
    (e,) = b.node("Add", [c, d], outputs=["e"])
    graph = b.build([e])
    sharing = share_buffers(graph)
    assert sharing.names[d] == sharing.names[a] != sharing.names[c]
    assert sharing.names[e] == "e"
    assert codes(graph, c="a") == ["shared_while_live"]
    apart = share_buffers(graph, in_place=False)
    assert apart.names[d] != apart.names[a]


def test_results_and_kept_values_keep_their_names():
    graph = drawn("x>a a>b b>c c>d", "b,d")
    sharing = share_buffers(graph, keep=["c"])
    assert sharing.names == ["x", "c", "b", "c", "d"]  # a is gone when c is written, and lives on from then


def test_values_of_two_devices_never_share():
    on = {name: {"device": device} for name, device in zip("abcd", ["gpu", "cpu", "gpu", "cpu"], strict=True)}
    graph = drawn("x>a a>b b>c c>d", "d", on)
    assert value_devices(graph)[1:] == ["gpu", "cpu", "gpu", "cpu"]
    sharing = share_buffers(graph)
    assert sharing.names == ["x", "a", "d", "a", "d"]
    assert codes(graph, c="b") == ["not_in_place", "shared_across_devices"]


def test_one_op_never_writes_one_name_twice():
    graph = drawn("x>a,b a,b>c", "c")
    assert share_buffers(graph).names[1] != share_buffers(graph).names[2]
    assert codes(graph, b="a")[0] == "output_twice"


def test_names_that_lose_a_value_are_refused():
    graph = drawn("x>a a>b x,a>c", "b,c")
    assert codes(graph, b="a") == ["not_in_place", "shared_while_live"]
    assert codes(graph, b="x") == ["shared_resident", "shared_while_live"]
    assert codes(graph, c="b") == ["shared_while_live"]


def test_bytes_are_freed_after_the_last_reader_once_and_never_under_an_alias_or_a_result():
    b = Builder("free")
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Relu", [x], outputs=["a"])
    (c,) = b.node("Tanh", [a], outputs=["c"])
    (u,) = b.node("Neg", [a], outputs=["u"])
    (view,) = b.node("Identity", [u], outputs=["view"])
    (out,) = b.node("Add", [c, view], outputs=["out"])
    graph = b.build([out])
    assert [(graph.values[v].name, graph.nodes[n].name) for v, n in free_points(graph)] == [
        ("a", "Neg_2"),
        ("c", "Add_4"),
    ]
    assert [graph.values[v].name for v, _ in free_points(graph, keep=["c"])] == ["a"]


def test_the_report_section_lists_lifetimes_buffers_and_the_peak():
    section = sharing_report(drawn("x>a a>b b>c c>d", "d"))
    assert section["value"] == ["a", "b", "c", "d"]
    assert section["buffer"] == ["a", "d", "a", "d"]
    assert list(zip(section["from_step"], section["to_step"], strict=True)) == [(0, 1), (1, 2), (2, 3), (3, 3)]
    assert (section["bytes"], section["bound_bytes"], section["peak_node"]) == (64, 64, "b")
    assert section["free_after"] == [["a", "b"], ["b", "c"], ["c", "d"]]
    nothing = sharing_report(drawn("", ""))
    assert (nothing["bytes"], nothing["peak_node"], nothing["value"]) == (0, None, [])
