"""Which repeats go behind one guard."""

from __future__ import annotations

from onnx import GraphProto, TensorProto, helper

from graph.formats.onnx.guards.runs import guarded_runs

LARGE, SMALL = 64 * 1024 // 4, 4  # elements


def runs(drawn: str, repeated: str, small: str = "", unknown: str = "", outputs: str = "") -> list[str]:
    """Nodes of each run behind a guard; `drawn` is "ab>c d:Reshape b>e": operands, then what a node writes."""
    nodes, infos = [], {}
    for edge in drawn.split():
        reads, _, written = edge.partition(">")
        name, _, op = written.partition(":")
        nodes.append(helper.make_node(op or "Sum", list(reads), [name], name))
        elements = SMALL if name in small else LARGE
        if name not in unknown:
            infos[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, [elements])
    graph = GraphProto(node=nodes, value_info=infos.values(), output=[infos[name] for name in outputs])
    found = guarded_runs(graph, [node.name in repeated for node in nodes], infos)
    return ["".join(node.name for node in run) for run, behind in found if behind]


def test_repeats_with_a_small_result_are_one_run() -> None:
    assert runs("x>a a>b b>c c>d", "abc", small="c") == ["abc"]


def test_only_the_first_node_of_a_run_writes_a_large_result() -> None:
    assert runs("x>a a>b b>c c>d", "abc") == ["a", "b", "c"]
    assert runs("x>a a>b b>c ac>d", "abc", small="bc") == ["abc"]
    assert runs("x>a a>b b>c", "abc", outputs="c") == ["a", "b", "c"]
    assert runs("x>a a>b b>c", "abc", small="c", outputs="c") == ["abc"]


def test_a_run_ends_with_the_last_read_of_a_large_value_from_before_it() -> None:
    assert runs("x>h h>a a>b b>c c>d", "abc", small="abc") == ["a", "bc"]
    assert runs("x>h h>a a>b b>c ch>d", "abc", small="abc") == ["abc"]
    assert runs("x>h h>a a>b b>c c>d", "abc", small="habc") == ["abc"]
    assert runs("x>h h>a a>b b>c c>d", "abc", small="abc", outputs="h") == ["abc"]  # never freed


def test_large_views_have_no_guard_and_their_reads_are_of_the_value_that_they_show() -> None:
    assert runs("x>a a>v:Reshape v>c c>d", "avc") == ["a", "c"]
    assert runs("x>a a>v:Reshape v>c c>d", "avc", small="avc") == ["avc"]
    assert runs("x>h h>v:Reshape h>a v>b b>c c>d", "abc", small="abc") == ["ab", "c"]


def test_a_run_does_not_end_where_a_value_of_unknown_type_is_live() -> None:
    assert runs("x>h h>a a>b b>c c>d", "abc", small="bc", unknown="a") == ["ab", "c"]
