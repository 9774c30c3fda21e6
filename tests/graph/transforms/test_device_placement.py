"""Status propagation, and insertion and fusion of copies between devices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.errors import BadGraph
from graph.formats.caffe2.compat.devices import copy_name, copy_op, device_prefix, device_rule, operand_devices
from graph.formats.native.mutable_names import mutable_document
from graph.transforms.copy_fusion import without_round_trips
from graph.transforms.device_placement import CopyStyle, check_placement, copy_route, with_copies
from graph.transforms.status_propagation import infer_status, same_status
from graph.transforms.structural_equality import difference
from tests.graph.ssa.programs import Program, program, read
from tests.graph.transforms.test_rename import drawn, refused

DOWN, UP = "CopyGPUToCPU", "CopyCPUToGPU"
CAFFE2 = CopyStyle(copy_op, copy_name, operand_devices)


def named(*lines: str, **rest) -> Program:
    """As `program`, with ops that may carry a device `Relu@gpu:1: x -> y` and get unique node names."""
    document = program(*[line.replace("@gpu:", "@gpu#") for line in lines], **rest)
    for n, node in enumerate(document["nodes"]):
        op, _, device = node["op"].partition("@")
        node |= {"name": f"n{n}", "op": op}
        if device:
            node["annotations"] = {"device": device.replace("#", ":")}
    return document


GIVEN = {"x": "input", "w": "parameter"}


def test_every_reader_of_a_round_trip_copy_reads_the_original():
    lines = ("Relu: x -> a", f"{DOWN}: a -> b", f"{UP}: b -> c", "N1: c -> d1", "N2: c -> d2", "N3: c c -> d3")
    graph = read(named(*lines, given=GIVEN, outputs=["d1", "d2", "d3"]))
    assert drawn(without_round_trips(graph)) == ["x -> a", "a -> d1", "a -> d2", "a a -> d3"]


def test_a_copy_back_to_another_device_is_kept():
    lines = ("Relu@gpu:0: x -> a", f"{DOWN}@gpu:0: a -> b", f"{UP}@gpu:1: b -> c", "N: c -> d")
    graph = read(named(*lines, given=GIVEN, outputs=["d"]))
    assert drawn(without_round_trips(graph)) == drawn(graph)
    same = read(named(*[line.replace("gpu:1", "gpu:0") for line in lines], given=GIVEN, outputs=["d"]))
    assert drawn(without_round_trips(same)) == ["x -> a", "a -> d"]


def test_the_original_is_read_even_when_its_name_is_overwritten():
    #   b, c copy a there and back; a is overwritten before c is read: both versions are live under unique names
    lines = ("Relu: x -> a", f"{DOWN}: a -> b", f"{UP}: b -> c", "Neg: x -> a", "N: c a -> d")
    graph = without_round_trips(read(named(*lines, given=GIVEN, outputs=["d"])))
    assert drawn(graph) == ["x -> a", "x -> a/2", "a a/2 -> d"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([DOWN, UP, "Relu"]), min_size=1, max_size=10), st.data())
def test_copy_fusion_is_idempotent(ops, data):
    names = ["x"]
    lines = []
    for n, op in enumerate(ops):
        lines.append(f"{op}: {data.draw(st.sampled_from(names))} -> v{n}")
        names.append(f"v{n}")
    outputs = data.draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=2, unique=True))
    once = without_round_trips(read(named(*lines, given=GIVEN, outputs=outputs)))
    assert drawn(without_round_trips(once)) == drawn(once)
    assert mutable_document(once).outputs == outputs


def test_a_value_is_copied_once_per_device():
    lines = ("Relu@gpu:1: x -> a", "Relu: x -> b", "Tanh@gpu:1: x -> c", "Tanh@gpu:0: x -> d")
    placed = with_copies(read(named(*lines, given=GIVEN, outputs=["a", "b", "c", "d"])))
    graph = placed.graph
    assert drawn(graph) == [
        "x -> x/on/gpu:1",
        "x/on/gpu:1 -> a",
        "x -> b",
        "x/on/gpu:1 -> c",
        "x -> x/on/gpu:0",
        "x/on/gpu:0 -> d",
    ]
    assert copy_route(graph.nodes[0]) == ("cpu", "gpu:1")
    assert placed.devices == {"x": "cpu", "a": "gpu:1", "b": "cpu", "c": "gpu:1", "d": "gpu:0"}
    check_placement(graph)


def test_every_version_is_copied():
    lines = ("Relu@gpu:1: w -> a", "Step: w -> w", "Relu@gpu:1: w -> b")
    graph = with_copies(read(named(*lines, given=GIVEN, outputs=["a", "b"])), style=CAFFE2).graph
    assert drawn(graph) == ["w -> w_cuda_1", "w_cuda_1 -> a", "w -> w", "w -> w_cuda_1", "w_cuda_1 -> b"]
    assert graph.nodes[0].op == "caffe2::CopyCPUToGPU"


def test_a_second_program_reads_copies_of_the_first():
    first = with_copies(read(named("Relu@gpu:1: w -> a", given=GIVEN, outputs=["a"])), style=CAFFE2)
    second = read(named("Tanh@gpu:1: w a -> b", given={**GIVEN, "a": "input"}, outputs=["b"]))
    placed = with_copies(second, first.devices, first.copies, style=CAFFE2)
    assert drawn(placed.graph) == ["w_cuda_1 a -> b"]


def test_a_name_may_not_change_its_device():
    graph = read(named("Step: w -> w", "Step@gpu:1: x -> w", given=GIVEN, outputs=["w"]))
    assert refused(lambda: with_copies(graph)) == "written_on_two_devices"


def test_iteration_counts_and_lengths_stay_on_the_host():
    graph = read(
        named(
            "Adam@gpu:0: p m1 m2 g lr iter -> p m1 m2",
            given=dict.fromkeys(("p", "m1", "m2", "g", "lr"), "parameter") | {"iter": "state"},
        )
    )
    on_gpu = dict.fromkeys(("p", "m1", "m2", "g", "lr"), "gpu:0")
    assert len(with_copies(graph, on_gpu, style=CAFFE2).graph.nodes) == 1
    assert len(with_copies(graph, on_gpu).graph.nodes) == 2


def test_a_read_from_another_device_is_refused():
    graph = read(named("Relu@gpu:1: x -> a", "Relu@gpu:0: a -> b", given=GIVEN, outputs=["b"]))
    assert refused(lambda: check_placement(graph)) == "device_conflict"
    check_placement(with_copies(graph).graph)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "@gpu:0", "@gpu:1"]), st.integers(0, 9)), min_size=1, max_size=8))
def test_inserting_and_fusing_copies_restores_the_program(ops):
    lines, names = [], ["x", "w"]
    for n, (device, source) in enumerate(ops):
        lines.append(f"Relu{device}: {names[source % len(names)]} -> v{n}")
        names.append(f"v{n}")
    graph = read(named(*lines, given=GIVEN, outputs=names[2:]))
    placed = with_copies(graph).graph
    check_placement(placed)
    assert len([node for node in placed.nodes if not copy_route(node)]) == len(ops)
    without = [node for node in placed.nodes if copy_route(node)]
    assert len({(node.inputs, node.annotations["device"]) for node in without}) == len(without)


CHAIN = ("Relu: x -> a", f"{DOWN}: a -> b", "N: b w -> c")


def test_one_pass_in_each_direction_propagates_statuses_of_copies():
    graph = read(named(*CHAIN, given=GIVEN, outputs=["c"]))
    assert dict(zip([v.name for v in graph.values], infer_status(graph, device_rule), strict=True)) == {
        "x": "gpu",
        "w": "cpu",
        "a": "gpu",
        "b": "cpu",
        "c": "cpu",
    }


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ({"x@0": "cpu"}, "status_conflict"),
        ({"nope@0": "cpu"}, "undefined_value"),
        ({"x@0": None}, "null_status"),
        ({"x@0": "gpu", "x": "cpu"}, "status_conflict"),
        ({"x@0": ""}, "null_status"),
    ],
)
def test_bad_hints_are_refused(known, code):
    graph = read(named(*CHAIN, given=GIVEN, outputs=["c"]))
    assert refused(lambda: infer_status(graph, device_rule, known)) == code


def test_values_without_a_status_are_reported_with_their_version():
    graph = read(named("Relu: x -> a", "Relu: a -> a", given=GIVEN, outputs=["a"]))
    with pytest.raises(BadGraph) as caught:
        infer_status(graph, device_rule)
    assert [finding.code for finding in caught.value.findings] == ["unknown_status"] * 3
    assert "'a@2'" in str(caught.value)


def test_layouts_follow_a_table_of_the_ops_that_change_them():
    rule = same_status({"NCHW2NHWC": ("nchw", "nhwc")})
    graph = read(named("Relu: x -> a", "NCHW2NHWC: a -> b", "Relu: b -> c", given=GIVEN, outputs=["c"]))
    assert infer_status(graph, rule) == ["nchw", "nchw", "nhwc", "nhwc"]


def test_device_names_of_other_frameworks_are_mapped():
    assert [device_prefix(device) for device in ("gpu", "gpu:1", "cpu")] == ["cuda", "cuda:1", "cpu"]


def test_removing_a_round_trip_keeps_the_data_flow():
    lines = ("Relu: x -> a", f"{DOWN}: a -> b", f"{UP}: b -> c", "N: c -> d")
    graph = read(named(*lines, given=GIVEN, outputs=["d"]))
    short = read(named("Relu: x -> a", "N: a -> d", given=GIVEN, outputs=["d"]))
    assert difference(without_round_trips(graph), short) is None
