"""A transformer with four checkpoints on a mesh of two by two processes, run again as Paddle names it."""

import numpy as np
import pytest
from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.paddle.recompute import SEGMENT_BUILDERS, recompute_pass
from graph.ir import Phase, Role, TensorType
from graph.training.device_mesh import MAPPING, MESH, check_mesh, mesh_shape, without_stale_mappings
from graph.training.random_seeds import with_seeds
from graph.training.segments import ForwardPath
from graph.training.step import training_step
from graph.transforms.structural_equality import difference

MESH_2D = [[0, 1], [2, 3]]
BATCH, LENGTH, WIDTH = 4, 6, 8
CHECKPOINTS = ["block0/out", "block1/out", "block2/out", "block3/out"]


def transformer(blocks=4):
    """x ── [attention ── add ── feed forward ── dropout ── add] × blocks ── loss."""
    b = Builder("transformer")

    def weight(name, *shape):
        return b.value(name, TensorType("float32", shape), Role.PARAMETER)

    def node(op, inputs, name, **rest):
        return b.node(op, inputs, name=name, outputs=[name], **rest)[0]

    v = b.value("x", TensorType("float32", (BATCH, LENGTH, WIDTH)), Role.INPUT)
    for i in range(blocks):
        p = f"block{i}"
        q, k, u = (node("MatMul", [v, weight(f"{p}/w{s}", WIDTH, WIDTH)], f"{p}/{s}") for s in "qkv")
        kt = node("Transpose", [k], f"{p}/kt", attributes={"perm": [0, 2, 1]})
        scores = node("Softmax", [node("MatMul", [q, kt], f"{p}/scores")], f"{p}/soft")
        mixed = node("Add", [node("MatMul", [scores, u], f"{p}/mixed"), v], f"{p}/sum")
        wide = node("Relu", [node("MatMul", [mixed, weight(f"{p}/up", WIDTH, 4 * WIDTH)], f"{p}/wide")], f"{p}/relu")
        narrow = node("MatMul", [wide, weight(f"{p}/down", 4 * WIDTH, WIDTH)], f"{p}/narrow")
        ratio, on = b.constant(np.float32(0.25), f"{p}/ratio"), b.constant(np.array(True), f"{p}/on")
        kept, _ = b.node("Dropout", [narrow, ratio, on], name=f"{p}/drop", outputs=[f"{p}/kept", f"{p}/mask"])
        v = node("Add", [kept, mixed], f"{p}/out")
    loss = node("ReduceMean", [v], "loss", attributes={"keepdims": 0})
    return b.build([loss])


def mapping_of(value):
    """Batches are cut along axis 0 of the mesh, what is wide along axis 1."""
    shape = value.type.shape
    wide = [1 if length == 4 * WIDTH else -1 for length in shape]
    return [0, *wide[1:]] if value.role is not Role.PARAMETER and shape else wide


def spread(graph, mesh=MESH_2D):
    """The graph with its tensors spread over a mesh, as annotations say it."""
    mappings = {value.name: mapping_of(value) for value in graph.values if value.role is not Role.CONSTANT}
    values = [
        replace(value, annotations={MESH: mesh, MAPPING: mappings[value.name]}) if value.name in mappings else value
        for value in graph.values
    ]
    nodes = []
    for node in graph.nodes:
        names = [graph.values[v].name for v in (*node.reads, *node.writes)]
        own = {MESH: mesh, MAPPING: {name: mappings[name] for name in names if name in mappings}, "op_role": "forward"}
        nodes.append(replace(node, annotations=own))
    return replace(graph, values=tuple(values), nodes=tuple(nodes))


@pytest.fixture(scope="module")
def training():
    return training_step(with_seeds(spread(transformer())), loss="loss")[0]


@pytest.fixture(scope="module")
def found(training):
    return recompute_pass(training, "loss", CHECKPOINTS)


def test_there_is_a_segment_for_each_checkpoint(training):
    statistics = ForwardPath.of(training, [training.value_named("loss")])
    for rule in ("pass", "append_backward"):
        segments = SEGMENT_BUILDERS[rule](statistics, CHECKPOINTS, "warn")
        assert len(segments.ranges) == 4
        assert segments.ranges[0][0] == 0
        assert all(a[1] <= b[0] for a, b in zip(segments.ranges, segments.ranges[1:], strict=False))


def test_copies_are_named_by_segments_counted_from_the_last(found):
    assert found.renamed["block3/soft"] == "block3/soft.subprog_0"
    assert found.renamed["block0/soft"] == "block0/soft.subprog_3"
    assert not set(found.renamed) & set(CHECKPOINTS)
    assert set(CHECKPOINTS) <= set(found.saved)
    assert {f"seed/block{i}/drop" for i in range(4)} <= set(found.saved)
    assert found.crossing == ()


def test_gradients_read_the_copies_and_the_originals_end_in_the_forward_part(found):
    graph = found.graph
    names = [value.name for value in graph.values]
    late = {names[v] for node in graph.nodes if node.phase is not Phase.FORWARD for v in node.reads}
    assert not late & found.renamed.keys()
    assert set(found.renamed.values()) & late


def test_annotations_follow_copies_and_renames(found):
    graph = found.graph
    check_mesh(graph)
    values = {value.name: value for value in graph.values}
    for name, copy in found.renamed.items():
        assert values[copy].annotations[MESH] == MESH_2D
        assert values[copy].annotations[MAPPING] == values[name].annotations[MAPPING]
        assert values[copy].type == values[name].type
    copies = [node for node in graph.nodes if node.annotations.get("recomputed")]
    assert len(copies) == len(found.copied) > 20
    for node in copies:
        touched = {graph.values[v].name for v in (*node.reads, *node.writes)}
        assert node.annotations[MESH] == MESH_2D
        assert set(node.annotations[MAPPING]) == {name for name in touched if values[name].role is not Role.CONSTANT}
        assert node.annotations["op_role"] == "backward"
    readers = [
        node for node in graph.nodes if "gradient_of" in node.annotations and ".subprog_" in str(node.annotations)
    ]
    assert readers
    seeds = [node for node in graph.nodes if node.op == "remat::Seed"]
    for node in seeds:
        (name,) = [graph.values[v].name for v in node.writes]
        assert node.annotations[MAPPING] == {name: [-1]}
        assert values[name].annotations == {MESH: MESH_2D, MAPPING: [-1]}


def test_losses_with_without_and_partly_with_recomputation_are_equal(training, found):
    plain = execute(training, seed=1)
    partly = recompute_pass(training, "loss", CHECKPOINTS[2:])
    for graph in (found.graph, partly.graph):
        assert difference(training, graph, repeats=True) is None
        ran = execute(graph, seed=1)
        for name, array in plain.outputs.items():
            np.testing.assert_array_equal(array, ran.outputs[name])
        assert ran.peak_bytes < plain.peak_bytes


def test_copies_start_only_when_the_backward_part_gets_there(found):
    graph = found.graph
    for n, node in enumerate(graph.nodes):
        reads_a_copy = any(".subprog_" in graph.values[v].name for v in node.reads)
        if node.annotations.get("recomputed") and not reads_a_copy:
            assert node.after and all(graph.nodes[a].phase is not Phase.FORWARD and a < n for a in node.after)


def test_tagged_segments_may_opt_out(training):
    nodes = [
        replace(node, annotations={**node.annotations, "segment": node.name.split("/")[0]})
        if node.name.startswith("block") and node.phase is Phase.FORWARD
        else node
        for node in training.nodes
    ]
    seeds = {f"seed/block{i}/drop" for i in range(4)}
    nodes = [
        replace(node, annotations={**node.annotations, "segment": node.name.split("/")[1]})
        if node.name in seeds
        else node
        for node in nodes
    ]
    graph = replace(training, nodes=tuple(nodes))
    every = recompute_pass(graph, "loss", None)
    some = recompute_pass(graph, "loss", None, opt_out=[0, 2])
    assert {name.split("/")[0] for name in every.renamed} == {f"block{i}" for i in range(4)}
    assert {name.split("/")[0] for name in some.renamed} == {"block1", "block3"}


def refused(graph, loss="loss"):
    with pytest.raises(BadGraph) as refusal:
        recompute_pass(graph, loss, CHECKPOINTS)
    return {finding.code for finding in refusal.value.findings}, str(refusal.value)


def changed(graph, name, annotations):
    """The graph with a node's annotations replaced."""
    nodes = [
        replace(node, annotations=annotations(node.annotations)) if node.name == name else node for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def test_faulty_annotations_are_refused_by_name(training):
    codes, text = refused(changed(training, "block1/q", lambda a: {k: v for k, v in a.items() if k != MESH}))
    assert codes == {"missing_mesh"} and "'block1/q'" in text

    def mapped(name, mapping):
        return lambda a: {**a, MAPPING: {**a[MAPPING], name: mapping}}

    for mapping in ([0], [2, -1, -1], [0, 0, -1], [-1, 1, 0], "rows"):
        graph = changed(training, "block1/q", mapped("block1/q", mapping))
        if mapping == [-1, 1, 0]:
            check_mesh(without_stale_mappings(graph))  # 6 and 8 are divided by 2
        else:
            codes, text = refused(graph)
            assert codes == {"bad_mapping"} and "'block1/q'" in text
    codes, text = refused(changed(training, "block1/q", mapped("block3/q", [0, -1, -1])))
    assert codes == {"foreign_mapping"} and "'block3/q'" in text
    codes, text = refused(changed(training, "block1/q", lambda a: {**a, MESH: [4, 5]}))
    assert "mesh_conflict" in codes
    codes, text = refused(changed(training, "block1/q", lambda a: {**a, MESH: [[0, 1], [2]]}))
    assert codes == {"bad_mapping"} and "'block1/q'" not in text.replace("'block1/q' on", "")


def test_a_loss_nobody_writes_is_refused(training):
    codes, text = refused(training, "cost")
    assert codes == {"unknown_loss"} and "'cost'" in text
    assert refused(training, "x")[0] == {"unknown_loss"}


def test_the_two_ways_to_build_segments_differ():
    graph = transformer(2)
    statistics = ForwardPath.of(graph, [graph.value_named("loss")])
    first = graph.nodes[0].name
    assert SEGMENT_BUILDERS["pass"](statistics, [first], "warn").ranges == ((0, 1),)
    assert SEGMENT_BUILDERS["append_backward"](statistics, [first], "warn").ranges == ()


MESHES = [
    ([0, 1], (2,)),
    ([[0, 1], [2, 3]], (2, 2)),
    ({"shape": [2, 4], "process_ids": []}, (2, 4)),
    ([[0], [1, 2]], None),
    ("x", None),
    ([], None),
]


@pytest.mark.parametrize(("mesh", "shape"), MESHES)
def test_meshes_are_lists_of_processes_or_objects_with_a_shape(mesh, shape):
    assert mesh_shape(mesh) == shape
