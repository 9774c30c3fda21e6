"""Steps of known recurrent cells, as Caffe2 writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.builder.builder import Builder
from graph.formats.caffe2.ops import CAFFE2
from graph.ir import Graph, Role, TensorType
from graph.recurrent import RecurrentNet, RecurrentState, StepOp, add_recurrent, add_unrolled, cell_net


@dataclass
class Cell:
    """One kind of net: its step, its states and the shapes of everything around it."""

    ops: list[StepOp]
    states: list[RecurrentState]
    sequences: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    outputs: list[str]
    timestep: str | None = None
    recompute: list[str] = field(default_factory=list)  # what such a cell is wrapped with in the original
    integers: dict[str, list[int]] = field(default_factory=dict)

    def net(self, name: str = "rnn", recompute: Sequence[str] = ()) -> RecurrentNet:
        return cell_net(
            name, self.ops, self.sequences, self.states, self.outputs, timestep=self.timestep, recompute=recompute
        )

    def graph(self, unrolled: bool = False, recompute: Sequence[str] = (), fetched: Sequence[str] = ()) -> Graph:
        """A graph of the net alone, everything around it a parameter, every output an output."""
        builder = Builder("recurrent")
        given = {}
        for name, shape in self.shapes.items():
            dtype = "int32" if name in self.integers else "float32"
            given[name] = builder.value(name, TensorType(dtype, shape), Role.PARAMETER)
        net = self.net(recompute=recompute)
        found = (
            add_unrolled(builder, net, given, table=CAFFE2)
            if unrolled
            else add_recurrent(builder, net, given, table=CAFFE2, fetched=fetched)
        )
        return builder.build([found[name] for name in (*self.outputs, *fetched)])


def op(type: str, inputs: str, outputs: str, **attributes: Any) -> StepOp:
    return StepOp(type, tuple(inputs.split()), tuple(outputs.split()), attributes)


def multiplicative(steps: int = 3, rows: int = 2, size: int = 3, layers: int = 1) -> Cell:
    """output = input · previous output, one on top of the other."""
    ops, states, outputs = [], [], []
    shapes: dict[str, tuple[int, ...]] = {"input": (steps, rows, size)}
    below = "input_t"
    for k in range(layers):
        ops.append(op("Mul", f"{below} out_{k}_prev", f"out_{k}"))
        states.append(RecurrentState(f"out_{k}_prev", f"initial_{k}", f"out_{k}"))
        shapes[f"initial_{k}"] = (1, rows, size)
        outputs += [f"out_{k}_all", f"out_{k}_last"]
        below = f"out_{k}"
    return Cell(ops, states, {"input_t": "input"}, shapes, outputs)


def lstm(
    steps: int = 4, rows: int = 3, size: int = 2, layers: int = 1, lengths: Sequence[int] = (), drop: bool = False
) -> Cell:
    """LSTM layers: gates from the state in place of a sum with the projected input, then the unit."""
    ops, states, outputs, recompute = [], [], [], []
    shapes: dict[str, tuple[int, ...]] = {"input": (steps, rows, 4 * size)}
    for k in range(layers):
        h, c, gates = f"hidden_{k}", f"cell_{k}", f"gates_{k}"
        projected = "input_t"
        if k:
            projected = f"input_{k}"
            ops.append(op("FC", f"hidden_{k - 1} i2h_{k}_w i2h_{k}_b", projected, axis=2))
            shapes |= {f"i2h_{k}_w": (4 * size, size), f"i2h_{k}_b": (4 * size,)}
        ops.append(op("FC", f"{h}_prev {gates}_w {gates}_b", gates, axis=2))
        ops.append(op("Sum", f"{gates} {projected}", gates))
        ends = "seq_lengths timestep" if lengths else "timestep"
        ops.append(
            op("LSTMUnit", f"{h}_prev {c}_prev {gates} {ends}", f"{h} {c}", forget_bias=0.5, drop_states=int(drop))
        )
        states += [RecurrentState(f"{h}_prev", f"{h}_init", h), RecurrentState(f"{c}_prev", f"{c}_init", c)]
        shapes |= {
            f"{gates}_w": (4 * size, size),
            f"{gates}_b": (4 * size,),
            f"{h}_init": (1, rows, size),
            f"{c}_init": (1, rows, size),
        }
        outputs += [f"{h}_all", f"{h}_last", f"{c}_all", f"{c}_last"]
        recompute.append(gates)
    integers = {"seq_lengths": list(lengths)} if lengths else {}
    shapes |= {"seq_lengths": (rows,)} if lengths else {}
    return Cell(ops, states, {"input_t": "input"}, shapes, outputs, "timestep", recompute, integers)


def milstm(steps: int = 4, rows: int = 3, size: int = 2) -> Cell:
    """Multiplicative integration: gates = α·Wh·x + β₁·x + β₂·Wh + b."""
    ops = [
        op("FC", "hidden_prev w zero", "wh", axis=2),
        op("Mul", "wh alpha", "a", broadcast=1),
        op("Mul", "a input_t", "a"),
        op("Mul", "wh beta_h", "b1", broadcast=1),
        op("Mul", "input_t beta_i", "b2", broadcast=1),
        op("Sum", "a b1", "gates"),
        op("Sum", "gates b2", "gates"),
        op("Add", "gates b", "gates", broadcast=1),
        op("LSTMUnit", "hidden_prev cell_prev gates timestep", "hidden cell"),
    ]
    wide = (4 * size,)
    shapes = {
        "input": (steps, rows, *wide),
        "w": (*wide, size),
        "zero": wide,
        "alpha": wide,
        "beta_h": wide,
        "beta_i": wide,
        "b": wide,
        "hidden_init": (1, rows, size),
        "cell_init": (1, rows, size),
    }
    states = [RecurrentState("hidden_prev", "hidden_init", "hidden"), RecurrentState("cell_prev", "cell_init", "cell")]
    outputs = ["hidden_all", "hidden_last", "cell_all", "cell_last"]
    return Cell(ops, states, {"input_t": "input"}, shapes, outputs, "timestep", ["wh", "a", "b1", "b2", "gates"])


GRU_NAMES = [
    "in_reset",
    "in_update",
    "in_output",
    "reset",
    "reset_gate",
    "update",
    "kept",
    "output",
    "gates",
    "gates_split",
]


def gru(steps: int = 4, rows: int = 3, size: int = 2, lengths: Sequence[int] = ()) -> Cell:
    """GRU: reset and update from the state, the candidate from the reset state."""
    ends = "seq_lengths timestep" if lengths else "timestep"
    ops = [
        op("Split", "input_t", "in_reset in_update in_output", axis=2),
        op("FC", "hidden_prev w_reset b_reset", "reset", axis=2),
        op("Sum", "reset in_reset", "reset"),
        op("Sigmoid", "reset", "reset_gate"),
        op("FC", "hidden_prev w_update b_update", "update", axis=2),
        op("Sum", "update in_update", "update"),
        op("Mul", "hidden_prev reset_gate", "kept"),
        op("FC", "kept w_output b_output", "output", axis=2),
        op("Sum", "output in_output", "output"),
        op("Concat", "reset update output", "gates gates_split", axis=2),
        op("GRUUnit", f"hidden_prev gates {ends}", "hidden"),
    ]
    shapes: dict[str, tuple[int, ...]] = {"input": (steps, rows, 3 * size), "hidden_init": (1, rows, size)}
    for gate in ("reset", "update", "output"):
        shapes |= {f"w_{gate}": (size, size), f"b_{gate}": (size,)}
    shapes |= {"seq_lengths": (rows,)} if lengths else {}
    integers = {"seq_lengths": list(lengths)} if lengths else {}
    return Cell(
        ops,
        [RecurrentState("hidden_prev", "hidden_init", "hidden")],
        {"input_t": "input"},
        shapes,
        ["hidden_all", "hidden_last"],
        "timestep",
        GRU_NAMES,
        integers,
    )


def attention(steps: int = 3, rows: int = 2, size: int = 4, source: int = 5) -> Cell:
    """An LSTM step whose hidden state looks at encoder outputs: score = v · tanh(encoder + W h), weights, context."""
    ops = [
        op("FC", "hidden_prev gates_w gates_b", "gates", axis=2),
        op("Sum", "gates input_t", "gates"),
        op("FC", "context_prev context_w context_b", "seen", axis=2),
        op("Sum", "gates seen", "gates"),
        op("LSTMUnit", "hidden_prev cell_prev gates timestep", "hidden cell"),
        op("FC", "hidden query_w query_b", "query", axis=2),
        op("Add", "encoder query", "scored", broadcast=1),
        op("Tanh", "scored", "scored"),
        op("FC", "scored v v_b", "logits", axis=2),
        op("Squeeze", "logits", "scores", dims=[2]),
        op("Transpose", "scores", "by_row"),
        op("Softmax", "by_row", "weights"),
        op("ExpandDims", "weights", "weights_3d", dims=[1]),
        op("Transpose", "encoder", "keys", axes=[1, 0, 2]),
        op("BatchMatMul", "weights_3d keys", "context_by_row"),
        op("Transpose", "context_by_row", "context", axes=[1, 0, 2]),
    ]
    wide = 4 * size
    shapes = {
        "input": (steps, rows, wide),
        "gates_w": (wide, size),
        "gates_b": (wide,),
        "encoder": (source, rows, size),
        "query_w": (size, size),
        "query_b": (size,),
        "v": (1, size),
        "v_b": (1,),
        "hidden_init": (1, rows, size),
        "cell_init": (1, rows, size),
        "context_init": (1, rows, size),
        "context_w": (wide, size),
        "context_b": (wide,),
    }
    states = [
        RecurrentState("hidden_prev", "hidden_init", "hidden"),
        RecurrentState("cell_prev", "cell_init", "cell"),
        RecurrentState("context_prev", "context_init", "context"),
    ]
    outputs = ["hidden_all", "hidden_last", "cell_all", "cell_last", "context_all", "context_last"]
    block = ["query", "scored", "logits", "scores", "by_row", "weights", "weights_3d", "keys", "context_by_row"]
    return Cell(ops, states, {"input_t": "input"}, shapes, outputs, "timestep", ["gates", "seen", *block])


CELLS: Mapping[str, Any] = {
    "multiplicative": multiplicative,
    "lstm": lstm,
    "milstm": milstm,
    "gru": gru,
    "attention": attention,
}
