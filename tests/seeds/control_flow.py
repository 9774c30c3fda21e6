"""Branches, loops and scoped subgraphs: what they compute, and their gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.caffe2.compat.scopes import check_do_gradient, distinct_gradients
from graph.ir import Graph, Phase, walk
from tests.seeds.control_flow_programs import Reading, array_of, do_of
from tests.seeds.harness import Area, Case, check_tolerance
from tests.seeds.image_branches import Branches

Numbers = Mapping[str, np.ndarray]


class Run:
    """A case with numbers."""

    def __init__(self, case: Case):
        self.case, self.given = case, case["given"]
        wanted = case["wanted_gradients"]
        self.targets = wanted.get("targets") or {}
        values = self.given.get("values", {})
        if "rows" in self.given:
            values = {**values, case["ops"][0]["inputs"][0]: self.given["rows"][0]}
        self.contents = {name: array_of(content) for name, content in values.items()}
        chance = np.random.default_rng(3)
        for name, shape in self.given.get("shapes", {}).items():
            self.contents[name] = chance.normal(0, 1, shape).astype(np.float32)

        floating = [name for name, array in self.contents.items() if array.dtype == np.float32]
        self.wanted: Sequence[str] = wanted.get("wrt", floating if self.targets else ())

    @cached_property
    def reading(self) -> Reading:
        meanings = self.given.get("op_semantics", {})
        return Reading(self.case["source_project"], [op for op, means in meanings.items() if means == "identity"])

    @cached_property
    def forward(self) -> Graph:
        outputs = dict.fromkeys([*self.targets, *self._named_results()])
        return self.reading.graph(self.case["ops"], self.contents, list(outputs))

    def _named_results(self) -> list[str]:
        written = [name for op in self.case["ops"] for name in op["outputs"]]
        return [name for name in dict.fromkeys(written) if name not in self._handles]

    @cached_property
    def _handles(self) -> set[str]:
        return {name for op in self.case["ops"] if op["type"] in ("Do", "CreateScope") for name in op["outputs"][-1:]}

    @cached_property
    def step(self) -> Graph:
        """Targets are names at the end of the case, what is wanted are names before it runs."""
        at_end = [self.forward.values[v].name for v in self.forward.outputs[: len(self.targets)]]
        heads = [head if head in self.contents else None for head in self.targets.values()]
        of = dict(zip(at_end, heads, strict=True))
        return differentiate(self.forward, of, list(self.wanted), unreachable="zeros")

    def computed(self, contents: Numbers | None = None) -> dict[str, np.ndarray]:
        """Results by the names a case has for them; `grad:NAME` is the gradient of NAME before the case runs."""
        contents = {**self.contents, **(contents or {})}
        graph = self.step if self.wanted else self.forward
        names = {value.name for value in graph.values}
        ran = execute(graph, {name: array for name, array in contents.items() if name in names}, keep=_gradients(graph))
        outputs = [graph.values[v].name for v in self.forward.outputs]
        shown = dict.fromkeys([*self.targets, *self._named_results()])
        found = dict(contents)
        found |= {name: ran.outputs[output] for name, output in zip(shown, outputs, strict=True)}
        for v, gradient in graph.gradients:
            found[f"grad:{graph.values[v].name}"] = ran.values[graph.values[gradient].name]
        return found

    @property
    def tolerance(self) -> float:
        return float(self.case["expected"].get("tolerance", 1e-5))


def _gradients(graph: Graph) -> set[str]:
    return {graph.values[gradient].name for _, gradient in graph.gradients}


def _agrees(found: np.ndarray, expected: Any, tolerance: float) -> None:
    assert [n for n in found.shape if n != 1] == [n for n in np.shape(expected) if n != 1]
    assert np.asarray(found, np.float64).reshape(-1).tolist() == pytest.approx(
        np.asarray(expected, np.float64).reshape(-1).tolist(), rel=tolerance, abs=tolerance
    )


def check_values(run: Run, values: Mapping[str, Any], contents: Numbers | None = None) -> None:
    found = run.computed(contents)
    for name, expected in values.items():
        _agrees(found[name], expected, run.tolerance)


def check_when(run: Run, expected: Mapping[str, Any], holds: bool) -> None:
    flags = {name: np.array(holds) for name, array in run.contents.items() if array.dtype == bool}
    assert flags and expected.keys() == {"values"}
    check_values(run, expected["values"], flags)


def check_also(run: Run, expected: Mapping[str, Mapping[str, Any]]) -> None:
    """The same with other contents, written `name=content`."""
    for setting, values in expected.items():
        name, _, content = setting.partition("=")
        check_values(run, values, {name: array_of(ast.literal_eval(content))})


def check_rows(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    (name,) = (word for word in rows[0] if word in run.contents)
    assert [row[name] for row in rows] == run.given["rows"]
    for row in rows:
        values = {word: expected for word, expected in row.items() if word != name}
        check_values(run, values, {name: array_of(row[name])})


def check_shapes(run: Run, shapes: Mapping[str, Sequence[int]]) -> None:
    found = run.computed()
    assert {name: list(found[name].shape) for name in shapes} == {name: list(shape) for name, shape in shapes.items()}


def check_not_visible(run: Run, names: Sequence[str]) -> None:
    graph = run.forward
    inside = {value.name for nested in walk(graph) if nested is not graph for value in nested.values}
    for name in names:
        assert any(re.fullmatch(rf"{re.escape(name)}(/\d+)?", value) for value in inside), f"{name!r} is nowhere"
        assert name not in {value.name for value in graph.values}


def check_formula(run: Run, formula: str) -> None:
    """`result = expression` holds for random contents of the floating inputs."""
    try:
        (assignment,) = ast.parse(formula).body
    except SyntaxError as error:
        raise ValueError(formula) from error
    assert isinstance(assignment, ast.Assign) and isinstance(assignment.targets[0], ast.Name)
    chance = np.random.default_rng(5)
    drawn = {
        name: chance.normal(0, 1, array.shape).astype(np.float32)
        for name, array in run.contents.items()
        if array.dtype == np.float32
    }
    expected = _evaluated(assignment.value, drawn)
    _agrees(run.computed(drawn)[assignment.targets[0].id], expected, run.tolerance)


def _evaluated(part: ast.expr, names: Numbers) -> Any:
    if isinstance(part, ast.BinOp):
        left, right = _evaluated(part.left, names), _evaluated(part.right, names)
        return {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}[type(part.op)]
    return names[part.id] if isinstance(part, ast.Name) else ast.literal_eval(part)


def check_copies(run: Run, ops: Sequence[Mapping[str, Any]]) -> None:
    copies, _ = _distinct(run)
    made = [{"type": "Copy", "inputs": [source], "outputs": [copy], "attrs": {}} for source, copy in copies]
    assert made == list(ops)


def check_effective(run: Run, gradients: Sequence[str | None]) -> None:
    assert _distinct(run)[1] == list(gradients)


def _distinct(run: Run) -> tuple[list[tuple[str, str]], list[str | None]]:
    return distinct_gradients(list(run.targets), list(run.targets.values()))


def force(run: Run) -> object:
    return run.step if run.wanted else run.forward


def made(case: Case) -> Any:
    return Branches(case) if "branches" in case["given"] else Run(case)


AREA = Area(
    made,
    {
        "values": check_values,
        "when_condition_true": lambda run, expected: check_when(run, expected, True),
        "when_condition_false": lambda run, expected: check_when(run, expected, False),
        "also": check_also,
        "rows": check_rows,
        "shapes": check_shapes,
        "not_visible_outside": check_not_visible,
        "formula": check_formula,
        "gradient_ops_prefix": check_copies,
        "effective_output_gradients": check_effective,
        "tolerance": check_tolerance,
    },
    force,
)


@AREA.sentence(r"gradients exist for (\w+(?:, \w+)*) and (\w+)")
def gradients_exist(run: Run, match: re.Match[str]) -> None:
    found = run.computed()
    for name in [*match[1].split(", "), match[2]]:
        assert found[f"grad:{name}"].shape == run.contents[name].shape


@AREA.sentence(
    r"(\w+)<0: grad (\w+) and (\w+) are all zero with their own shapes; grad (\w+), (\w+) equal those of the plain "
    r"then-graph"
)
def untaken_weights_get_zeros(run: Run, match: re.Match[str]) -> None:
    _only_one_branch(run, match[1], -0.5, (match[4], match[5]), (match[2], match[3]), "then_graph")


@AREA.sentence(r"(\w+)>=0: the mirror statement")
def the_mirror_statement(run: Run, match: re.Match[str]) -> None:
    (stated,) = (text for text in run.case["expected"]["properties"] if text.startswith(f"{match[1]}<0: grad "))
    names = re.findall(r"grad (\w+)(?: and|,) (\w+)", stated)
    _only_one_branch(run, match[1], 0.5, names[0], names[1], "else_graph")


def _only_one_branch(
    run: Run, switch: str, content: float, taken: Sequence[str], untaken: Sequence[str], branch: str
) -> None:
    contents = {switch: np.full((1,), content, np.float32), "zero": np.zeros((1,), np.float32)}
    assert run.forward.value_named(switch) in run.forward.inputs
    found = run.computed(contents)
    for name in untaken:
        assert not found[f"grad:{name}"].any() and found[f"grad:{name}"].shape == run.contents[name].shape
    plain = Run({**run.case, "ops": _with_branch_alone(run.case["ops"], branch)})
    plain.wanted = list(taken)
    alone = plain.computed(contents)
    for name in taken:
        assert alone[f"grad:{name}"].any()
        assert (found[f"grad:{name}"] == alone[f"grad:{name}"]).all()


def _with_branch_alone(ops: Sequence[Mapping[str, Any]], branch: str) -> list[Mapping[str, Any]]:
    """The ops with one branch in place of each If."""
    return [inner for op in ops for inner in (op["attrs"][branch]["ops"] if op["type"] == "If" else [op])]


@AREA.sentence(r"after the training above every learned value is within ([\d.]+) of the ground truth")
def training_learns(run: Run, match: re.Match[str]) -> None:
    training, truth = run.given["training"], run.given["ground_truth"]
    chance = np.random.default_rng(7)
    learned = {name: chance.uniform(-1, 1, run.contents[name].shape).astype(np.float32) for name in truth}
    fixed = {
        re.sub(r"_(?=\w$)", "_gt_", name): array_of(content).reshape(learned[name].shape)
        for name, content in truth.items()
    }
    every = {name: run.contents[name].shape for name in ("X", "noise")}
    rate = training["sgd_base_lr"]
    factor, period = (float(word) for word in re.findall(r"[\d.]+", training["lr_decay"]))
    for step in range(training["steps"]):
        contents = {
            name: chance.normal(0, 1 if name == "X" else 0.01, s).astype(np.float32) for name, s in every.items()
        }
        contents["switch"] = chance.uniform(-1, 1, (1,)).astype(np.float32)
        found = run.computed({**contents, **fixed, **learned, "zero": np.zeros((1,), np.float32)})
        scale = np.float32(rate * factor ** (step // period))
        learned = {name: array - scale * found[f"grad:{name}"] for name, array in learned.items()}
    for name, content in truth.items():
        _agrees(learned[name].reshape(-1), content, float(match[1]))


@AREA.sentence(r"gradients are with respect to the values before the loop")
def of_values_before(run: Run, match: re.Match[str]) -> None:
    """They are those of inputs, which nothing writes; finite differences over them agree."""
    assert all(v in run.step.inputs for v, _ in run.step.gradients)
    _agree_with_differences(run)


def _agree_with_differences(run: Run, contents: Numbers = MappingProxyType({})) -> None:
    for name in run.wanted:
        gradient = float(np.sum(run.computed(contents)[f"grad:{name}"]))
        up, down = _slopes(run, name, contents)
        assert gradient == pytest.approx((up + down) / 2, rel=1e-2)


def _slopes(run: Run, name: str, contents: Numbers = MappingProxyType({})) -> tuple[float, float]:
    """Differences of the target, divided by the step, on either side of the content of `name`."""
    (target,) = run.targets
    step = np.float32(1e-2)
    low, at, high = (
        float(np.sum(run.computed({**contents, name: run.contents[name] + side * step})[target])) for side in (-1, 0, 1)
    )
    return (high - at) / float(step), (at - low) / float(step)


@AREA.sentence(r"backward runs the saved iterations last-in first-out")
def last_in_first_out(run: Run, match: re.Match[str]) -> None:
    (loop,) = (node for node in run.step.nodes if node.op == "Loop")
    (backward,) = (node for node in run.step.nodes if node.phase is Phase.BACKWARD and node.bodies)
    count = backward.attributes["num_scan_inputs"]
    assert set(backward.inputs[-count:]) & set(loop.outputs)
    assert set(backward.attributes["scan_input_directions"]) == {1}


@AREA.sentence(r"an If whose taken branch is empty leaves every outer value as it was")
def empty_branch_keeps(run: Run, match: re.Match[str]) -> None:
    (op,) = run.case["ops"][-1:]
    assert op["attrs"]["else_graph"]["ops"] == []
    reading = Reading(run.case["source_project"])
    names = {name: np.array(content) for name, content in run.contents.items()}
    names[op["inputs"][0]] = np.array(False)
    graph = reading.graph([op], names, op["outputs"])
    used = {value.name for value in graph.values}
    ran = execute(graph, {name: array for name, array in names.items() if name in used})
    for name, v in zip(op["outputs"], graph.outputs, strict=True):
        assert (ran.outputs[graph.values[v].name] == names[name]).all()


@AREA.sentence(r"asking for gradients through such a Do is refused: stacked scopes are required")
def reused_scope_is_refused(run: Run, match: re.Match[str]) -> None:
    (do,) = (do_of(op) for op in run.case["ops"] if op["attrs"].get("reuse_workspace"))
    with pytest.raises(BadGraph, match="stacked scopes") as refused:
        check_do_gradient(do, ["g", *[None] * (len(do.outputs) - 1)])
    assert [finding.code for finding in refused.value.findings] == ["scope_reused"]


@AREA.sentence(r"first use keeps the name, later uses get a copy")
def first_keeps_later_copy(run: Run, match: re.Match[str]) -> None:
    copies, gradients = _distinct(run)
    asked = list(run.targets.values())
    for i, (before, after) in enumerate(zip(asked, gradients, strict=True)):
        assert (after == before) == (before is None or before not in asked[:i])
    assert {copy for _, copy in copies} == set(gradients) - set(asked)


@AREA.sentence(r"missing gradients stay missing")
def missing_stay_missing(run: Run, match: re.Match[str]) -> None:
    asked, gradients = list(run.targets.values()), _distinct(run)[1]
    assert [g is None for g in asked] == [g is None for g in gradients]


@AREA.sentence(r"gradient of the (\w+) within (\d+)% of finite differences \(step ([\d.]+)\)")
def agrees_with_differences(run: Branches, match: re.Match[str]) -> None:
    assert match[1] in run.case["wanted_gradients"]["wrt"]
    run.check_gradients(float(match[2]) / 100, float(match[3]))


@AREA.sentence(
    r"upstream overwrites the weight gradient in each backward iteration instead of adding, and lets an in-place "
    r"multiply read the value after the update"
)
def iterations_add_up(run: Run, match: re.Match[str]) -> None:
    """Gradients of what every iteration reads, and of what it writes in place, agree with differences."""
    (op,) = run.case["ops"]
    (step,) = op["attrs"]["body_graph"]["ops"]
    assert step["type"] == "Mul" and step["outputs"][0] in step["inputs"] and set(step["inputs"]) == set(run.wanted)
    assert run.case["given"]["values"]["two"] > 1, "more than one iteration"
    _agree_with_differences(run)


@AREA.sentence(r"refused as a version conflict on (\w+)")
def both_versions_are_kept(run: Run, match: re.Match[str]) -> None:
    """Here each version of the name is a value of its own, and gradients reach what made either of them."""
    assert sum(match[1] in op["outputs"] for op in run.case["ops"]) > 1
    for holds in (True, False):
        _agree_with_differences(run, {"c": np.array(holds)})


@AREA.sentence(r"(\w+) = ([\d.]+) sits on a branch boundary: do not check with two-sided finite differences\.")
def the_branch_taken_decides(run: Run, match: re.Match[str]) -> None:
    assert float(run.contents[match[1]]) == float(match[2])
    _one_side_agrees(run, match[1])


@AREA.sentence(
    r"The trip count is fixed by the forward run; finite differences across a change of trip count are meaningless\."
)
def the_trip_count_is_fixed(run: Run, match: re.Match[str]) -> None:
    condition = run.case["ops"][0]["attrs"]["condition"]
    (counter,) = (name for name in run.wanted if condition.startswith(f"{name} "))
    _one_side_agrees(run, counter)


def _one_side_agrees(run: Run, name: str) -> None:
    """The gradient is the slope on the side where the same ops run; across the boundary the target jumps."""
    gradient = float(np.sum(run.computed()[f"grad:{name}"]))
    up, down = _slopes(run, name)
    assert gradient == pytest.approx(up, rel=1e-2)
    assert abs(gradient - down) > 10 * abs(gradient)


@AREA.sentence(r"Upstream asserts the forward value on a random (\d+)x(\d+) input; the gradients were added here\.")
def the_formula_holds_for_matrices(run: Run, match: re.Match[str]) -> None:
    shape = (int(match[1]), int(match[2]))
    assert shape == (3, 3)
    drawn = {name: np.random.default_rng(4).normal(0, 1, shape).tolist() for name in run.wanted}
    given = {**run.given, "values": {**run.given["values"], **drawn}}
    check_formula(Run({**run.case, "given": given}), run.case["expected"]["formula"])


@AREA.sentence(r"(\w+) and (\w+) are pre-initialised outside; (\w+) exists in both branches as a branch-local name")
def branches_have_names_of_their_own(run: Run, match: re.Match[str]) -> None:
    """The names given outside are what the branches hand out, so the value of either branch is seen after them."""
    (op,) = (op for op in run.case["ops"] if op["type"] == "If")
    assert {match[1], match[2]} == set(op["outputs"])
    (node,) = (node for node in run.forward.nodes if node.op == "If")
    assert len(node.outputs) == 2
    for body in node.bodies.values():
        assert match[3] in {value.name for value in body.graph.values}
        assert match[3] not in {body.graph.values[v].name for v in body.graph.outputs}
    check_not_visible(run, [match[3]])
