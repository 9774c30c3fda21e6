"""RNN, GRU and LSTM against onnxruntime, and their gradients against slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.ops.registry import work
from graph.ops.rnn.rnn import GATES
from tests.graph.ops.judges import call_for, moved, ours, real, runtime, same, slopes

T, B, W, H = 5, 3, 4, 2  # moments, batch, width of X, hidden
LENGTHS = np.array([3, 5, 1], np.int32)
KINDS = ["RNN", "GRU", "LSTM"]
OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
RECTIFIERS = {"Relu", "Softsign", "Softplus", "Tanh", "Sigmoid"}  # take no alpha


def inputs_of(kind: str, directions: int, lengths: np.ndarray | None = None, dtype: Any = np.float64) -> list[Any]:
    """Every input of the op, optional ones included."""
    rows, d = GATES[kind] * H, directions
    shapes = [(T, B, W), (d, rows, W), (d, rows, H), (d, 2 * rows), None, (d, B, H), (d, B, H), (d, 3 * H)]
    shapes = shapes if kind == "LSTM" else shapes[:6]
    found = [lengths if s is None else 2 * real(*s, seed=i, dtype=dtype) for i, s in enumerate(shapes)]
    return found


def attributes_of(direction: str, **rest: Any) -> dict[str, Any]:
    return {"hidden_size": H, "direction": direction} | rest


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_op_is_that_of_the_runtime(kind: str, direction: str):
    count, outputs = 2 if direction == "bidirectional" else 1, OUTPUTS[kind]
    special: dict[str, list[dict[str, Any]]] = {
        "GRU": [{"linear_before_reset": 1}],
        "LSTM": [{"input_forget": 1}],
        "RNN": [],
    }
    for extra in [{}, {"clip": 0.4}, *special[kind]]:
        attributes = attributes_of(direction, **extra)
        for lengths in (None, LENGTHS):
            arrays = inputs_of(kind, count, lengths, np.float32)
            if "input_forget" in extra:
                arrays = arrays[:5]  # the runtime refuses peepholes of a gate it does not have
            for given in (arrays, arrays[:3]):
                expected = runtime(kind, given, attributes, outputs)
                for found, other in zip(ours(kind, given, attributes, outputs), expected, strict=True):
                    same(found, other)


@pytest.mark.parametrize(
    "name",
    ["Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus"],
)
def test_an_activation_is_that_of_the_runtime_and_takes_its_parameters_in_order(name: str):
    takes_beta = name in ("Affine", "ScaledTanh", "HardSigmoid")
    attributes = attributes_of(
        "forward",
        activations=["HardSigmoid", name, "Elu"],
        activation_alpha=[0.3, 0.2, 0.7] if name not in RECTIFIERS else [0.3, 0.7],
        activation_beta=[0.6, 0.3] if takes_beta else [0.6],
    )
    arrays = inputs_of("LSTM", 1, None, np.float32)
    for found, other in zip(ours("LSTM", arrays, attributes, 3), runtime("LSTM", arrays, attributes, 3), strict=True):
        same(found, other)


def gradients_of(
    kind: str, arrays: list[Any], incoming: list[Any], attributes: dict[str, Any]
) -> dict[int, np.ndarray]:
    """Gradient of each floating input that is given, by its place."""
    places = [0, 1, 2, 3, 5, 6, 7][: 7 if kind == "LSTM" else 5]
    full = 8 if kind == "LSTM" else 6
    padded = [*arrays, *[None] * (full - len(arrays))]
    wanted = [padded[p] is not None for p in places]
    found = ours(f"remat::{kind}Grad", [*padded, *incoming], attributes, wanted)
    return {p: g for p, g, w in zip(places, found, wanted, strict=True) if w}


CASES: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("RNN", {"activations": ["Softsign"]}),
    ("RNN", {"activations": ["Elu"], "clip": 0.9}),
    ("GRU", {}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"activations": ["HardSigmoid", "Softplus"]}),
    ("GRU", {"layout": 1, "linear_before_reset": 1}),
    ("LSTM", {}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"clip": 0.9}),
    ("LSTM", {"layout": 1}),
    (
        "LSTM",
        {
            "activations": ["Sigmoid", "ScaledTanh", "Affine"],
            "activation_alpha": [0.7, 1.2],
            "activation_beta": [1.1, 0.1],
        },
    ),
]


def arranged(arrays: list[Any], layout: int) -> list[Any]:
    """Inputs with the batch first: X, initial_h and initial_c."""
    return [a.swapaxes(0, 1).copy() if layout and i in (0, 5, 6) else a for i, a in enumerate(arrays)]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "extra"), CASES, ids=str)
def test_gradients_are_slopes(kind: str, extra: dict[str, Any], direction: str, lengths: np.ndarray | None):
    count, attributes = 2 if direction == "bidirectional" else 1, attributes_of(direction, **extra)
    names = attributes.get("activations")
    if names and count == 2:
        for name in ("activations", "activation_alpha", "activation_beta"):
            attributes[name] = 2 * attributes.get(name, [])
    arrays = arranged(inputs_of(kind, count, lengths), extra.get("layout", 0))
    outputs = ours(kind, arrays, attributes, OUTPUTS[kind])
    incoming = [real(*y.shape, seed=20 + i) for i, y in enumerate(outputs)]

    def loss(*arrays: np.ndarray) -> float:
        made = ours(kind, arrays, attributes, OUTPUTS[kind])
        return sum(float(np.vdot(y, d)) for y, d in zip(made, incoming, strict=True))

    found = gradients_of(kind, arrays, incoming, attributes)
    chance = np.random.default_rng(0)
    for place, gradient in found.items():
        # along a random line through every entry of the input at once
        line = chance.uniform(-1, 1, gradient.shape)
        assert np.vdot(gradient, line) == pytest.approx(along(loss, arrays, place, line), rel=1e-6, abs=1e-6)


def along(loss: Any, arrays: list[Any], place: int, line: np.ndarray, step: float = 1e-6) -> float:
    ends = [[a + sign * step * line if i == place else a for i, a in enumerate(arrays)] for sign in (1, -1)]
    return float((loss(*ends[0]) - loss(*ends[1])) / (2 * step))


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_a_gradient_is_its_slope(kind: str):
    arrays, attributes = inputs_of(kind, 1)[:3], attributes_of("forward")
    dy = real(T, 1, B, H, seed=20)
    incoming = [dy, None, None][: OUTPUTS[kind]]
    for place, gradient in gradients_of(kind, arrays, incoming, attributes).items():
        same(gradient, slopes(lambda *a: np.vdot(ours(kind, a, attributes)[0], dy), arrays, place), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_absent_incoming_gradients_count_as_zeros(kind: str):
    arrays, attributes = inputs_of(kind, 2, LENGTHS), attributes_of("bidirectional")
    outputs = ours(kind, arrays, attributes, OUTPUTS[kind])
    for present in range(len(outputs)):
        some = [real(*y.shape) if i == present else None for i, y in enumerate(outputs)]
        full = [np.zeros_like(y) if d is None else d for y, d in zip(outputs, some, strict=True)]
        with_none = gradients_of(kind, arrays, some, attributes)
        for place, gradient in gradients_of(kind, arrays, full, attributes).items():
            same(with_none[place], gradient, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_is_the_same_turned_round(kind: str):
    arrays = inputs_of(kind, 2, LENGTHS)
    plain = ours(kind, arrays, attributes_of("bidirectional"), OUTPUTS[kind])
    other = ours(kind, arranged(arrays, 1), attributes_of("bidirectional", layout=1), OUTPUTS[kind])
    same(other[0], plain[0].transpose(2, 0, 1, 3), 1e-12)
    for a, b in zip(other[1:], plain[1:], strict=True):
        same(a, b.swapaxes(0, 1), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_sequences_and_zero_steps_are_legal(kind: str):
    for shape in ((T, 0, W), (0, B, W)):
        arrays = [real(*shape), *inputs_of(kind, 1)[1:4]]
        outputs = ours(kind, arrays, attributes_of("forward"), OUTPUTS[kind])
        assert outputs[0].shape == (shape[0], 1, shape[1], H) and not outputs[1].any()
        found = gradients_of(kind, arrays, list(outputs), attributes_of("forward"))
        assert found[0].shape == shape and not found[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_come_from_any_address(kind: str):
    arrays, attributes = inputs_of(kind, 2, LENGTHS, np.float32), attributes_of("bidirectional")
    outputs = ours(kind, arrays, attributes, OUTPUTS[kind])
    elsewhere = [a if a is None else moved(a) for a in arrays]
    for first, second in zip(outputs, ours(kind, elsewhere, attributes, OUTPUTS[kind]), strict=True):
        assert first.tobytes() == second.tobytes()
    found = gradients_of(kind, arrays, list(outputs), attributes)
    for place, gradient in gradients_of(kind, elsewhere, [moved(y) for y in outputs], attributes).items():
        assert gradient.tobytes() == found[place].tobytes()


def test_the_workspace_of_a_gradient_includes_the_recomputed_history():
    arrays = inputs_of("LSTM", 2, None, np.float32)
    attributes = attributes_of("bidirectional")
    forward = work(call_for("LSTM", arrays, attributes, 3))
    backward = work(call_for("remat::LSTMGrad", [*arrays, None, None, None], attributes, 7))
    assert forward.workspace_bytes == T * B * 4 * H * 4  # the input product of one direction
    assert backward.workspace_bytes == T * B * 6 * H * 4  # gates, state and output of one direction
    assert backward.flops == 3 * forward.flops


def test_mismatched_weights_are_refused():
    x, w, r = inputs_of("GRU", 1)[:3]
    with pytest.raises(ValueError, match="do not belong to one LSTM"):
        ours("remat::LSTMGrad", [x, w, r], attributes_of("forward"), 3)
    with pytest.raises(ValueError, match="absent input 3"):
        ours("remat::GRUGrad", [x, w, r], attributes_of("forward"), 4)
