"""Differentiation: contributions, head gradients, wanted values, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph, NoGradient
from graph.ir import Cost, Effect, Graph, Node, Phase, Role, TensorType
from tests.graph.evaluate import evaluate

SQUARE = TensorType("float64", (3, 3))


def chain(*ops: str, type: TensorType = SQUARE) -> Graph:
    """x, w ── MatMul ── op ── op ── ... ── loss (a sum); each op writes a value with its name."""
    builder = Builder("chain")
    x, w = builder.value("x", type, Role.INPUT), builder.value("w", type, Role.PARAMETER)
    (h,) = builder.node("MatMul", [x, w], name="fc", outputs=["h"])
    for i, op in enumerate(ops):
        (h,) = builder.node(op, [h], name=f"{op}{i}", outputs=[f"{op.lower()}{i}"])
    (loss,) = builder.node("ReduceSum", [h], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def backward(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.phase is Phase.BACKWARD]


def gradients(graph: Graph) -> dict[str, str]:
    return {graph.values[v].name: graph.values[dv].name for v, dv in graph.gradients}


def fan_out(readers: int) -> Graph:
    #   w ──▶ r0 ──╮
    #    ├──▶ r1 ──┼──▶ loss        `readers` readers of w
    #    ╰──▶ ...──╯
    builder = Builder("fan out")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    made = [builder.node("Tanh", [w], name=f"r{i}")[0] for i in range(readers)]
    (total,) = builder.node("Sum", made, name="total")
    (loss,) = builder.node("ReduceSum", [total], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


# Random programs over 3 x 3 matrices: each step is (op, operands counted back from the newest value).
_UNARY = ("Tanh", "Sigmoid", "Sin", "Transpose", "Softmax", "Identity", "Neg")
_BINARY = ("Add", "Sub", "Mul", "MatMul", "Concat+Split", "Halves")
_STEP = st.tuples(st.sampled_from(_UNARY + _BINARY), st.integers(0, 6), st.integers(0, 6))


def program(steps: list[tuple[str, int, int]]) -> Graph:
    builder = Builder("program")
    values = [builder.value(f"p{i}", SQUARE, Role.PARAMETER) for i in range(2)]
    for op, a, b in steps:
        x, y = values[-1 - a % len(values)], values[-1 - b % len(values)]
        if op in _UNARY:
            values.extend(builder.node(op, [x]))
        elif op == "Concat+Split":  # both halves, in turn
            (both,) = builder.node("Concat", [x, y], attributes={"axis": 0})
            values.extend(builder.node("Split", [both], outputs=2, attributes={"num_outputs": 2, "axis": 0})[::-1])
        elif op == "Halves":  # one of two outputs has no reader
            (both,) = builder.node("Concat", [x, y], attributes={"axis": 1})
            values.append(builder.node("Split", [both], outputs=2, attributes={"num_outputs": 2, "axis": 1})[1])
        else:
            values.extend(builder.node(op, [x, y]))
    (loss,) = builder.node("ReduceMean", [values[-1]], outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


@given(st.lists(_STEP, min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_gradients_of_random_programs_agree_with_finite_differences(steps, seed):
    graph, chance = program(steps), np.random.default_rng(seed)
    at = {f"p{i}": chance.uniform(-1, 1, (3, 3)) for i in range(2)}
    step = differentiate(graph, ["loss"], unreachable="zeros")
    found = evaluate(step, at)
    for name, gradient in gradients(step).items():
        direction = chance.uniform(-1, 1, (3, 3))
        ahead, behind = ({**at, name: at[name] + offset * direction} for offset in (1e-5, -1e-5))
        slope = (evaluate(graph, ahead)["loss"] - evaluate(graph, behind)["loss"]) / 2e-5
        assert (found[gradient] * direction).sum() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@given(st.lists(_STEP, min_size=1, max_size=12))
def test_backward_nodes_come_in_reverse_order_of_the_nodes_they_differentiate(steps):
    graph = program(steps)
    place = {node.name: n for n, node in enumerate(graph.nodes)} | {"p0": -1, "p1": -1}
    of = [place[node.annotations["gradient_of"]] for node in backward(differentiate(graph, ["loss"]))]
    # A sum belongs to the node that made the value, and stands as early as its parts are there.
    own = [
        n for n, node in zip(of, backward(differentiate(graph, ["loss"])), strict=True) if node.op not in ("Add", "Sum")
    ]
    assert own == sorted(own, reverse=True)


def test_the_gradient_of_an_addition_needs_no_node():
    builder = Builder("residual")
    x, w = builder.value("x", SQUARE, Role.INPUT), builder.value("w", SQUARE, Role.PARAMETER)
    (y,) = builder.node("Add", [x, w], name="add", outputs=["y"])
    graph = differentiate(builder.build([y]), ["y"], head_gradients={"y": "x"})
    assert backward(graph) == []
    assert gradients(graph) == {"w": "x"}


@pytest.mark.parametrize("readers", [2, 7])
def test_up_to_seven_contributions_are_summed_by_one_node(readers):
    sums = [node for node in backward(differentiate(fan_out(readers), ["loss"])) if node.op in ("Add", "Sum")]
    assert [len(node.inputs) for node in sums] == [readers]


def test_more_than_seven_contributions_are_summed_pairwise():
    graph = differentiate(fan_out(8), ["loss"])
    ops = [node.op.removeprefix("remat::") for node in backward(graph)]
    assert ops[-15:] == ["TanhGrad", *["TanhGrad", "Add"] * 7]


def test_a_sum_directly_follows_its_last_contribution():
    #   w is read by a and c; between their gradients nothing of w's is waited for
    builder = Builder("early")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    (early,) = builder.node("Tanh", [builder.value("x", SQUARE, Role.PARAMETER)], name="early")
    (a,) = builder.node("Mul", [early, w], name="a")
    (c,) = builder.node("Mul", [a, w], name="c", outputs=["c"])
    names = [node.name for node in backward(differentiate(builder.build([c]), ["c"]))]
    assert names.index("grad/w") < names.index("grad/early")


def test_a_repeated_operand_has_two_contributions():
    builder = Builder("square")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    (y,) = builder.node("Add", [w, w], name="double", outputs=["y"])
    graph = differentiate(builder.build([y]), ["y"])
    found = evaluate(graph, {"w": np.ones((3, 3))})
    assert (found[gradients(graph)["w"]] == 2).all()


def test_a_head_gradient_is_one_contribution_to_a_target_with_readers():
    #   w ── Tanh ── y (target) ── Sin ── z (target)
    builder = Builder("two targets")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    builder.value("d", SQUARE, Role.INPUT)
    (y,) = builder.node("Tanh", [w], outputs=["y"])
    (z,) = builder.node("Sin", [y], outputs=["z"])
    graph = differentiate(builder.build([z]), ["y", "z"], head_gradients={"y": "d"})
    given = {"w": np.full((3, 3), 0.3), "d": np.full((3, 3), 5.0)}
    found = evaluate(graph, given)
    expected = (5 + np.cos(np.tanh(0.3))) * (1 - np.tanh(0.3) ** 2)
    assert found[gradients(graph)["w"]] == pytest.approx(expected)


def test_a_repeated_target_counts_twice():
    graph = differentiate(chain("Tanh"), ["loss", "loss"])
    once = differentiate(chain("Tanh"), ["loss"])
    at = {"x": np.eye(3), "w": np.full((3, 3), 0.2)}
    twice, single = (evaluate(g, at)[gradients(g)["w"]] for g in (graph, once))
    assert twice == pytest.approx(2 * single)


def test_the_default_head_of_a_scalar_is_a_constant():
    graph = differentiate(chain("Tanh"), ["loss"])
    first = backward(graph)[0]
    assert graph.values[first.inputs[0]].role is Role.CONSTANT


def test_gradients_of_intermediate_values_are_supported():
    graph = differentiate(chain("Tanh", "Sin"), ["loss"], ["tanh0", "w"])
    at = {"x": np.eye(3), "w": np.full((3, 3), 0.2)}
    found = evaluate(graph, at)
    assert found[gradients(graph)["tanh0"]] == pytest.approx(np.cos(found["tanh0"]))
    assert [graph.values[v].name for v, _ in graph.gradients] == ["tanh0", "w"]


def test_nothing_before_the_wanted_value_is_differentiated():
    graph = differentiate(chain("Tanh", "Sin"), ["loss"], ["tanh0"])
    assert {node.annotations["gradient_of"] for node in backward(graph)} == {"loss", "Sin1"}


def test_no_gradient_blocks_the_gradient_at_a_value():
    graph = differentiate(chain("Tanh", "Sin"), ["loss"], no_gradient=["tanh0"])
    assert gradients(graph) == {} and backward(graph) == []


def test_gradients_are_appended_to_the_outputs():
    graph = differentiate(chain("Tanh"), ["loss"])
    assert [graph.values[v].name for v in graph.outputs] == ["loss", gradients(graph)["w"]]


def test_forward_values_are_not_read_for_their_shape_alone():
    graph = differentiate(chain("Transpose", "Flatten", "Relu"), ["loss"])
    read = {graph.values[v].name for node in backward(graph) for v in node.reads}
    forward = {"h", "transpose0", "flatten1", "relu2", "loss"}
    assert read & forward == {"relu2"}


@pytest.mark.parametrize(("mode", "expected"), [("null", {"w"}), ("zeros", {"w", "unused"})])
def test_an_unreachable_parameter_has_no_gradient_or_zeros(mode, expected):
    builder = Builder.from_graph(chain("Tanh"))
    builder.value("unused", SQUARE, Role.PARAMETER)
    graph = differentiate(builder.build([builder.nodes[-1].outputs[0]]), ["loss"], unreachable=mode)
    assert set(gradients(graph)) == expected


def test_an_unreachable_parameter_is_an_error_on_request():
    builder = Builder.from_graph(chain("Tanh"))
    builder.value("unused", SQUARE, Role.PARAMETER)
    with pytest.raises(BadGraph, match=r"'unused' \(entry 2\): no target depends on it"):
        differentiate(builder.build([builder.nodes[-1].outputs[0]]), ["loss"], unreachable="error")


def test_comparisons_stop_the_gradient_without_an_error():
    builder = Builder("mask")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    zero = builder.constant(np.float64(0))
    (mask,) = builder.node("Greater", [w, zero], name="mask")
    (kept,) = builder.node("Where", [mask, w, zero], name="kept", outputs=["kept"])
    graph = differentiate(builder.build([kept]), ["kept"])
    assert [node.op for node in backward(graph)] == ["Expand", "Where"]


def opaque(**fields: object) -> Graph:
    """x, w ── MatMul ── h ── acme::Mystery ── m, n ── loss from m alone."""
    builder = Builder("opaque")
    x, w = builder.value("x", SQUARE, Role.INPUT), builder.value("w", SQUARE, Role.PARAMETER)
    (h,) = builder.node("MatMul", [x, w], name="fc", outputs=["h"])
    reads = fields.pop("gradient_reads", None)
    m, n = builder.value("m", SQUARE), builder.value("n", SQUARE)
    named = {"h": h, "w": w, "m": m, "n": n}
    builder.node(
        "acme::Mystery",
        [h, w, h],
        name="mystery",
        outputs=[m, n],
        annotations={"mesh": "a"},
        gradient_reads=None if reads is None else tuple(named[name] for name in reads),
        **fields,
    )
    (loss,) = builder.node("ReduceSum", [m], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def test_an_unknown_op_gets_an_opaque_gradient_node_with_the_declared_reads():
    graph = differentiate(opaque(gradient_reads=("h", "m"), cost=Cost(flops=10, traffic_bytes=7)), ["loss"])
    node = next(node for node in graph.nodes if node.op == "acme::MysteryGrad")
    names = [graph.values[v].name if v >= 0 else "" for v in node.inputs]
    assert names[1:] == ["", "h", "m"]  # the gradient of m, none of n, then the declared reads
    assert [graph.values[v].type for v in node.outputs] == [SQUARE, SQUARE]  # of h, once, and of w
    assert (node.cost.flops, node.cost.traffic_bytes, node.phase) == (20, 14, Phase.BACKWARD)
    assert node.annotations == {"mesh": "a", "gradient_of": "mystery"}


def test_an_opaque_gradient_without_a_cost_moves_twice_the_bytes():
    graph = differentiate(opaque(gradient_reads=()), ["loss"])
    node = next(node for node in graph.nodes if node.op == "acme::MysteryGrad")
    assert node.cost.traffic_bytes == 2 * 4 * SQUARE.nbytes  # h, w, m, n


def test_an_opaque_collective_has_a_collective_gradient():
    graph = differentiate(opaque(gradient_reads=(), effect=Effect.COLLECTIVE), ["loss"])
    assert next(node for node in graph.nodes if node.op == "acme::MysteryGrad").effect is Effect.COLLECTIVE


def test_values_with_a_size_but_no_type_can_be_differentiated():
    builder = Builder("sizes")
    w, a, b = (
        builder.value(name, bytes=100, role=role)
        for name, role in (("w", Role.PARAMETER), ("a", Role.ACTIVATION), ("b", Role.ACTIVATION))
    )
    builder.node("acme::F", [w], name="f", outputs=[a], gradient_reads=(w,))
    builder.node("acme::G", [a, w], name="g", outputs=[b], gradient_reads=())
    graph = differentiate(builder.build([b]), ["b"])
    assert [node.name for node in backward(graph)] == ["grad/g", "grad/f", "grad/w"]
    assert all(graph.values[dv].nbytes == 100 for _, dv in graph.gradients)


def test_an_unknown_op_without_gradient_reads_is_refused_with_its_path():
    with pytest.raises(NoGradient, match=r"nodes\[1\].*acme::Mystery.*'mystery'.*gradient_reads.*no_gradient"):
        differentiate(opaque(), ["loss"])


def test_ten_ops_without_a_gradient_are_reported_together():
    builder = Builder("many")
    h = builder.value("w", SQUARE, Role.PARAMETER)
    for i in range(12):
        (h,) = builder.node("acme::F", [h], name=f"f{i}", types=[SQUARE])
    with pytest.raises(NoGradient) as raised:
        differentiate(builder.build([h]), [builder.values[h].name])
    assert len(raised.value.findings) == 10 and raised.value.left_out == 2


def test_a_use_that_a_rule_does_not_support_is_refused_with_its_path():
    builder = Builder("computed axes")
    w, axes = builder.value("w", SQUARE, Role.PARAMETER), builder.value("axes", TensorType("int64", (1,)), Role.INPUT)
    (y,) = builder.node("ReduceSum", [w, axes], name="total", outputs=["y"], types=[TensorType("float64", (1, 3))])
    with pytest.raises(NoGradient, match=r"nodes\[0\].*'total'.*computed axes"):
        differentiate(builder.build([y]), ["y"])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"targets": ["los"]}, "'los'"),
        ({"targets": ["loss"], "wanted": ["w", "v"]}, "'v'"),
        ({"targets": ["loss"], "head_gradients": {"loss": "x"}}, "float64"),
        ({"targets": ["loss"], "head_gradients": {"w": None}}, "a target"),
        ({"targets": ["loss"], "no_gradient": ["nothing"]}, "'nothing'"),
        ({"targets": ["loss"], "unreachable": "maybe"}, "'maybe'"),
    ],
)
def test_an_invalid_request_is_refused_with_its_field(request_, message):
    with pytest.raises(BadGraph, match=message):
        differentiate(chain("Tanh"), **request_)


def test_a_value_overwritten_before_its_gradient_reads_it_is_refused():
    builder = Builder("overwritten")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    (h,) = builder.node("Tanh", [w], name="h", outputs=["h"])
    (s,) = builder.node("Sin", [h], name="s", outputs=["s"], in_place=((0, 0),))  # Sin's gradient reads h
    with pytest.raises(BadGraph, match="'h' after 's' overwrote it"):
        differentiate(builder.build([s]), ["s"])


def test_deep_graphs_need_no_recursion():
    graph = differentiate(chain(*["Tanh"] * 5000), ["loss"])
    assert len(backward(graph)) > 5000


def test_a_second_differentiation_uses_new_names():
    once = differentiate(chain("Exp"), ["loss"])
    twice = differentiate(once, [gradients(once)["w"]], ["x"])
    assert len({node.name for node in twice.nodes}) == len(twice.nodes)
    assert gradients(twice).keys() == {"w", "x"}


@pytest.mark.parametrize(
    ("op", "shape"), [("ReduceMean", (3_000_000,)), ("GlobalAveragePool", (1, 1, 2000, 1500)), ("ReduceMean", (0, 3))]
)
def test_mean_in_half_precision_is_divided_in_float32(op: str, shape: tuple[int, ...]):
    builder = Builder("mean")
    x = builder.value("x", TensorType("float16", shape), Role.PARAMETER)
    (mean,) = builder.node(op, [x], name="mean", outputs=["mean"])
    step = differentiate(builder.build([mean]), ["mean"], head_gradients={"mean": 32768})
    (_, gradient), count = step.gradients[0], max(1, int(np.prod(shape)))
    found = evaluate(step, {"x": np.zeros(shape, np.float16)})[step.values[gradient].name]
    assert found.shape == shape and (found == np.float16(np.float32(32768) / np.float32(count))).all()


def test_mean_of_many_operands_divides_by_their_number():
    builder = Builder("mean")
    xs = [builder.value(f"x{i}", TensorType("float16", (2,)), Role.PARAMETER) for i in range(3)]
    (mean,) = builder.node("Mean", xs, name="mean", outputs=["mean"])
    step = differentiate(builder.build([mean]), ["mean"])
    found = evaluate(step, {f"x{i}": np.ones(2, np.float16) for i in range(3)})
    assert all((found[step.values[g].name] == np.float16(1 / 3)).all() for _, g in step.gradients)
