"""Parameters without a gradient are listed with the op at which their path to the loss ends."""

from __future__ import annotations

from graph.builder.builder import Builder
from graph.ir import Graph, Role, TensorType
from graph.training.step import training_step

ROW = TensorType("float32", (4,))


def model(parameters: int, op: str, **attributes: object) -> Graph:
    """loss = sum(x + w + op(v0) + op(v1) ...), with `parameters` values read by `op`."""
    builder = Builder("model")
    parts = [builder.value("x", ROW, Role.INPUT), builder.value("w", ROW, Role.PARAMETER)]
    for i in range(parameters):
        v = builder.value(f"v{i}", ROW, Role.PARAMETER)
        parts += builder.node(op, [v], name=f"{op.lower()}{i}", attributes=attributes)
    (total,) = builder.node("Sum", parts, name="total")
    (loss,) = builder.node("ReduceSum", [total], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def notes_of(graph: Graph, **options: object) -> list[str]:
    return [note for note in training_step(graph, "loss", **options)[1] if "without a gradient" in note]


def test_path_that_ends_at_an_op_without_derivative_is_listed() -> None:
    assert notes_of(model(1, "Round")) == [
        "1 parameter ('v0') without a gradient: its path to the loss ends at Round (round0)"
    ]


def test_long_lists_name_five_and_count_the_rest() -> None:
    builder = Builder("model")
    w = builder.value("w", ROW, Role.PARAMETER)
    vs = [builder.value(f"v{i}", ROW, Role.PARAMETER) for i in range(8)]
    (stack,) = builder.node("Sum", vs, name="stack")
    (step,) = builder.node("Sign", [stack], name="sign")
    (total,) = builder.node("Add", [w, step], name="total")
    (loss,) = builder.node("ReduceSum", [total], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    (note,) = notes_of(builder.build([loss]))
    assert note.startswith("8 parameters ('v0', 'v1', 'v2', 'v3', 'v4' and 3 more)")
    assert note.endswith("ends at Sign (sign)")


def test_parameter_that_the_loss_does_not_read_is_listed() -> None:
    builder = Builder("model")
    w, unused = (builder.value(name, ROW, Role.PARAMETER) for name in ("w", "unused"))
    builder.node("Exp", [unused], name="aside", outputs=["aside"])
    (loss,) = builder.node("ReduceSum", [w], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    assert notes_of(builder.build([loss])) == [
        "1 parameter ('unused') without a gradient: the loss does not depend on it"
    ]


def test_complete_gradients_give_no_note() -> None:
    assert not notes_of(model(3, "Tanh"))


def test_values_that_stop_gradients_on_request_are_not_listed() -> None:
    assert not notes_of(model(1, "Tanh"), no_gradient=["v0"])
