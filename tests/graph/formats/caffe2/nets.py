"""Caffe2 nets for tests, made of its own messages."""

from __future__ import annotations

from typing import Any

from graph.formats.caffe2.proto import caffe2


def net(*ops: Any, inputs: str = "", outputs: str = "", name: str = "net") -> Any:
    """A NetDef of ops, with its external names."""
    made = caffe2()["NetDef"](name=name, external_input=inputs.split(), external_output=outputs.split())
    for op in ops:
        made.op.add().CopyFrom(op)
    return made


def op(type: str, inputs: str, outputs: str, device: int | None = None, **arguments: Any) -> Any:
    """An OperatorDef; arguments by the kind of their value."""
    made = caffe2()["OperatorDef"](type=type, input=inputs.split(), output=outputs.split())
    for name, value in arguments.items():
        argument = made.arg.add(name=name)
        if isinstance(value, list):
            words = bool(value) and isinstance(value[0], str)
            (argument.strings if words else argument.ints).extend([v.encode() if words else v for v in value])
        elif isinstance(value, str):
            argument.s = value.encode()
        elif isinstance(value, float):
            argument.f = value
        elif isinstance(value, int):
            argument.i = value
        else:
            argument.n.CopyFrom(value)
    if device is not None:
        made.device_option.device_type, made.device_option.device_id = 1, device
    return made


def fill(name: str, *shape: int) -> Any:
    return op("XavierFill", "", name, shape=list(shape))


def lstm(recompute: str = "") -> Any:
    """A step net of an LSTM over [7, 3, 5] with states of size 4, and the sum of its outputs."""
    step = net(
        op("FC", "h_prev Wh bh", "gh", axis=2),
        op("Sum", "gh x_t", "gates"),
        op("LSTMUnit", "h_prev c_prev gates timestep", "h c", sequence_lengths=0),
        inputs="x_t h_prev c_prev Wh bh timestep",
    )
    more = {"recompute_blobs_on_backward": recompute.split()} if recompute else {}
    return net(
        op("FC", "x Wx bx", "xg", axis=2),
        op(
            "RecurrentNetwork",
            "xg h0 c0 Wh bh",
            "h_all h_last c_all c_last workspaces",
            link_internal=["h_prev", "h", "c_prev", "c", "x_t"],
            link_external=["h_states", "h_states", "c_states", "c_states", "xg"],
            link_offset=[0, 1, 0, 1, 0],
            alias_src=["h_states", "h_states", "c_states", "c_states"],
            alias_dst=["h_all", "h_last", "c_all", "c_last"],
            alias_offset=[1, -1, 1, -1],
            recurrent_states=["h_states", "c_states"],
            initial_recurrent_state_ids=[1, 2],
            step_net=step,
            timestep="timestep",
            **more,
        ),
        op("ReduceSum", "h_all", "s", keepdims=0),
        inputs="x h0 c0 Wx bx Wh bh",
        outputs="s",
    )


LSTM_SHAPES = {"x": (7, 3, 5), "h0": (3, 4), "c0": (4,), "Wx": (16, 5), "bx": (16,), "Wh": (16, 4), "bh": (16,)}
