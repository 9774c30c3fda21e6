"""Recurrent nets: what they compute, how the step goes back, and what it holds or makes again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.formats.caffe2.compat.recurrent import gradient_outputs, recompute_before_step, recurrent_net, step_blobs
from graph.formats.caffe2.ops import CAFFE2
from graph.ir import Graph, Role, TensorType
from graph.recurrent import (
    Alias,
    Link,
    RecurrenceInfo,
    RecurrentNet,
    RecurrentState,
    StepOp,
    add_recurrent,
    add_unrolled,
    cell_net,
    describe_recurrence,
    recompute_values,
)
from tests.recurrent_cells import CELLS, Cell
from tests.seeds.harness import Area, Case, refusal

Arrays = dict[str, np.ndarray]

#: Gradients of a name of the step, whole, or one part of a sum.
GRADIENT = re.compile(r"_?(?P<of>.+?)_grad(?P<part>_accum|_autosplit_\d+)?")
SIZE = 2


class Recurrent:
    """One case: its op as a net, in a graph with everything around it given."""

    def __init__(self, case: Case):
        self.case = case

    @cached_property
    def op(self) -> dict[str, Any]:
        (op,) = self.case["ops"]
        return op  # type: ignore[no-any-return]

    @property
    def outputs(self) -> list[str]:
        return list(self.op["outputs"])

    @cached_property
    def net(self) -> RecurrentNet:
        return self.net_with(self.case["given"].get("recompute", ()))

    def net_with(self, recompute: Iterable[str]) -> RecurrentNet:
        attrs = self.op["attrs"]
        steps = attrs.get("step_graph", {}).get("ops", [])
        return recurrent_net(
            attrs.get("scope", "rnn"),
            [StepOp(o["type"], tuple(o["inputs"]), tuple(o["outputs"]), o.get("attrs", {})) for o in steps],
            attrs["sequence"],
            [RecurrentState(s["cell_input"], s["initial"], s["cell_output"]) for s in attrs.get("states", [])],
            self.outputs,
            timestep=attrs.get("timestep"),
            recompute=list(recompute),
            prefix=attrs.get("prefix"),
        )

    @property
    def targets(self) -> list[str]:
        said = list(self.case["wanted_gradients"].get("targets", {}))
        positions = self.case["given"].get("outputs_with_grads")
        return said if positions is None else gradient_outputs(self.net, self.outputs, positions)

    def shapes(self, given: Mapping[str, Any] | None) -> dict[str, tuple[int, ...]]:
        """Those of the numbers given; else small ones that fit the ops of the step."""
        if given:
            return {name: np.shape(value) for name, value in given.items()}
        found = dict.fromkeys(self.op["inputs"], (1, SIZE))
        found.update(dict.fromkeys(self.net.sequences, (3, 1, SIZE)))
        found.update(dict.fromkeys(self.net.buffers.values(), (1, 1, SIZE)))
        for op in self.net.ops:
            if op.type == "FC":
                wide = SIZE * self._gates(op.outputs[0])
                found.update({op.inputs[1]: (wide, SIZE), op.inputs[2]: (wide,)})
        return found

    def _gates(self, name: str) -> int:
        units = {"LSTMUnit": (2, 4), "GRUUnit": (1, 3)}
        return next(
            (units[o.type][1] for o in self.net.ops if o.type in units and o.inputs[units[o.type][0]] == name), 1
        )

    def forward(
        self, given: Mapping[str, Any] | None = None, unrolled: bool = False, fetched: tuple[str, ...] = ()
    ) -> Graph:
        builder = Builder("case")
        values = {
            name: builder.value(name, TensorType("float32", shape), Role.PARAMETER)
            for name, shape in self.shapes(given).items()
        }
        if unrolled:
            made = add_unrolled(builder, self.net, values, table=CAFFE2)
            return builder.build([made[name] for name in self.outputs])
        made = add_recurrent(builder, self.net, values, table=CAFFE2, fetched=fetched)
        blobs = [v for name in fetched for v in step_blobs(builder, made[name], name, self.case["given"]["prefix"])]
        return builder.build([*(made[name] for name in self.outputs), *blobs])

    def trained(self, given: Mapping[str, Any] | None = None, unrolled: bool = False) -> Graph:
        wanted = self.case["wanted_gradients"].get("wrt")
        return differentiate(self.forward(given, unrolled), self.targets, wanted)

    def recurrence(self, recompute: Iterable[str] | None = None) -> RecurrenceInfo:
        names = self.net.recompute if recompute is None else list(recompute)
        return describe_recurrence(recompute_values(self.trained(), self.net.name, names), self.net.name)

    def backward(self, graph: Graph) -> Any:
        found = describe_recurrence(graph, self.net.name).backward
        assert found is not None
        return found

    def force(self) -> object:
        return self.trained() if self.targets else self.forward()


def ran(graph: Graph, given: Mapping[str, Any] | None = None) -> Arrays:
    """Values by name, and gradients as `grad:NAME`."""
    feeds = {name: np.asarray(value, np.float32) for name, value in (given or {}).items()}
    outputs = execute(graph, feeds).outputs
    gradients = {f"grad:{graph.values[p].name}": outputs[graph.values[g].name] for p, g in graph.gradients}
    return {**outputs, **gradients}


def check_values(run: Recurrent, expected: Mapping[str, Any]) -> None:
    _compare(ran(run.trained(run.case["given"]["values"]), run.case["given"]["values"]), expected)


def check_example(run: Recurrent, example: Mapping[str, Any]) -> None:
    found = ran(run.trained(example["given"]), example["given"])
    _compare(found, {name: value for name, value in example.items() if name != "given"})


def _compare(found: Arrays, expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        flat = np.ndim(value) == 1 and found[name].ndim > 1
        np.testing.assert_allclose(found[name].reshape(-1) if flat else found[name], value, rtol=1e-5, err_msg=name)


def check_backward_links(run: Recurrent, expected: list[list[Any]]) -> None:
    back = run.backward(recompute_values(run.trained(), run.net.name, run.net.recompute))
    assert [list(link[1:]) for link in back.links] == [link[1:] for link in expected]
    owner = {name: row.of_outputs for row in back.ops for name in row.writes}
    for (found, _, _), (name, _, _) in zip(back.links, expected, strict=True):
        match = GRADIENT.fullmatch(name)
        assert match is not None and not match["part"]
        if found.endswith("_grad"):
            assert found == name
        else:  # passed through: the gradient of whatever the op read that made it
            (op,) = [op for op in run.net.ops if op.outputs == owner[found]]
            assert match["of"] in op.inputs


def check_backward_ops(run: Recurrent, expected: list[dict[str, Any]]) -> None:
    """The same ops made again in front, the same sums, and op by op gradients that read and write the same."""
    back = run.backward(recompute_before_step(run.trained(), run.net.name, run.net.recompute))
    again = [row for row in back.ops if row.kind == "again"]
    assert back.ops[: len(again)] == tuple(again)
    written = set(run.net.written())
    front = [op for op in expected if written.issuperset(op["outputs"])]
    assert expected[: len(front)] == front
    groups = [(of, outputs, rows) for of, outputs, rows in _groups(again)]
    assert [(of, list(outputs), _reads(rows)) for of, outputs, rows in groups] == [
        (op["type"], op["outputs"], set(op["inputs"])) for op in front
    ]
    sums, gradients = {}, {}
    for op in expected[len(front) :]:
        parts = [GRADIENT.fullmatch(name) for name in (*op["inputs"], *op["outputs"])]
        if op["type"] == "Sum" and all(parts) and len({part["of"] for part in parts if part}) == 1:
            assert op["outputs"][0] == f"{parts[0]['of']}_grad"  # type: ignore[index]
            sums[op["outputs"][0]] = len(op["inputs"])
        else:
            owner, reads, writes = _owner(run, op)
            known, made = gradients.setdefault(owner, (set(), set()))
            known.update(reads)
            made.update(writes)
    assert sums == {row.writes[0]: len(row.reads) for row in back.ops if row.kind == "sum"}
    rest = [row for row in back.ops if row.kind == "gradient"]
    found = {outputs: (_reads(rows), _made(rows, back)) for _, outputs, rows in _groups(rest)}
    assert list(found) == list(gradients)
    for outputs, (reads, writes) in found.items():
        assert {name for name in reads if name in written or name in run.net.read_before_write()} == gradients[outputs][
            0
        ]
        # The gradient of a bias over one row is a view of what comes in: no op of ours makes it.
        assert 0 < len(writes) <= len(gradients[outputs][1])


def _owner(run: Recurrent, op: dict[str, Any]) -> tuple[tuple[str, ...], set[str], set[str]]:
    """(outputs of the op of the step whose gradient this is, what it reads of the step, gradients it makes)."""
    incoming = [m["of"] for m in map(GRADIENT.fullmatch, op["inputs"]) if m]
    made = [m["of"] for m in map(GRADIENT.fullmatch, op["outputs"]) if m]
    assert made and len(made) == len(op["outputs"])
    fits = [
        each
        for each in run.net.ops
        if op["type"] in (each.type, f"{each.type}Gradient")
        and set(incoming) <= set(each.outputs)
        and set(made) <= set(each.inputs)
    ]
    # A name written in place is both: the writer of the version that is read by what goes on.
    owner = fits[-1]
    reads = {name for name in op["inputs"] if not GRADIENT.fullmatch(name)}
    assert incoming and reads <= {*owner.inputs, *owner.outputs}
    return owner.outputs, reads, set(op["outputs"])


def _groups(rows: Iterable[Any]) -> list[tuple[str, tuple[str, ...], list[Any]]]:
    """Rows of one op of the step, where they stand one after the other but for others between."""
    found: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    for row in rows:
        found.setdefault((row.of, row.of_outputs), []).append(row)
    return [(of, outputs, group) for (of, outputs), group in found.items()]


def _reads(rows: list[Any]) -> set[str]:
    """What a group reads that it does not make itself before."""
    made: set[str] = set()
    reads: set[str] = set()
    for row in rows:
        reads |= set(row.reads) - made
        made |= set(row.writes) if row.kind == "gradient" else set()
    return reads


def _made(rows: list[Any], back: Any) -> set[str]:
    """Gradients a group makes: what it does not go on working with itself, or others read too."""
    own = {name for row in rows for name in row.reads}
    others = {name for row in back.ops if row not in rows for name in row.reads} | {link[0] for link in back.links}
    return {name for row in rows for name in row.writes if name not in own or name in others}


def check_saved(run: Recurrent, names: list[str], recompute: Iterable[str] | None = None) -> None:
    back = run.recurrence(recompute).backward
    assert back is not None
    assert sorted(held.name for held in back.held if held.kind == "step") == sorted(names)


def check_not_saved(run: Recurrent, names: list[str]) -> None:
    back = run.recurrence().backward
    assert back is not None and set(names) <= set(run.net.written())
    assert not {held.name for held in back.held} & set(names)


def check_with_recompute(run: Recurrent, expected: Mapping[str, Mapping[str, Any]]) -> None:
    for listed, fields in expected.items():
        assert fields.keys() <= {"saved_per_step"}
        check_saved(run, fields["saved_per_step"], ast.literal_eval(listed))


def check_blobs(run: Recurrent, expected: list[str]) -> None:
    names = tuple(dict.fromkeys((*run.net.read_before_write(), *run.net.written())))
    for steps in _numbers(run.case["given"]["T"]):
        given = {
            name: np.random.default_rng(steps).standard_normal((steps if name in run.net.sequences else 1, 2, 3))
            for name in run.op["inputs"]
        }
        found = ran(run.forward(given, fetched=names), given)
        for words in expected:
            match = re.fullmatch(r"(\w+?)0 \.\. \1\{T-1\}", words)
            assert match is not None
            for t in range(steps):
                assert found[f"{match[1]}{t}"].shape == (1, 2, 3)
            assert f"{match[1]}{steps}" not in found


def _numbers(words: Any) -> list[int]:
    """ "1..4" is 1, 2, 3, 4."""
    first, _, last = str(words).partition("..")
    return list(range(int(first), int(last or first) + 1))


def check_links(run: Recurrent, expected: list[list[Any]]) -> None:
    links = describe_recurrence(run.forward(), run.net.name).links
    assert [list(link[: len(row)]) for link, row in zip(links, expected, strict=True)] == expected


def check_aliases(run: Recurrent, expected: list[list[Any]]) -> None:
    assert [list(alias) for alias in describe_recurrence(run.forward(), run.net.name).aliases] == expected


def check_references(run: Recurrent, expected: list[str]) -> None:
    assert sorted(describe_recurrence(run.forward(), run.net.name).references) == sorted(expected)


AREA = Area(
    Recurrent,
    {
        "values": check_values,
        "values_example": check_example,
        "backward_links": check_backward_links,
        "backward_step_ops": check_backward_ops,
        "saved_per_step": check_saved,
        "not_saved_per_step": check_not_saved,
        "and_with_recompute": check_with_recompute,
        "has_blobs": check_blobs,
        "links": check_links,
        "forward_links": check_links,
        "aliases": check_aliases,
        "references": check_references,
        "params": check_references,
    },
    force=Recurrent.force,
)


def cells_of(case: Case) -> list[Cell]:
    """The cells a case speaks of, with every number of layers; layered LSTMs where it names none."""
    found = []
    for words in case["given"].get("cells", ["LSTM, 1..3 layers"]):
        match = re.fullmatch(r"(?P<kind>\w+)( cell)?(, (?P<layers>[\d.]+) layers?)?", words)
        assert match is not None and match["kind"].lower() in CELLS, f"no cell of ours is {words!r}"
        make = CELLS[match["kind"].lower()]
        found += [make(layers=n) for n in _numbers(match["layers"])] if match["layers"] else [make()]
    return found


def feeds_of(cell: Cell, seed: int = 4) -> Arrays:
    rng = np.random.default_rng(seed)
    found = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in cell.shapes.items()}
    return {**found, **{name: np.array(row, np.int32) for name, row in cell.integers.items()}}


def trained_cell(cell: Cell, positions: Iterable[int], **how: Any) -> Graph:
    targets = [cell.outputs[position] for position in positions]
    return differentiate(cell.graph(**how), targets, [name for name in cell.shapes if name not in cell.integers])


@AREA.sentence(r"values and gradients of both forms are equal")
def over_time_and_written_out_are_equal(run: Recurrent, words: re.Match[str]) -> None:
    tried = 0
    for cell in cells_of(run.case):
        for positions in run.case["given"].get("outputs_with_grads", [[0]]):
            if max(positions) >= len(cell.outputs):
                continue
            given = feeds_of(cell)
            scan, plain = (ran(trained_cell(cell, positions, unrolled=way), given) for way in (False, True))
            names = [name for name in plain if name.startswith("grad:")] + cell.outputs
            for name in names:
                np.testing.assert_allclose(scan[name], plain[name], rtol=2e-5, atol=2e-6, err_msg=name)
            tried += 1
    assert tried


@AREA.sentence(r"no error")
def every_combination_runs(run: Recurrent, words: re.Match[str]) -> None:
    given = run.case["given"]
    for cell in cells_of(run.case):
        for forward_only in given.get("forward_only", [False]):
            if forward_only:
                assert describe_recurrence(cell.graph(), "rnn").backward is None
                execute(cell.graph(), feeds_of(cell))
                continue
            for positions in given.get("outputs_with_grads", [[0]]):
                for again in given.get("recompute_gates", [False]):
                    graph = trained_cell(cell, [p for p in positions if p < len(cell.outputs)])
                    execute(recompute_values(graph, "rnn", cell.recompute if again else []), feeds_of(cell))


@AREA.sentence(r"(?P<name>\w+) is not kept per time step")
def it_is_not_held(run: Recurrent, words: re.Match[str]) -> None:
    for graph in (
        recompute_values(run.trained(), run.net.name, run.net.recompute),
        recompute_before_step(run.trained(), run.net.name, run.net.recompute),
    ):
        assert words["name"] in run.net.written()
        assert words["name"] not in [held.name for held in run.backward(graph).held]


@AREA.sentence(r"params are (?P<names>[\w, ]+), their gradients are summed over time steps")
def weight_gradients_are_summed(run: Recurrent, words: re.Match[str]) -> None:
    names = re.split(r", | and ", words["names"])
    check_references(run, names)
    shapes = run.shapes(None)
    given = {name: np.random.default_rng(6).uniform(-1, 1, shape) for name, shape in shapes.items()}
    over_time, written_out = (ran(run.trained(given, unrolled=way), given) for way in (False, True))
    for name in names:
        np.testing.assert_allclose(over_time[f"grad:{name}"], written_out[f"grad:{name}"], rtol=1e-5, atol=1e-6)


@AREA.sentence(
    r"upstream draws (?P<ranges>T in \d+\.\.\d+, n in \d+\.\.\d+, d in \d+\.\.\d+) at random and checks "
    r"against a step-by-step reference and finite differences \(threshold (?P<threshold>[\d.]+)\)"
)
def drawn_shapes_agree_with_steps_and_differences(run: Recurrent, words: re.Match[str]) -> None:
    ranges = {name: _numbers(span) for name, span in re.findall(r"(\w) in (\d+\.\.\d+)", words["ranges"])}
    rng = np.random.default_rng(8)
    for _ in range(5):
        steps, rows, size = (int(rng.choice(ranges[name])) for name in "Tnd")
        given = {
            name: rng.uniform(0.5, 1.5, (steps if name in run.net.sequences else 1, rows, size)).astype(np.float32)
            for name in run.op["inputs"]
        }
        found, plain = ran(run.trained(given), given), ran(run.trained(given, unrolled=True), given)
        for name in [*run.outputs, *(f"grad:{name}" for name in run.op["inputs"])]:
            np.testing.assert_allclose(found[name], plain[name], rtol=1e-5)
        forward = run.forward(given)
        for name in run.op["inputs"]:
            step = np.float32(1e-2)
            ends = [ran(forward, {**given, name: given[name] + sign * step}) for sign in (1, -1)]
            totals = [sum(float(end[target].astype(np.float64).sum()) for target in run.targets) for end in ends]
            slope = (totals[0] - totals[1]) / (2 * float(step))
            np.testing.assert_allclose(slope, found[f"grad:{name}"].sum(), rtol=float(words["threshold"]))


@AREA.sentence(r"either refused, or the re-run must not change the value of (?P<name>\w+)")
def a_rerun_changes_nothing(run: Recurrent, words: re.Match[str]) -> None:
    assert words["name"] in run.net.recompute
    graph = run.trained()
    plain = ran(graph)
    for again in (
        recompute_values(graph, run.net.name, run.net.recompute),
        recompute_before_step(graph, run.net.name, run.net.recompute),
    ):
        found = ran(again)
        for name, array in plain.items():
            np.testing.assert_array_equal(found[name], array, name)


def generator(run: Recurrent, steps: int, window: int, rows: int, size: int) -> tuple[Graph, Arrays]:
    """A net whose step appends to a sequence of its own and convolves the last `window` positions of it."""
    ops = [
        StepOp("Sum", ("fake_t", "output_state_t_prev"), ("input_state_t",)),
        StepOp("Transpose", ("input_state_t_prev",), ("by_channel",), {"axes": [1, 2, 0]}),
        StepOp("ExpandDims", ("by_channel",), ("image",), {"dims": [2]}),
        StepOp("Conv", ("image", "conv_filter", "conv_bias"), ("convolved",), {"kernel_h": 1, "kernel_w": window}),
        StepOp("Squeeze", ("convolved",), ("rows",), {"dims": [2]}),
        StepOp("Transpose", ("rows",), ("output_state_t",), {"axes": [2, 0, 1]}),
    ]
    places = {"conv_window": window, "conv_window-1": window - 1}
    number = lambda word: places[word] if word in places else int(word)  # noqa: E731
    links = [Link("fake_t", "fake"), Link("output_state_t_prev", "output_state")]
    for inner, buffer, offset, said in run.case["given"]["links"]:
        links.append(Link(inner, buffer, number(offset), number(said.removeprefix("window="))))
    aliases = [Alias(buffer, name, number(offset)) for buffer, name, offset in run.case["given"]["aliases"]]
    assert run.case["given"]["initial_state_steps"] == "conv_window-1 zeros"
    net = RecurrentNet(
        "rnn", tuple(ops), ("fake",), {"input_state": "zeros", "output_state": "start"}, tuple(links), tuple(aliases)
    )
    rng = np.random.default_rng(window)
    given = {
        "fake": rng.uniform(-1, 1, (steps, rows, size)),
        "zeros": np.zeros((window - 1, rows, size)),
        "start": np.zeros((1, rows, size)),
        "conv_filter": rng.uniform(-0.3, 0.3, (size, size, 1, window)),
        "conv_bias": rng.uniform(-1, 1, size),
    }
    builder = Builder("generator")
    values = {
        name: builder.value(name, TensorType("float32", array.shape), Role.INPUT) for name, array in given.items()
    }
    made = add_recurrent(builder, net, values, table=CAFFE2)
    return builder.build([made[alias.name] for alias in aliases]), given


@AREA.sentence(
    r"stepwise convolution equals one left-padded convolution over the whole generated sequence "
    r"\((?P<places>\d) decimals\)"
)
def stepwise_equals_whole_convolution(run: Recurrent, words: re.Match[str]) -> None:
    for steps, window, rows, size in ((1, 2, 1, 1), (5, 3, 2, 3), (8, 4, 1, 2), (3, 5, 2, 1)):
        graph, given = generator(run, steps, window, rows, size)
        found = ran(graph, given)
        sequence, result = (found[name] for _, name, _ in run.case["given"]["aliases"])
        padded = np.concatenate([np.zeros((window - 1, rows, size), np.float32), sequence])
        for t in range(steps):
            taps = np.einsum("wnc,ocw->no", padded[t : t + window], given["conv_filter"][:, :, 0])
            np.testing.assert_almost_equal(result[t], taps + given["conv_bias"], int(words["places"]))


@AREA.sentence(r"no gradient outputs requested, forward only")
def forward_only(run: Recurrent, words: re.Match[str]) -> None:
    found = describe_recurrence(generator(run, 4, 3, 2, 2)[0], "rnn")
    assert found.backward is None and found.held_bytes == 0


@AREA.sentence(
    r"upstream treats the re-run as a gradient writer and produces (?P<name>\w+) = (?P<same>\w+) \+ recomputed (\w+)"
)
def a_rerun_is_not_added(run: Recurrent, words: re.Match[str]) -> None:
    assert words["name"] == words["same"] == words[3] and words["name"] in run.net.recompute
    back = run.backward(recompute_before_step(run.trained(), run.net.name, run.net.recompute))
    assert [row.kind for row in back.ops if words["name"] in row.writes] == ["again"]
    a_rerun_changes_nothing(run, words)


@AREA.sentence(r"a service may support several sequences; then it must accept this")
def several_sequences_have_a_function_of_their_own(run: Recurrent, words: re.Match[str]) -> None:
    """Caffe2's form takes one sequence; the function that its message names takes these."""
    assert "recurrent.cell_net" in str(refusal(run.force))
    given = run.op["attrs"]["sequence"]
    step = [StepOp("Mul", tuple(given), ("out",))]
    net = cell_net("rnn", step, given, [RecurrentState("before", "start", "out")], run.outputs)
    builder = Builder("case")
    shapes = {**dict.fromkeys(run.op["inputs"], (3, 1, SIZE)), "start": (1, SIZE)}
    values = {n: builder.value(n, TensorType("float32", shape), Role.INPUT) for n, shape in shapes.items()}
    made = add_recurrent(builder, net, values, table=CAFFE2)
    feeds = {n: np.random.default_rng(2).uniform(1, 2, shape) for n, shape in shapes.items()}
    found = ran(builder.build([made[name] for name in run.outputs]), feeds)
    one, other = (feeds[name] for name in given.values())
    np.testing.assert_allclose(found[run.outputs[0]], one * other, rtol=1e-5)


@AREA.sentence(r"The concrete numbers were computed by hand for this list; the upstream test is randomised\.")
def steps_written_out_give_the_numbers(run: Recurrent, words: re.Match[str]) -> None:
    given = run.case["given"]["values"]
    _compare(ran(run.trained(given, unrolled=True), given), run.case["expected"]["values"])
