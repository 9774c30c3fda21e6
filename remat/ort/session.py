"""A session of ONNX Runtime that runs a training step in the order of its plan: `session`."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxruntime import InferenceSession, OrtValue, SessionOptions

from graph.formats.onnx.guards.guards import freeing_at_once
from graph.ir import Role
from remat.ort.errors import NotTrainable
from remat.ort.files import Contents, Model, StepFile, contents_of
from remat.ort.options import keeps_plan, return_freed_memory, session_options
from remat.ort.refusals import refusal, refuse_foreign_arrays


class Memory(UserDict[str, np.ndarray]):
    """Arrays that ONNX Runtime reads, by name; what is assigned is written into them."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        super().__init__()
        self.data = dict(arrays)

    def __setitem__(self, name: str, array: Any) -> None:
        self.data[name][...] = array


class Session:
    """A training step in ONNX Runtime, from `session`.

    `contents` are the parameters, states and constants, as arrays by name. `gradients` maps a parameter to the output
    with its gradient; `updates` maps what the optimizer of the step writes to its output. `data` names the arrays that
    each run takes, `outputs` all other results, such as the loss. `inference` is the session of ONNX Runtime.
    """

    def __init__(self, file: StepFile, inference: InferenceSession, contents: Mapping[str, np.ndarray], in_order: bool):
        self.inference = inference
        self.data, self.outputs = file.data, file.outputs
        self.gradients, self.updates = dict(file.gradients), dict(file.updates)
        self.contents = Memory(contents)
        self._types = file.types()
        self._held = {name: OrtValue.ortvalue_from_numpy(array) for name, array in self.contents.items()}
        self._overwritten = file.overwritten() if in_order else {}

    def run(self, data: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run one step: its results and gradients by name of the output; `contents` are updated in place.

        Arrays of results are views of the memory of ONNX Runtime, freed with them. Raises ValueError for a missing or
        unknown input, or one of another shape.
        """
        binding = self.inference.io_binding()
        fed = {name: OrtValue.ortvalue_from_numpy(array) for name, array in self._checked(data).items()}
        for name, value in (fed | self._held).items():
            binding.bind_ortvalue_input(name, value)
        for name, output in self._overwritten.items():
            binding.bind_ortvalue_output(output, self._held[name])
        written = set(self._overwritten.values())
        names = [item.name for item in self.inference.get_outputs() if item.name not in written]
        for name in names:
            binding.bind_output(name, "cpu")
        self.inference.run_with_iobinding(binding)
        bound = [*self._overwritten.values(), *names]
        results = dict(zip(bound, map(_array, binding.get_outputs()), strict=True))
        for name, output in self.updates.items():
            if output not in written:
                np.copyto(self.contents[name], results[output])
        updated = set(self.updates.values())
        return {name: array for name, array in results.items() if name not in updated}

    def _checked(self, data: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of one run, in the element types of the step."""
        if data.keys() != set(self.data):
            missing, unknown = set(self.data) - data.keys(), data.keys() - set(self.data)
            raise ValueError(
                f"a run takes {', '.join(self.data)}"
                + (f"; missing: {', '.join(sorted(missing))}" if missing else "")
                + (f"; unknown: {', '.join(sorted(unknown))}" if unknown else "")
            )
        return {name: _in_type(name, data[name], *self._types[name]) for name in self.data}

    def __repr__(self) -> str:
        ends = f"{len(self.updates)} updates" if self.updates else f"{len(self.gradients)} gradients"
        return f"<Session: {', '.join(self.data)} -> {', '.join(self.outputs)}, {ends}>"


def session(
    model: Model,
    weights: Contents | None = None,
    *,
    options: SessionOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Session:
    """A session of ONNX Runtime that runs a training step in the order and with the memory of its plan.

    >>> report = remat.plan("model.onnx", "60%", runtime="ort", recipe={"optimizer": "sgd", "learning_rate": 0.1})
    >>> session = remat.ort.session(report, weights="model.onnx")
    >>> session.run({"ids": ids, "labels": labels})["loss"]

    With the options of remat, glibc returns freed tensors to the system at once, in the whole process.

    Parameters:
        model: A `Report`, its `graph`, or the ONNX file that `remat plan --graph` wrote: a path, or bytes.
        weights: Content of parameters and constants: arrays by name, or the ONNX file that the step was made from.
            States of an optimizer start at zero. What the file holds itself is not needed.
        options: Options from `session_options`; others that undo the plan are named by a `PlanNotKept` warning.
        providers: Execution providers of ONNX Runtime.

    Raises:
        NotTrainable: The file was not written by remat, or content of a parameter is missing or has another shape.
        NotRunnable: ONNX Runtime has no kernel for an op or an element type, such as bfloat16 on a CPU.
        BadGraph: The graph cannot be written as ONNX.
        OSError: A file cannot be read.
    """
    file = StepFile.of(model)
    refuse_foreign_arrays(file.proto)
    contents = _contents(file, contents_of(weights))
    if options is None:
        options = session_options()
        return_freed_memory()
    in_order = keeps_plan(options)
    proto = freeing_at_once(file.proto) if in_order else file.proto
    try:
        made = InferenceSession(proto.SerializeToString(), options, providers=list(providers))
    except Exception as error:  # each status of ONNX Runtime has a class, with RuntimeError or Exception as its base
        refused = refusal(proto, error, providers)
        if refused is None:
            raise
        raise refused from None
    return Session(file, made, contents, in_order)


def _contents(file: StepFile, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of their own for all parameters, states and constants that are inputs of the file."""
    found = {}
    types = file.types()
    for name, stored in file.held.items():
        dtype, shape = types[name]
        given = weights.get(name, stored)
        if given is None and file.roles[name] is Role.STATE:
            given = np.zeros(shape, dtype)
        if given is None:
            missing = [each for each, held in file.held.items() if held is None and each not in weights]
            missing = [each for each in missing if file.roles[each] is not Role.STATE]
            raise NotTrainable(
                f"content of {len(missing)} parameters and constants is not known: {', '.join(missing[:8])}; "
                "give weights, the ONNX file that the step was made from or arrays by name"
            )
        if np.shape(given) != shape:
            raise NotTrainable(f"weights: {name} has shape {list(np.shape(given))}, the step needs {list(shape)}")
        found[name] = np.array(given, dtype, order="C")
    return found


def _in_type(name: str, given: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    array = np.ascontiguousarray(given, dtype).reshape(np.shape(given))
    if array.shape != shape:
        raise ValueError(
            f"{name} has shape {list(array.shape)}, the plan is for {list(shape)}; plan again for other shapes"
        )
    return array


def _array(value: OrtValue) -> np.ndarray:
    """The array of a result, over the same memory; a copy of element types that DLPack does not know."""
    try:
        return np.from_dlpack(value._ortvalue)
    except (BufferError, RuntimeError, TypeError):
        return np.asarray(value.numpy())
