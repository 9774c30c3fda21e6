"""Readers and writers: each knows its own files and no others, and what it reads it writes again."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.paddle_program import transformer
from graph.errors import BadGraph
from graph.formats.readers import READERS, importer_of, load
from graph.formats.shared.protobuf import message_to_text
from graph.formats.writers import WRITERS, dump
from graph.ir import Graph
from graph.limits import Limits, ShapeOverrides
from graph.transforms.structural_equality import difference
from tests.graph.formats.caffe2.nets import LSTM_SHAPES, lstm
from tests.graph.formats.mxnet.symbols import lenet
from tests.graph.formats.mxnet.test_reader import _document
from tests.graph.formats.paddle.test_reader import _pir
from tests.graph.formats.stablehlo.test_reader import STEP

BATCH = ShapeOverrides(batch=4)
#: Format -> files of it, with the shapes they leave open.
FILES: dict[str, list[tuple[bytes, ShapeOverrides]]] = {
    "native": [(json.dumps(_document()).encode(), ShapeOverrides())],
    "onnx": [
        (
            (Path(__file__).parents[1] / "models" / "gpt.onnx").read_bytes(),
            ShapeOverrides(dims={"batch": 2, "sequence": 8}),
        )
    ],
    "mxnet": [(lenet(), BATCH), (lenet("param"), BATCH)],
    "caffe2": [
        (lstm().SerializeToString(), ShapeOverrides(inputs=LSTM_SHAPES)),
        (message_to_text(lstm()), ShapeOverrides(inputs=LSTM_SHAPES)),
    ],
    "paddle": [
        (transformer(blocks=1, batch=2, tokens=8, width=8, heads=2, words=16), ShapeOverrides()),
        (json.dumps(_pir()).encode(), BATCH),
    ],
    "stablehlo": [(STEP.encode(), ShapeOverrides())],
}
EVERY = [(name, data, shapes) for name, files in FILES.items() for data, shapes in files]


@pytest.fixture(scope="module")
def read() -> Callable[[str], list[Graph]]:
    """The graphs of a format's files, read once."""
    found: dict[str, list[Graph]] = {}

    def of(name: str) -> list[Graph]:
        if name not in found:
            found[name] = [load(data, shapes=shapes) for data, shapes in FILES[name]]
        return found[name]

    return of


def test_every_reader_has_files() -> None:
    assert set(FILES) == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_recognises_its_own_files_alone(name: str) -> None:
    sniff = importlib.import_module(f"graph.formats.{READERS[name]}").sniff
    for owner, data, _ in EVERY:
        assert importer_of(data) == owner
        assert sniff(data) == (owner == name)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_what_is_cut_short(name: str) -> None:
    """Every prefix is another format, refused, or a smaller model; it never breaks."""
    for data, shapes in FILES[name]:
        for length in {0, 1, 2, 7, len(data) // 3, len(data) // 2, len(data) - 1}:
            try:
                load(data[:length], shapes=shapes)
            except BadGraph as error:
                assert error.findings


@pytest.mark.parametrize("name", READERS)
def test_a_reader_minds_the_limits(name: str) -> None:
    for data, shapes in FILES[name]:
        for limits in (Limits(document_bytes=len(data) - 1), Limits(nodes=1)):
            with pytest.raises(BadGraph) as caught:
                load(data, limits, shapes)
            assert caught.value.findings[0].code in ("too_large", "too_many_nodes", "too_many_values")


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_writer_writes_is_read_as_the_same_computation(name: str, read: Callable[[str], list[Graph]]) -> None:
    for graph in read(name):
        if name == "paddle" and "json" in graph.annotations["paddle"]:
            again = load(dump(graph, name), shapes=BATCH)
        else:
            again = load(dump(graph, name))
        assert difference(graph, again) is None


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("native", "onnx")])
def test_a_writer_of_a_framework_names_what_it_has_no_words_for(name: str) -> None:
    document = _document()
    document["nodes"][1]["op"] = "acme::Odd"
    document["values"].append({"name": "a", "shape": [4, 5], "dtype": "float32"})
    with pytest.raises(BadGraph) as caught:
        dump(load(json.dumps(document).encode()), name)
    assert {finding.code for finding in caught.value.findings} == {"not_representable"}
    assert "acme::Odd" in str(caught.value)
