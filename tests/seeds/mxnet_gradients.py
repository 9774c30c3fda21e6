"""Gradient graphs as MXNet and NNVM build them: zeros, sums, copies, shapes, and what a request must say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.analysis.cost import device_named
from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.registry import ForwardNode
from graph.builder.emit import Emit
from graph.formats.mxnet.gradients import GradientGraph, gradient_graph
from graph.ir import Graph, Phase, TensorType, Val
from planner.lowering.lower import lower
from planner.problem import evaluate as evaluator
from planner.problem.plan import Goal
from planner.request.target_runtime import runtime_named
from tests.graph.evaluate import evaluate
from tests.seeds.harness import Area, Case
from tests.seeds.numeric_area import FIELDS, Numeric
from tests.seeds.numeric_gradients import Numbers, numbers_of
from tests.seeds.programs import ours

NOT_ASKED = object()


def returned(rule: Any) -> Any:
    """A gradient rule from words: "returns one gradient for two inputs", "returns the incoming gradient itself"."""
    if rule is None:
        return "missing"
    counts = {"no": 0, "one": 1, "two": 2, "three": 3}
    match = re.search(r"returns (?:(\w+) gradients?|the incoming gradient itself) for (\w+) inputs", rule)
    assert match is not None, rule

    def passing_on(emit: Emit, node: ForwardNode, dz: Val) -> tuple[Val, ...]:
        return (dz,) * (counts[match[1]] if match[1] else len(node.inputs))

    return passing_on


@dataclass
class Built:
    """One case as a request for a gradient graph; `changed` are fields of the request that a variant sets."""

    case: Case
    changed: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def rules(self) -> dict[str, Any]:
        given = self.case["given"]
        said = {op: words for op, words in given.get("op_semantics", {}).items() if "gradient rule" in words}
        return {
            op: returned(words.replace("both inputs", "two inputs") if isinstance(words, str) else words)
            for op, words in {**given.get("grad_rules", {}), **said}.items()
        }

    @property
    def case_of_opaque(self) -> Case:
        return {**self.case, "left_opaque": dict.fromkeys(self.rules, 0)}

    @cached_property
    def numbers(self) -> Numbers:
        return numbers_of(self.case_of_opaque)

    @cached_property
    def found(self) -> GradientGraph:
        asked = self.case["wanted_gradients"]
        targets = asked.get("targets", {})
        request: dict[str, Any] = {
            "targets": list(targets),
            "wanted": asked.get("wrt"),
            "head_gradients": list(targets.values()),
            **self.changed,
        }
        forward = self.numbers.forward if targets else self._forward_alone
        types = {value.name: value.type for value in forward.values}
        heads = [head for head in targets.values() if head]
        more = {head: types[target] for target, head in targets.items() if head}
        if heads:
            from graph.builder.builder import Builder
            from graph.ir import Role

            builder = Builder.from_graph(forward)
            for head in heads:
                if head not in types:
                    builder.value(head, more[head], Role.INPUT)
            forward = builder.build(forward.outputs)
        return gradient_graph(
            forward, **request, copies=True, gradient_rules={f"mxnet::{op}": rule for op, rule in self.rules.items()}
        )

    @cached_property
    def _forward_alone(self) -> Graph:
        return ours(self.case, {}, [self.case["ops"][-1]["outputs"][0]])

    @property
    def graph(self) -> Graph:
        return self.found.graph

    def computed(self, value: str) -> np.ndarray:
        """Content of a value of the gradient graph, without running ops it does not read."""
        read, nodes = {self.graph.value_named(value)}, []
        for node in reversed(self.graph.nodes):
            if not read.isdisjoint(node.writes):
                read.update(node.reads)
                nodes.insert(0, node)
        return evaluate(replace(self.graph, nodes=tuple(nodes)), self.numbers.contents)[value]

    def gradient(self, wanted: str) -> np.ndarray:
        return self.computed(next(entry for entry in self.found.entries if entry.wanted == wanted).gradient)

    def value(self, name: str) -> np.ndarray:
        if name.startswith("grad:"):
            return self.gradient(name.removeprefix("grad:"))
        return Numeric(self.case).value(name)

    def type_of(self, wanted: str) -> TensorType:
        entry = next(entry for entry in self.found.entries if entry.wanted == wanted)
        type = self.graph.values[self.graph.value_named(entry.gradient)].type
        assert type is not None
        return type


def variants(case: Case) -> Sequence[Built]:
    """The request with a field left out, or of another length."""
    whole = {"targets": ["y"], "wanted": ["x"], "head_gradients": [None]}
    fields = {"targets": "targets", "wanted variables": "wanted", "head gradients": "head_gradients"}
    found = []
    for words in case["given"]["variants"]:
        missing = re.fullmatch(r"no ([\w ]+)", words)
        if missing is not None:
            found.append(Built(case, {**whole, fields[missing[1]]: None}))
        else:
            one, other = re.fullmatch(r"([\w ]+) and (\w+) differ in number", words).groups()  # type: ignore[union-attr]
            assert fields[other] == "targets"
            found.append(Built(case, {**whole, fields[one]: [None, None]}))
    return found


def check_descriptions(run: Built, expected: dict[str, str]) -> None:
    """Values in words: "zeros [10,10]", "2 everywhere (shape 2x2)"."""
    for name, words in expected.items():
        zeros = re.fullmatch(r"(zeros|ones) \[([\d,]+)\]", words)
        everywhere = re.fullmatch(r"([\d.]+) everywhere \(shape ([\dx]+)\)", words)
        match = zeros or everywhere
        assert match is not None, words
        shape = [int(n) for n in re.split("[,x]", match[2])]
        number = {"zeros": 0.0, "ones": 1.0}.get(match[1]) if zeros else float(match[1])
        found = _passes(run, shape) if "passes" in run.case["given"] else run.value(name)
        np.testing.assert_array_equal(found, np.full(shape, number))


def _passes(run: Built, shape: Sequence[int]) -> np.ndarray:
    """The gradient after so many backward passes: in mode "add" each pass is one more target."""
    given, asked = run.case["given"], run.case["wanted_gradients"]
    times = given["passes"] if given["mode"] == "add" else 1
    (target,), (wanted,) = asked["targets"], asked["wrt"]
    types = dict.fromkeys(
        [name for op in run.case["ops"] for name in op["inputs"]], TensorType("float32", tuple(shape))
    )
    graph = differentiate(ours(run.case, types, [target]), [target] * times, [wanted])
    values = evaluate(graph, {name: np.ones(shape, np.float32) for name in types})
    return values[graph.values[dict(graph.gradients)[graph.value_named(wanted)]].name]


def check_op_names(run: Built, names: list[str]) -> None:
    assert [entry.called for entry in run.found.entries] == names


def check_shapes(run: Built, shapes: dict[str, list[int]]) -> None:
    assert {name: list(run.type_of(name).shape) for name in shapes} == shapes
    assert [entry.wanted for entry in run.found.entries] == run.case["wanted_gradients"]["wrt"]


def check_dtypes(run: Built, dtypes: dict[str, str]) -> None:
    assert {name: run.type_of(name).dtype for name in dtypes} == dtypes


def check_result(run: Built, expected: list[dict[str, str]]) -> None:
    """Entry by entry: the gradient itself, or the k-th copy of it."""
    entries = run.found.entries
    assert [entry.wanted for entry in entries] == [item["wrt"].removesuffix(" (again)") for item in expected]
    assert len({entry.gradient for entry in entries}) == len(entries), "no two are one value"
    for entry, item in zip(entries, expected, strict=True):
        copy = re.fullmatch(r"(?:copy of (\w+) named <producer of (\w+)>|another copy, )_(\d+)_copy", item["is"])
        (head,) = run.case["wanted_gradients"]["targets"].values()
        if copy is None:
            assert entry.called == item["is"] == head
        else:
            assert {copy[1], copy[2]} <= {head, None}
            assert entry.called == f"{head}_{copy[3]}_copy"
        np.testing.assert_array_equal(run.computed(entry.gradient), run.numbers.contents[head])


def check_without_copies(run: Built, words: str) -> None:
    assert words == "all entries may be the same value"
    asked = run.case["wanted_gradients"]
    again = gradient_graph(
        run.graph,
        list(asked["targets"]),
        asked["wrt"],
        list(asked["targets"].values()),
        gradient_rules={f"mxnet::{op}": rule for op, rule in run.rules.items()},
    )
    assert {entry.gradient for entry in again.entries} == set(asked["targets"].values())


AREA = Area(
    Built,
    {
        **FIELDS,
        "values_description": check_descriptions,
        "gradient_op_names": check_op_names,
        "gradient_shapes": check_shapes,
        "gradient_dtypes": check_dtypes,
        "result": check_result,
        "without_copy_op": check_without_copies,
    },
    force=lambda run: run.found,
    variants=variants,
)
sentence = AREA.sentence


def planned_bytes(graph: Graph) -> int:
    """Peak of the graph as it stands."""
    lowered = lower(graph, device_named("a100-80gb"), runtime_named("arena"))
    return evaluator.evaluate(lowered.problem, Goal(), np.arange(lowered.problem.tasks), "as_given").score.peak_bytes


def with_gradients(numbers: Numbers) -> Graph:
    """The graph with the gradients asked for; a blocked one is nothing, as the caller holds zeros without it."""
    return differentiate(numbers.forward, dict(numbers.targets), list(numbers.wanted))


@sentence(r"planned memory with the barrier and gradients asked == planned memory of the chain with no gradients asked")
def a_blocked_gradient_needs_no_memory(run: Built, words: re.Match[str]) -> None:
    assert planned_bytes(with_gradients(run.numbers)) == planned_bytes(run.numbers.forward)


@sentence(r"without the barrier it is strictly larger")
def an_open_gradient_needs_memory(run: Built, words: re.Match[str]) -> None:
    *chain, barrier = run.case["ops"]
    assert barrier["type"] == "stop_gradient"
    (target,) = chain[-1]["outputs"]
    wanted = {**run.case["wanted_gradients"], "targets": {target: None}}
    open_ = numbers_of({**run.case, "ops": chain, "wanted_gradients": wanted})
    assert planned_bytes(with_gradients(open_)) > planned_bytes(with_gradients(run.numbers))


@sentence(r"each zero op takes the forward input as its only data input and waits for the forward op")
def zeros_wait_for_the_op(run: Built, words: re.Match[str]) -> None:
    (op,) = [op for op in run.case["ops"] if op["type"] in run.rules]
    for entry, name in zip(run.found.entries, op["inputs"], strict=True):
        assert entry.reads == (name,) and entry.after == tuple(op["outputs"])
        (node,) = [node for node in run.graph.nodes if node.name == entry.called]
        assert [run.graph.values[v].name for n in node.after for v in run.graph.nodes[n].writes] == op["outputs"]


@sentence(r"no error although output '(?P<output>\w+)' is an input with no gradient")
def an_input_may_be_an_output(run: Built, words: re.Match[str]) -> None:
    v = run.graph.value_named(words["output"])
    assert v in run.graph.outputs and v in run.graph.inputs
    assert v not in dict(run.graph.gradients)


@sentence(r"upstream additionally reports that (?P<name>\w+) received no fresh gradient")
def nothing_reaches_it(run: Built, words: re.Match[str]) -> None:
    numbers = run.numbers
    graph = differentiate(numbers.forward, dict(numbers.targets), list(numbers.wanted))
    assert graph.value_named(words["name"]) not in dict(graph.gradients)


@sentence(r"asking again with only (?P<name>\w+) gives only (?P=name)")
def asking_again_gives_only_that(run: Built, words: re.Match[str]) -> None:
    only = run.numbers.asked_for([words["name"]])
    assert set(only.gradients) == {words["name"]}
    np.testing.assert_array_equal(only.gradients[words["name"]], run.gradient(words["name"]))


@sentence(r"gradient of (?P<name>\w+) is a sum of exactly (?P<count>two|three) terms")
def the_gradient_is_a_sum(run: Built, words: re.Match[str]) -> None:
    gradient = dict(run.graph.gradients)[run.graph.value_named(words["name"])]
    (node,) = [node for node in run.graph.nodes if gradient in node.writes]
    assert node.op in ("Add", "Sum") and len(node.inputs) == {"two": 2, "three": 3}[words["count"]]


@sentence(r"a zeros-like op is present for (?P<name>\w+)")
def zeros_are_there(run: Built, words: re.Match[str]) -> None:
    (entry,) = [entry for entry in run.found.entries if entry.wanted == words["name"]]
    assert entry.reads == (words["name"],) and not run.gradient(words["name"]).any()


@sentence(r"no unknown shape or dtype remains in the gradient graph, label included")
def everything_is_typed(run: Built, words: re.Match[str]) -> None:
    assert all(value.type is not None for value in run.graph.values)
    assert run.graph.value_named("label") in run.graph.inputs


@sentence(r"each gradient has the shape and dtype \((?P<dtype>\w+)\) of its variable")
def gradients_are_of_their_variables(run: Built, words: re.Match[str]) -> None:
    graph = run.graph
    assert graph.gradients
    for v, gradient in graph.gradients:
        assert graph.values[v].type == graph.values[gradient].type
        assert run.type_of(graph.values[v].name).dtype == words["dtype"]


@sentence(r"as many gradients as variables, same order")
def as_many_gradients(run: Built, words: re.Match[str]) -> None:
    assert [entry.wanted for entry in run.found.entries] == run.case["wanted_gradients"]["wrt"]
    assert sum(node.phase is Phase.BACKWARD for node in run.graph.nodes) > len(run.found.entries)


@sentence(
    r"asking the same variable twice yields zeros the second time \(its gradient was moved out\); a service must "
    r"return a copy"
)
def asking_twice_gives_a_copy(run: Built, words: re.Match[str]) -> None:
    wanted = run.case["wanted_gradients"]["wrt"]
    (twice,) = {name for name in wanted if wanted.count(name) > 1}
    first, second = (entry.gradient for entry in run.found.entries if entry.wanted == twice)
    assert first != second
    assert run.computed(first).any()
    np.testing.assert_array_equal(run.computed(first), run.computed(second))


@sentence(r"A barrier is not the derivative of the forward function: do not check with finite differences\.")
def the_barrier_is_not_the_derivative(run: Built, words: re.Match[str]) -> None:
    """What the barrier blocks moves the target, though its gradient is zero."""
    numbers = run.numbers
    (target,) = numbers.targets
    blocked = [name for name in numbers.wanted if not run.gradient(name).any()]
    assert blocked
    for name in blocked:
        moved = evaluate(numbers.forward, {**numbers.contents, name: numbers.contents[name] + 1})
        assert (moved[target] != numbers.values[target]).any()


@sentence(r"Upstream takes the label from softmax\((?P<logits>\w+)\); pooling default stride as in that library\.")
def another_label_changes_no_type(run: Built, words: re.Match[str]) -> None:
    """The library's default stride of a pooling is one, so that windows of two leave one place less."""
    ops = [
        {**op, "type": "softmax", "inputs": [words["logits"]], "attrs": {}} if op["outputs"] == ["label"] else op
        for op in run.case["ops"]
    ]
    assert ops != run.case["ops"]
    given = {**run.case["given"], "shapes": {**run.case["given"]["shapes"], "data": [2, 3, 34, 34]}}
    one, other = (Built({**run.case, "given": given, "ops": listed}) for listed in (run.case["ops"], ops))
    for name in run.case["wanted_gradients"]["wrt"]:
        assert one.type_of(name) == other.type_of(name)
    places = [one.graph.values[one.graph.value_named(name)].type for name in ("relu1", "pool1")]
    assert [type.shape[2:] for type in places if type] == [(3, 3), (2, 2)]
