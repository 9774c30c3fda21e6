"""StableHLO text: kernels as XLA fuses them, costs, loops, donation, phases, and faults with their line."""

from __future__ import annotations

import json
import random
import re

import pytest

import remat
from graph.errors import BadGraph
from graph.formats.readers import importer_of, load
from graph.ir import IMPORT_WARNINGS, Effect, Graph, Node, Phase
from graph.limits import Limits, ShapeOverrides

#: w is donated; `half` is called twice; the last op of the backward pass writes over w.
STEP = """
#loc1 = loc("w")
#loc7 = loc("model.py":12:3)
#loc8 = loc("jit(step)/jvp()/dot"(#loc7))
#loc9 = loc("jit(step)/transpose(jvp())/dot"(#loc7))
#loc10 = loc("jit(step)/sub")
module @jit_step attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<8x4xf32> {tf.aliasing_output = 0 : i32} loc("w"), %arg1: tensor<16x8xf32>)
      -> (tensor<8x4xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (
        tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32> loc(#loc8)
    %1 = call @half(%0) : (tensor<16x4xf32>) -> tensor<16x4xf32> loc(#loc8)
    %2 = stablehlo.tanh %1 : tensor<16x4xf32> loc(#loc8)
    %3 = stablehlo.dot_general %arg1, %2, contracting_dims = [0] x [0] : (
        tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc(#loc9)
    %4 = stablehlo.subtract %arg0, %3 : tensor<8x4xf32> loc(#loc10)
    return %4 : tensor<8x4xf32> loc(#loc10)
  }
  func.func private @half(%arg0: tensor<16x4xf32>) -> tensor<16x4xf32> {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<16x4xf32>
    return %1 : tensor<16x4xf32>
  }
}
"""


def read(text: str) -> Graph:
    return load(text.encode())


def main(body: str, arguments: str = "%a: tensor<8xf32>", results: str = "tensor<8xf32>") -> Graph:
    return read(f"module @m {{\n func.func public @main({arguments}) -> ({results}) {{\n{body}\n }}\n}}\n")


def node_of(graph: Graph, op: str) -> Node:
    (node,) = [node for node in graph.nodes if node.op == op]
    return node


def reads(graph: Graph, node: Node) -> list[str]:
    return [graph.values[v].name for v in node.inputs]


def test_what_xla_fuses_is_one_node_and_calls_are_inlined() -> None:
    graph = read(STEP)
    assert [node.op for node in graph.nodes] == [
        "stablehlo::dot_general",
        "stablehlo::tanh",  # with the constant, its broadcast and the product of @half
        "stablehlo::dot_general",
        "stablehlo::subtract",
    ]
    assert importer_of(STEP.encode()) == "stablehlo" and graph.name == "jit_step"
    assert [graph.values[v].name for v in graph.inputs] == ["w", "arg1"]
    ops = graph.nodes[1].attributes["ops"]
    assert [re.search(r"stablehlo\.(\w+)", op)[1] for op in ops] == [  # type: ignore[index]
        "constant",
        "broadcast_in_dim",
        "multiply",
        "tanh",
    ]


def test_an_array_that_an_op_writes_over_is_part_of_its_task() -> None:
    fill = "%0 = stablehlo.constant dense<0.0> : tensor<8xf32>\n"
    update = "stablehlo.dynamic_update_slice %0, %a, %i : (tensor<8xf32>, tensor<4xf32>, tensor<i32>) -> tensor<8xf32>"
    given = "%a: tensor<4xf32>, %i: tensor<i32>"
    (node,) = main(f"{fill} %1 = {update}\n return %1 : tensor<8xf32>", arguments=given).nodes
    assert node.op == "stablehlo::dynamic_update_slice" and len(node.attributes["ops"]) == 2  # type: ignore[arg-type]
    body = f"{fill} %1 = {update}\n %2 = stablehlo.dot %0, %0 : (tensor<8xf32>, tensor<8xf32>) -> tensor<f32>\n"
    graph = main(f"{body} return %1, %2 : tensor<8xf32>, tensor<f32>", arguments=given)
    assert [node.op for node in graph.nodes].count("stablehlo::constant") == 1


def test_a_warning_says_that_the_plan_is_in_the_report_only() -> None:
    (warning,) = read(STEP).annotations[IMPORT_WARNINGS]
    assert "no rewritten StableHLO" in warning and "remat.jax.optimize" in warning


def test_a_matrix_product_costs_two_operations_for_each_product_and_its_traffic() -> None:
    cost = read(STEP).nodes[0].cost
    assert cost.flops == 2 * 16 * 4 * 8
    assert cost.traffic_bytes == 4 * (16 * 8 + 8 * 4 + 16 * 4)


def test_a_donated_argument_is_written_over() -> None:
    graph = read(STEP)
    update = graph.nodes[-1]
    assert update.in_place == ((0, 0),) and reads(graph, update)[0] == "w"


def test_a_freed_argument_takes_the_first_result_of_its_type() -> None:
    graph = main(
        "%0 = stablehlo.add %a, %b : tensor<8xf32>\n return %0 : tensor<8xf32>",
        arguments="%a: tensor<8xf32>, %b: tensor<8xf32> {jax.buffer_donor = true}",
    )
    assert reads(graph, graph.nodes[0])[graph.nodes[0].in_place[0][1]] == "b"


def test_locations_say_which_ops_are_backward_and_where_they_come_from() -> None:
    graph = read(STEP)
    assert [node.phase for node in graph.nodes] == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE]
    assert graph.nodes[2].annotations["line"] == "model.py:12"
    assert "locations" not in str(graph.annotations[IMPORT_WARNINGS])
    assert "debug_info=True" in str(read(re.sub(r" loc\(#loc\d+\)", "", STEP)).annotations[IMPORT_WARNINGS])


def test_it_is_planned_as_it_stands() -> None:
    report = remat.plan(STEP.encode(), budget="100%")
    assert report["model"]["nodes"] == 4
    assert report["executed"]["status"] == "not executed"


LOOP = """
    %c = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %empty = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<5x8xf32>
    %1:3 = stablehlo.while(%i = %c, %x = %a, %all = %empty) : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>
    cond {
      %n = stablehlo.constant dense<5> : tensor<i32>
      %2 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.tanh %x : tensor<8xf32>
      %3 = stablehlo.reshape %2 : (tensor<8xf32>) -> tensor<1x8xf32>
      %4 = stablehlo.dynamic_update_slice %all, %3, %i, %c : (
        tensor<5x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<5x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %5, %2, %4 : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>
    }
    return %1#2 : tensor<5x8xf32>
"""


def test_a_loop_is_one_node_with_the_cost_of_all_its_iterations() -> None:
    graph = main(LOOP, results="tensor<5x8xf32>")
    (loop,) = graph.nodes  # XLA writes the array of zeros into the storage of what the loop carries
    assert loop.op == "stablehlo::while" and reads(graph, loop) == ["a"]
    once, twice = (main(LOOP.replace("<5>", f"<{n}>"), results="tensor<5x8xf32>").nodes[0].cost for n in (1, 2))
    assert loop.cost.flops - once.flops == 4 * (twice.flops - once.flops) > 0  # type: ignore[operator]
    assert loop.cost.workspace_bytes == once.workspace_bytes


def test_a_loop_whose_iterations_are_unknown_costs_one_and_a_warning_says_so() -> None:
    graph = main(
        LOOP.replace("%n = stablehlo.constant dense<5>", "%n = stablehlo.convert %i"), results="tensor<5x8xf32>"
    )
    assert "while" in str(graph.annotations[IMPORT_WARNINGS])


def test_values_that_branches_take_from_outside_are_read() -> None:
    graph = main(
        """
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.case"(%p) ({
      stablehlo.return %a : tensor<8xf32>
    }, {
      %2 = stablehlo.tanh %b : tensor<8xf32>
      stablehlo.return %2 : tensor<8xf32>
    }) : (tensor<i32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>""",
        arguments="%p: tensor<i32>, %a: tensor<8xf32>, %b: tensor<8xf32>",
    )
    (case,) = graph.nodes
    assert reads(graph, case) == ["p", "a", "b"] and case.cost.flops == 8


def test_a_reduction_in_both_forms_and_a_sort_with_a_comparator() -> None:
    graph = main(
        """
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (
        tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %1:2 = stablehlo.reduce(%a init: %z), (%a init: %z) across dimensions = [0] : (
        tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
     reducer(%l: tensor<f32>, %r: tensor<f32>) (%k: tensor<f32>, %m: tensor<f32>)  {
      %5 = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %5, %m : tensor<f32>, tensor<f32>
    }
    %2 = "stablehlo.sort"(%a) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %6 = stablehlo.compare LT, %l, %r, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    return %0, %1#1, %2 : tensor<f32>, tensor<f32>, tensor<8xf32>""",
        results="tensor<f32>, tensor<f32>, tensor<8xf32>",
    )
    assert [node.op for node in graph.nodes if node.op != "stablehlo::constant"] == [
        "stablehlo::reduce",
        "stablehlo::reduce",
        "stablehlo::sort",
    ]
    assert [graph.values[v].name for v in graph.outputs] == ["reduce", "reduce_1.1", "sort"]


def test_a_convolution_counts_the_kernel_without_its_output_channels() -> None:
    graph = main(
        "%0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        "window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x8x8x4xf32>\n return %0 : tensor<2x8x8x4xf32>",
        arguments="%x: tensor<2x8x8x3xf32>, %w: tensor<3x3x3x4xf32>",
        results="tensor<2x8x8x4xf32>",
    )
    assert graph.nodes[0].cost.flops == 2 * (2 * 8 * 8 * 4) * (3 * 3 * 3) and graph.nodes[0].heavy


def test_effects_and_names() -> None:
    graph = main(
        """
    %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{replicated}"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = "stablehlo.all_reduce"(%0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %5 = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %2:2 = stablehlo.optimization_barrier %a, %1 : tensor<8xf32>, tensor<8xf32>
    %3 = stablehlo.custom_call @print(%2#0) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
    return %3, %2#1 : tensor<8xf32>, tensor<8xf32>""",
        results="tensor<8xf32>, tensor<8xf32>",
    )
    assert node_of(graph, "stablehlo::all_reduce").effect is Effect.COLLECTIVE
    assert reads(graph, node_of(graph, "stablehlo::all_reduce")) == ["a"]
    assert node_of(graph, "stablehlo::custom_call").effect is Effect.ONCE
    barriers = [node for node in graph.nodes if node.op == "stablehlo::optimization_barrier"]
    assert [node.views for node in barriers] == [((0, 0),)] * 2


def test_constants_with_contents_are_residents_and_types_have_their_names() -> None:
    graph = main(
        """
    %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi4>
    %1 = stablehlo.constant dense<"0x00000000000000000000000000000000"> : tensor<4xui32>
    %2 = stablehlo.constant dense<1.0> : tensor<2xf8E4M3FN>
    %3 = stablehlo.constant dense<(1.0,2.0)> : tensor<2xcomplex<f32>>
    return %0, %1, %2, %3 : tensor<3xi4>, tensor<4xui32>, tensor<2xf8E4M3FN>, tensor<2xcomplex<f32>>""",
        results="tensor<3xi4>, tensor<4xui32>, tensor<2xf8E4M3FN>, tensor<2xcomplex<f32>>",
    )
    values = {value.name: value for value in graph.values}
    assert [str(values[f"constant{n}"].type) for n in ("", "_1", "_2", "_3")] == [
        "int4[3]",
        "uint32[4]",
        "float8e4m3fn[2]",
        "complex64[2]",
    ]
    assert len(graph.nodes) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STEP.replace("call @half", "call @third"), "third"),
        (STEP.replace("tensor<16x8xf32>, tensor<8x4xf32>", "tensor<?x8xf32>, tensor<8x4xf32>", 1), None),
        (STEP.replace("%arg1: tensor<16x8xf32>", "%arg1: tensor<?x8xf32>"), "fixed shapes"),
        (STEP.replace("%arg1: tensor<16x8xf32>", "%arg1: tensor<16x8xi9>"), "'i9'"),
        (STEP.replace("tanh %1", "tanh %9"), "%9"),
        (STEP.replace("call @half(%0)", "call @main(%arg0, %arg1)"), "calls at most"),
        (STEP.replace("%4 = stablehlo", "%4 = = stablehlo"), "line 16"),
        ("module @empty {\n}\n", "no function"),
        (
            "func.func @f(%a: tensor<!quant.uniform<i8:f32, 1.0>>) -> tensor<f32> {\n return %a : tensor<f32>\n}",
            "quantized",
        ),
    ],
)
def test_a_fault_is_named_with_its_place_and_remedy(text: str, expected: str | None) -> None:
    if expected is None:  # types of operands are those of their definitions
        read(text)
        return
    with pytest.raises(BadGraph, match=re.escape(expected)):
        read(text)


def test_a_module_that_is_cut_off_anywhere_is_refused_or_read() -> None:
    refused = 0
    for end in range(STEP.index("func.func"), len(STEP), 7):
        try:
            read(STEP[:end])
        except BadGraph:
            refused += 1
    assert refused > 100


def test_lengths_of_the_caller_are_refused() -> None:
    with pytest.raises(BadGraph, match="lower the program for other shapes"):
        load(STEP.encode(), shapes=ShapeOverrides(batch=4))


def test_functions_that_call_twice_each_stay_within_the_limit_of_nodes() -> None:
    functions = "\n".join(
        f"func.func private @f{n}(%a: tensor<f32>) -> tensor<f32> {{\n"
        f" %0 = call @f{n + 1}(%a) : (tensor<f32>) -> tensor<f32>\n"
        f" %1 = call @f{n + 1}(%0) : (tensor<f32>) -> tensor<f32>\n return %1 : tensor<f32>\n}}"
        for n in range(40)
    )
    last = (
        "func.func private @f40(%a: tensor<f32>) -> tensor<f32> {\n"
        " %0 = stablehlo.tanh %a : tensor<f32>\n return %0 : tensor<f32>\n}"
    )
    with pytest.raises(BadGraph, match="once calls are inlined"):
        load(f"module {{\n{functions}\n{last}\n}}".encode(), Limits(nodes=1000))


def test_bytecode_is_recognised_and_says_what_reads_it() -> None:
    with pytest.raises(BadGraph, match=r"lowered\.as_text"):
        load(b"ML\xefR\rStableHLO_v1.15")


def test_the_same_text_has_the_same_identity() -> None:
    first, again = (remat.plan(STEP.encode(), budget="100%")["model"]["hash"] for _ in range(2))
    assert first == again
    assert json.dumps(first)


def test_a_loop_without_iterations_costs_nothing_but_what_it_is_given() -> None:
    none, once = (main(LOOP.replace("<5>", f"<{n}>"), results="tensor<5x8xf32>").nodes[0].cost for n in (0, 1))
    assert none.flops < once.flops  # type: ignore[operator]


def test_regions_locations_and_names_without_end_are_refused_or_cut() -> None:
    nested = "".join(f'%{n} = "stablehlo.case"(%a) ({{\n' for n in range(5000))
    with pytest.raises(BadGraph, match="nested less deep"):
        main(nested)
    chain = "".join(f'#loc{n} = loc("f"(#loc{n + 1}))\n' for n in range(5000))
    body = " %0 = stablehlo.tanh %a : tensor<8xf32> loc(#loc0)\n return %0 : tensor<8xf32>"
    read(chain + f"func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{\n{body}\n}}")
    names = ", ".join(f'%a{n}: tensor<f32> loc("x{"_1" * (n % 400)}")' for n in range(1200))
    graph = main(" return %a0 : tensor<f32>", arguments=names, results="tensor<f32>")
    assert len({graph.values[v].name for v in graph.inputs}) == 1200


def test_text_with_tokens_dropped_doubled_or_exchanged_is_refused_or_read() -> None:
    rng = random.Random(7)
    texts = [STEP, f"module @m {{\n func.func @main(%a: tensor<8xf32>) -> tensor<5x8xf32> {{\n{LOOP}\n }}\n}}\n"]
    refused = 0
    for number in range(600):
        tokens = re.findall(r"\s+|%\w+(?:#\d+)?|[\w.]+|.", texts[number % 2])
        for _ in range(rng.randint(1, 3)):
            at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
            tokens[at] = rng.choice(["", tokens[at] * 2, tokens[other], "9" * 5000, "\u00b2", "<", "{", ")"])
        try:
            read("".join(tokens))
        except BadGraph:
            refused += 1
    assert refused > 300


def test_functions_without_ops_that_call_twice_each_stay_within_the_limit_too() -> None:
    functions = "\n".join(
        f"func.func private @f{n}(%a: tensor<f32>) -> tensor<f32> {{\n"
        f" %0 = call @f{n + 1}(%a) : (tensor<f32>) -> tensor<f32>\n"
        f" %1 = call @f{n + 1}(%0) : (tensor<f32>) -> tensor<f32>\n return %1 : tensor<f32>\n}}"
        for n in range(40)
    )
    last = "func.func private @f40(%a: tensor<f32>) -> tensor<f32> {\n return %a : tensor<f32>\n}"
    with pytest.raises(BadGraph, match="once calls are inlined"):
        load(f"module {{\n{functions}\n{last}\n}}".encode(), Limits(nodes=1000))
