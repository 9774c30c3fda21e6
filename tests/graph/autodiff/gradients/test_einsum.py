"""Gradients of contractions."""

from __future__ import annotations

from graph.builder.builder import Builder
from graph.ir import Role, TensorType
from graph.training.step import training_step

BATCH, EXPERTS, HIDDEN, WIDTH = 64, 3, 8, 16


def test_the_gradient_of_a_contraction_is_in_pairs_whose_products_are_no_larger_than_its_operands() -> None:
    builder = Builder("experts")
    shapes = {"hidden": (BATCH, EXPERTS, HIDDEN), "down": (EXPERTS, HIDDEN, WIDTH), "share": (BATCH, EXPERTS)}
    operands = [builder.value(name, TensorType("float32", shape), Role.PARAMETER) for name, shape in shapes.items()]
    (y,) = builder.node("Einsum", operands, outputs=["y"], attributes={"equation": "bej,eji,be->bi"})
    (loss,) = builder.node("ReduceMean", [y], outputs=["loss"], attributes={"keepdims": 0})
    step, _ = training_step(builder.build([loss]), "loss")
    products = [node for node in step.nodes if node.op == "Einsum"][1:]
    assert {len(node.inputs) for node in products} == {2}
    assert max(step.values[v].nbytes for node in products for v in node.outputs) == 4 * BATCH * EXPERTS * HIDDEN
