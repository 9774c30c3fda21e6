"""Segments of a forward pass by checkpoints, annotations or ranges, and the values that cross them."""

import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import Role, TensorType
from graph.training.segments import ForwardPath, segments_between, segments_from_annotations, segments_from_ranges

F4 = TensorType("float32", (4,))


def chain(text, segments=None, outputs=("e",), op="my::Op"):
    """Ops from "x>a a>b": each op has the name of the value it writes."""
    b, ids = Builder("chain"), {}
    for word in text.split():
        inputs, _, made = word.partition(">")
        for name in inputs.split(","):
            if name not in ids:
                role = Role.PARAMETER if name.startswith("w") else Role.INPUT
                ids[name] = b.value(name, F4, role)
        tag = (segments or {}).get(made)
        (ids[made],) = b.node(
            "Cast" if made.startswith("h") else op,
            [ids[name] for name in inputs.split(",")],
            name=made,
            outputs=[made],
            types=[F4],
            attributes={"to": 1} if made.startswith("h") else {},
            annotations={} if tag is None else {"segment": tag},
        )
    return b.build([ids[name] for name in outputs])


SKIP = "x>a a>b b>c c,a>d d>e"  # d reads a too


def ranges(graph, *checkpoints, **options):
    return list(segments_between(ForwardPath.of(graph), checkpoints, **options).ranges)


def test_segments_are_between_checkpoints():
    graph = chain(SKIP)
    assert ranges(graph, "c") == [(0, 3)]
    assert ranges(graph, "a", "c") == ranges(graph, "c", "a", "c") == [(0, 1), (1, 3)]
    assert ranges(graph, "x", "c") == [(0, 3)]
    assert ranges(graph, "a", "b") == [(0, 1)]  # one op lies between: no run of ops


def test_an_empty_segmentation_has_a_reason():
    found = segments_between(ForwardPath.of(chain(SKIP)), [])
    assert found.ranges == () and "no checkpoint" in found.notes[-1]
    found = segments_between(ForwardPath.of(chain("x>a a>e")), ["x"])
    assert found.ranges == () and "no ops between" in found.notes[-1]


def test_an_unknown_checkpoint_is_noted_or_refused():
    statistics = ForwardPath.of(chain(SKIP))
    assert "'zz'" in segments_between(statistics, ["zz", "c"]).notes[0]
    with pytest.raises(BadGraph) as refusal:
        segments_between(statistics, ["zz", "c"], unknown="error")
    assert [finding.code for finding in refusal.value.findings] == ["unknown_checkpoint"]
    assert "zz" in str(refusal.value)


def test_crossing_values_are_written_inside_and_read_after_or_written_before_and_read_inside():
    graph = chain(SKIP)
    statistics = ForwardPath.of(graph)

    def crossing(*segment):
        return [graph.values[v].name for v in statistics.crossing(segment)]

    assert crossing(0, 3) == ["a", "c"]
    assert crossing(1, 3) == ["c", "a"]
    assert crossing(0, 5) == []
    assert [graph.values[v].name for v in statistics.inputs()] == ["x"]


def test_casts_of_weights_before_a_segment_belong_to_it_without_overlap():
    #   w1 ── h1 ── a        w2 ── h2 ── b ── c          h: weights in half precision
    graph = chain("w1>h1 x,h1>a w2>h2 a,h2>b b>c c>e")
    assert ranges(graph, "a", "c") == [(0, 2), (2, 5)]
    # The cast of an activation is an op like others.
    assert ranges(chain("w1>h1 x,h1>a a>h2 a,h2>b b>c c>e"), "a", "c") == [(0, 2), (2, 5)]
    assert ranges(chain("x>a w2>h2 w3>h3 a,h2>b b,h3>c c>e"), "a", "b", "c") == [(0, 1)]


def test_only_ops_that_the_targets_depend_on_are_counted():
    graph = chain("x>a x>side a>b b>e", outputs=("e", "side"))
    statistics = ForwardPath.of(graph, [graph.value_named("e")])
    assert [graph.nodes[n].name for n in statistics.path] == ["a", "b", "e"]
    assert list(segments_between(statistics, ["b"]).ranges) == [(0, 2)]


def test_annotations_define_contiguous_segments():
    tags = {"a": "one", "b": "one", "c": "two", "d": "three", "e": "three"}
    statistics = ForwardPath.of(chain(SKIP, tags))
    found = segments_from_annotations(statistics)
    assert found.ranges == ((0, 2), (3, 5))  # one op alone is no segment
    names = [statistics.graph.values[v].name for v in found.checkpoints]
    assert names == ["b", "c", "e"]
    assert segments_from_annotations(statistics, opt_out=[0]).ranges == ((3, 5),)
    assert segments_from_annotations(statistics, opt_out=[0, 1]).notes[-1].startswith("nothing is recomputed")


def test_scattered_segments_and_numbers_out_of_range_are_refused():
    tags = {"a": "one", "b": "two", "c": "one"}
    for options, code, name in (({}, "scattered_segment", "'c'"), ({"opt_out": [5]}, "unknown_segment", "segment 5")):
        graph = chain(SKIP, tags if code == "scattered_segment" else {"a": "one", "b": "one"})
        with pytest.raises(BadGraph) as refusal:
            segments_from_annotations(ForwardPath.of(graph), **options)
        assert [finding.code for finding in refusal.value.findings] == [code]
        assert name in str(refusal.value)


def test_segments_may_be_listed_as_ranges():
    statistics = ForwardPath.of(chain(SKIP))
    found = segments_from_ranges(statistics, [[3, 5], [0, 2]])
    assert found.ranges == ((0, 2), (3, 5))
    assert [statistics.graph.values[v].name for v in found.checkpoints] == ["e", "b"]
    assert segments_from_ranges(statistics, [[3, 5], [0, 2]], opt_out=[0]).ranges == ((0, 2),)
    assert "nothing is recomputed" in segments_from_ranges(statistics, []).notes[-1]


@pytest.mark.parametrize("ranges", [[[2, 2]], [[0, 9]], [[-1, 2]], [[0, 3], [2, 4]], [[0]], [[0, 1, 2]]])
def test_invalid_ranges_are_refused(ranges):
    with pytest.raises(BadGraph) as refusal:
        segments_from_ranges(ForwardPath.of(chain(SKIP)), ranges)
    assert {finding.code for finding in refusal.value.findings} == {"bad_segment"}
