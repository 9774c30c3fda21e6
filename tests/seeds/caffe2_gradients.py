"""Gradients as Caffe2's engine gives them: generated ops with their names, the map, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.autodiff.resolve_names import GradientOptions
from graph.errors import Findings
from graph.formats.caffe2.compat.gradients import Caffe2Gradients, GradientOp, add_gradient_operators, last_versions
from graph.formats.caffe2.compat.rules import caffe2_rules
from graph.ir import Graph, Phase
from tests.seeds import numeric_gradients
from tests.seeds.harness import Area, Case, codes, refusal
from tests.seeds.programs import opaque

WORDS = {"inputs": "inputs", "outputs": "outputs", "output_grads": "incoming"}
ORDINALS = {"first": 0, "last": -1}
SPARSE = re.compile(r"gradient of its (first|last) input is sparse with both parts computed")


class Structure:
    """One case and its generated ops."""

    def __init__(self, case: Case):
        self.case = case
        targets = case["wanted_gradients"]["targets"]
        self.targets: Any = targets if isinstance(targets, dict) else ()

    @cached_property
    def graph(self) -> Graph:
        heads = [head for head in self.targets.values() if head] if isinstance(self.targets, dict) else []
        return opaque(self.case, heads)

    @cached_property
    def found(self) -> Caffe2Gradients:
        skip = self.case["wanted_gradients"].get("skip", self.case["given"].get("skip", 0))
        return add_gradient_operators(self.graph, self.targets, declared_rules(self.case), skip)

    def ops(self, type: str) -> list[GradientOp]:
        return [op for op in self.found.ops if op.type == type]

    def versions(self, blob: str) -> list[int]:
        """Values that have that name, in order; the one given is the first."""
        return [
            v for v, value in enumerate(self.graph.values) if value.annotations.get("version_of", value.name) == blob
        ]

    def gradients_with(self, **options: Any) -> Graph:
        """The gradients of every value as a graph, with other options than Caffe2's."""
        last = last_versions(self.graph)
        rules = caffe2_rules(declared_rules(self.case), Findings())
        targets = {last.get(name, name): head for name, head in self.targets.items()}
        return differentiate(
            self.graph,
            targets,
            [value.name for value in self.graph.values if value.type and value.type.dtype == "float32"],
            options=GradientOptions(gradient_rules=rules, **options),
        )


def declared_rules(case: Case) -> dict[str, Any]:
    """Declarations of made-up ops, from `grad_rules` and sentences among `op_semantics`."""
    given, rules = case.get("given", {}), {}
    ops = {op["type"]: op for op in case["ops"]}
    for type, rule in given.get("grad_rules", {}).items():
        op = ops.get(type, {"inputs": [], "outputs": []})
        rules[type] = (
            "none"
            if rule is None
            else {
                "op": f"caffe2::{rule.get('grad_type', type + 'Gradient')}",
                "reads": [_place(word, op) for word in rule["reads"]],
                "writes": _writes(rule["writes"], op),
                "needs_all_incoming": rule.get("requires_all_output_grads", False),
            }
        )
    for type, words in given.get("op_semantics", {}).items():
        match = SPARSE.match(words)
        if match is not None:
            place = f"inputs[{range(len(ops[type]['inputs']))[ORDINALS[match[1]]]}]"
            rules[type] = {
                "op": f"caffe2::{type}Gradient",
                "reads": ["incoming", "inputs"],
                "writes": [{"rows_of": place, "count": 3}],
            }
    return rules


def _writes(words: Any, op: Any) -> Any:
    return "inputs" if words == "all_input_grads" else [_place(word, op) for word in words]


def _place(word: str, op: Any) -> str:
    """A word of a rule, or a blob of the op it stands in, as a declaration says it."""
    for kind in ("inputs", "outputs"):
        if word in op[kind]:
            return f"{kind}[{op[kind].index(word)}]"
    return WORDS.get(word, word)


def check_ops(found: Sequence[GradientOp], expected: Sequence[dict[str, Any]]) -> None:
    """Types, names and attributes are those listed, in that order."""
    assert [(op.type, op.inputs, op.outputs) for op in found] == [
        (op["type"], op["inputs"], op["outputs"]) for op in expected
    ]
    for op, listed in zip(found, expected, strict=True):
        assert {key: op.attributes.get(key) for key in listed["attrs"]} == listed["attrs"]


def check_gradient_ops(run: Structure, expected: list[dict[str, Any]]) -> None:
    check_ops(run.found.ops, expected)


def check_last_ops(run: Structure, expected: list[dict[str, Any]]) -> None:
    check_ops(run.found.ops[-len(expected) :], expected)


def check_map(run: Structure, expected: dict[str, Any]) -> None:
    assert {name: run.found.by_name.get(name) for name in expected} == expected


def check_none_for(run: Structure, names: list[str]) -> None:
    assert not set(names) & run.found.by_name.keys()
    assert set(names) <= {value.name for value in run.graph.values}


def check_some_for(run: Structure, names: list[str]) -> None:
    assert set(names) <= run.found.by_name.keys()


def check_absent_types(run: Structure, types: list[str]) -> None:
    assert all(not run.ops(type) for type in types)
    assert set(types) <= KNOWN_TYPES, "a type the engine would write"


def check_values(run: Structure, expected: dict[str, str]) -> None:
    """Gradients as multiples of a supplied one: "-2*x6_grad"."""
    found = numeric_gradients.numbers_of(run.case, random=True)
    for name, words in expected.items():
        match = re.fullmatch(r"([+-]?)(?:(\d+(?:\.\d+)?)\*)?(\w+)", words)
        assert match is not None, words
        times = float(f"{match[1]}{match[2] or 1}")
        np.testing.assert_allclose(found.gradients[name.removeprefix("grad:")], times * found.contents[match[3]], 1e-6)


KNOWN_TYPES = {"Sum", "Concat", "ConstantFill", "SparseToDense", "Negative", "Copy"}

AREA = Area(
    Structure,
    {
        "gradient_ops": check_gradient_ops,
        "last_gradient_ops": check_last_ops,
        "gradient_map": check_map,
        "no_gradient_for": check_none_for,
        "has_gradient_for": check_some_for,
        "absent_op_types": check_absent_types,
        "values": check_values,
    },
    force=lambda run: run.found,
)
sentence = AREA.sentence
NUMBERS = {"no": 0, "exactly one": 1, "one": 1, "two": 2, "three": 3, "four": 4}


@sentence(r"every generated gradient op carries device (?P<device>\S+) like its forward op")
def every_op_is_on_the_device(run: Structure, words: re.Match[str]) -> None:
    assert run.found.ops and all(op.device == words["device"] for op in run.found.ops)


@sentence(r"(?P<count>exactly one|no) Sum(?: although (?P<blob>\w+) has (?P<readers>\w+) consumers)?")
def so_many_sums(run: Structure, words: re.Match[str]) -> None:
    assert len(run.ops("Sum")) == NUMBERS[words["count"]]
    if words["blob"]:
        readers = [op for op in run.case["ops"] if words["blob"] in op["inputs"]]
        assert len(readers) == NUMBERS[words["readers"]]


@sentence(r"Sum has (?P<count>\w+) operands")
def the_sum_has_so_many_operands(run: Structure, words: re.Match[str]) -> None:
    (op,) = run.ops("Sum")
    assert len(op.inputs) == NUMBERS[words["count"]]


@sentence(r"(?P<sums>\w+) Sums: (?P<counts>\w+ operands(?: then \w+ operands)*)")
def the_sums_have_so_many_operands(run: Structure, words: re.Match[str]) -> None:
    counts = [NUMBERS[part.split()[0]] for part in words["counts"].split(" then ")]
    assert len(counts) == NUMBERS[words["sums"]]
    assert [len(op.inputs) for op in run.ops("Sum")] == counts


@sentence(r"in-place operand of Sum is first")
def the_sum_is_written_over_its_first_operand(run: Structure, words: re.Match[str]) -> None:
    assert all(op.inputs[0] == op.outputs[0] for op in run.ops("Sum") if op.outputs[0] in op.inputs)
    assert any(op.outputs[0] in op.inputs for op in run.ops("Sum"))


@sentence(
    r"the Sum belongs to version (?P<sum>\d+) of '(?P<blob>\w+)', the last op differentiates version (?P<last>\d+)"
)
def the_sum_is_of_the_later_version(run: Structure, words: re.Match[str]) -> None:
    """Versions as the sentence counts them: the blob as it is given is version 1."""
    made = run.found.graph
    versions = run.versions(words["blob"])
    (sum_,) = [node for node in made.nodes if node.phase is Phase.BACKWARD and node.op in ("Add", "Sum")]
    gradient = dict(made.gradients)
    assert gradient[versions[int(words["sum"]) - 1]] == sum_.outputs[0]
    assert gradient[versions[int(words["last"]) - 1]] in made.nodes[-1].outputs


@sentence(r"no error")
def nothing_is_refused(run: Structure, words: re.Match[str]) -> None:
    assert run.found.ops


@sentence(r"gradients exist for (?P<names>\w+(?:, \w+)*(?: and \w+)?)")
def gradients_exist(run: Structure, words: re.Match[str]) -> None:
    assert set(re.split(r", | and ", words["names"])) <= run.found.by_name.keys()


@sentence(r"both gradient ops are flagged as gradient ops")
def gradient_ops_are_backward(run: Structure, words: re.Match[str]) -> None:
    added = run.found.graph.nodes[len(run.graph.nodes) :]
    assert len(run.found.ops) == 2
    assert all(node.phase is Phase.BACKWARD and "gradient_of" in node.annotations for node in added)


@sentence(
    r"the returned map has only '(?P<name>\w+)'(?:: the pre-barrier version of (?P<blob>\w+) has no gradient and the "
    r"post-barrier one is not reported)?"
)
def the_map_has_one_entry(run: Structure, words: re.Match[str]) -> None:
    assert run.found.by_name.keys() == {words["name"]}
    if words["blob"]:
        before, after = run.versions(words["blob"])
        assert before not in dict(run.found.graph.gradients)
        assert after in dict(run.found.graph.gradients)


@sentence(r"order of operands: later consumer first")
def later_consumers_come_first(run: Structure, words: re.Match[str]) -> None:
    place = {name: n for n, op in enumerate(run.case["ops"]) for name in (*op["inputs"], *op["outputs"])}
    for op in run.ops("Concat"):
        order = [place[name.removesuffix("_grad")] for name in op.inputs]
        assert order == sorted(order, reverse=True)


@sentence(r"indices are not deduplicated")
def every_index_stays(run: Structure, words: re.Match[str]) -> None:
    assert {node.op for node in run.found.graph.nodes if node.phase is Phase.BACKWARD} <= {
        "Concat",
        "Expand",
        "caffe2::DotProductGradient",
    }
    indices = run.ops("Concat")[0].inputs
    assert len(indices) == sum(op["type"] == "Gather" for op in run.case["ops"])


@sentence(r"unlike dense accumulation every partial result is renamed, including the first")
def every_part_is_renamed(run: Structure, words: re.Match[str]) -> None:
    concats = run.ops("Concat")
    assert concats and all("_autosplit_" in name for op in concats for name in op.inputs)


@sentence(r"either variant is acceptable; numerically they are identical")
def the_listed_ops_give_the_same(run: Structure, words: re.Match[str]) -> None:
    """The generated ops, run one by one under their names, give the gradients of the graph of values."""
    numbers = numeric_gradients.numbers_of(run.case, random=True)
    at = {**numbers.values, **numbers.contents}
    for op in run.found.ops:
        inputs = [at[name] for name in op.inputs]
        if op.type == "DotProductGradient":
            x, y, incoming = inputs
            made = [y * incoming[:, None], x * incoming[:, None]]
        else:
            made = [{"Sum": sum, "Negative": lambda given: -given[0]}[op.type](inputs)]
        at.update(zip(op.outputs, made, strict=True))
    assert numbers.gradients
    for name, gradient in numbers.gradients.items():
        np.testing.assert_allclose(at[run.found.by_name[name]], gradient, rtol=1e-6)  # type: ignore[index]


@sentence(r"no contribution is lost or counted twice")
def every_contribution_counts_once(run: Structure, words: re.Match[str]) -> None:
    numeric_gradients.agree_with_differences(run.case)


@sentence(r"ordered; gradient names up to consistent renaming")
def names_correspond_one_to_one(run: Structure, words: re.Match[str]) -> None:
    listed = run.case["expected"]["gradient_ops"]
    assert [op.type for op in run.found.ops] == [op["type"] for op in listed]
    pairs = set()
    for op, other in zip(run.found.ops, listed, strict=True):
        pairs.update(zip(op.inputs, other["inputs"], strict=True), zip(op.outputs, other["outputs"], strict=True))
    assert len({name for name, _ in pairs}) == len({name for _, name in pairs}) == len(pairs)


@sentence(r"only the Sum \(second from the end\): operands (?P<operands>\w+ then \w+), result (?P<result>\w+)")
def the_sum_is_second_from_the_end(run: Structure, words: re.Match[str]) -> None:
    op = run.found.ops[-2]
    assert (op.type, op.inputs, op.outputs) == ("Sum", words["operands"].split(" then "), [words["result"]])


@sentence(r"the (version the gradient needs|current version)")
def versions_are_reported(run: Structure, words: re.Match[str]) -> None:
    """The version that the op's gradient needs is the one it writes, the current one is the last."""
    text = str(refusal(lambda: run.found))
    said = re.search(r"'op(\d+)' needs '(\w+)' at version (\d+), it is now at version (\d+)", text)
    assert said is not None, text
    writes = [said[2] in op["outputs"] for op in run.case["ops"]]
    reported = {"version the gradient needs": int(said[3]), "current version": int(said[4])}
    right = {"version the gradient needs": sum(writes[: int(said[1]) + 1]), "current version": sum(writes)}
    assert reported[words[1]] == right[words[1]]


@sentence(r"needs (?P<needs>\w+) inputs, has (?P<has>\w+)")
def the_number_of_inputs_is_reported(run: Structure, words: re.Match[str]) -> None:
    needs, has = NUMBERS[words["needs"]], NUMBERS[words["has"]]
    assert re.search(rf"found {has} inputs of .*, expected {needs}, as", str(refusal(lambda: run.found)))


@sentence(r"Upstream wrote (?P<op>\w+)\((?P<input>\w+), (?P<output>\w+)\) meaning input (\w+), output (\w+)\.")
def the_op_is_refused_by_its_output(run: Structure, words: re.Match[str]) -> None:
    assert (words["input"], words["output"]) == (words[4], words[5])
    (op,) = [op for op in run.case["ops"] if op["type"] == words["op"]]
    assert (op["inputs"], op["outputs"]) == ([words["input"]], [words["output"]])
    assert f"of {words['op']}, which makes '{words['output']}'" in str(refusal(lambda: run.found))


@sentence(
    r"A service with value semantics may instead answer: (?P<blob>\w+)\(v(?P<lost>\d+)\) gets no gradient because "
    r"(?P<same>\w+)\(v(?P<by>\d+)\) overwrote it unread; upstream refuses\."
)
def kept_versions_leave_the_lost_one_out(run: Structure, words: re.Match[str]) -> None:
    assert words["same"] == words["blob"] and int(words["by"]) == int(words["lost"]) + 1
    versions = run.versions(words["blob"])
    lost, by = versions[int(words["lost"])], versions[int(words["by"])]
    found = dict(run.gradients_with(versions="keep").gradients)
    assert not any(lost in node.reads for node in run.graph.nodes)
    assert lost not in found and by in found


@sentence(
    r"Raised while the graph is read, before any gradient is built, and even when the barrier is off the gradient "
    r"path\."
)
def an_unread_barrier_is_refused_without_targets(run: Structure, words: re.Match[str]) -> None:
    refused = refusal(lambda: add_gradient_operators(run.graph, {}, declared_rules(run.case)))
    assert codes(refused) == codes(refusal(lambda: run.found))


@sentence(r"A service may instead densify; then it must say so\.")
def parts_are_densified_on_request_only(run: Structure, words: re.Match[str]) -> None:
    """By default the request is refused, and the message says how to ask; then the gradient is listed as dense."""
    assert '"mixed": "densify"' in str(refusal(lambda: run.found))
    made = run.gradients_with(row_sparse="all", mixed="densify")
    (name,) = run.case["expected"]["error"]["message_should_name"]
    assert name not in made.annotations.get("row_sparse_gradients", {})
    assert made.value_named(name) in dict(made.gradients)
