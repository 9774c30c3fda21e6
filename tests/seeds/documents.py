"""Mirroring cases of the original project as `remat/1` documents.

Ops we have are written as ours; every other one is opaque, with the reads of its gradient declared.
Sizes a case leaves out are one element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Case = dict[str, Any]

#: Ops that mean the same here: name -> (our op, {attribute: our attribute}).
OURS = {"transpose": ("Transpose", {"axes": "perm"})}

#: What the words of `backward_reads` stand for: ("inputs" or "outputs", position); incoming gradients are always read.
PLACES = {
    "data": ("inputs", 0),
    "lhs": ("inputs", 0),
    "weight": ("inputs", 1),
    "rhs": ("inputs", 1),
    "output": ("outputs", 0),
    "mask": ("outputs", 1),
}
INCOMING = ("out_grad", "out_grads")
#: How the original is set up in every case; a case with another setting is not one of these.
SETTINGS = {"head_gradient_reads_target_storage": False, "graph_inputs_and_parameters_count_as_releasable": True}
PLANNING_ATTRIBUTES = ("force_mirroring", "control_deps")


def document(case: Case, heads: Mapping[str, list[int]] = MappingProxyType({})) -> dict[str, Any]:
    """The forward part of the case; its targets are the outputs. `heads` are further inputs with their shapes."""
    assert all(case["given"].get(name, setting) == setting for name, setting in SETTINGS.items())
    produced = {name: op for op in case["ops"] for name in op["outputs"]}
    names = dict.fromkeys(name for op in case["ops"] for name in (*op["inputs"], *op["outputs"]))
    shapes = {**_shapes(case), **heads}
    values: list[dict[str, Any]] = []
    for name in (*names, *heads):
        op = produced.get(name)
        if op is None or op["type"] not in OURS:  # types of what our ops make are inferred
            values.append(
                {
                    "name": name,
                    "shape": shapes.get(name, [1]),
                    "dtype": case["given"].get("dtype", "float32"),
                    "role": "input" if op is None else "activation",
                }
            )
    return {
        "format": "remat/1",
        "name": case["id"],
        "values": values,
        "nodes": [node(case, op, {name: node_name(op) for name, op in produced.items()}) for op in case["ops"]],
        "outputs": list(case["wanted_gradients"]["targets"]),
    }


def node_name(op: dict[str, Any]) -> str:
    return f"op/{op['outputs'][0]}"


def node(case: Case, op: dict[str, Any], produced: dict[str, str]) -> dict[str, Any]:
    """One op of the case; `produced` names the node behind each value."""
    attributes = {k: v for k, v in op["attrs"].items() if k not in PLANNING_ATTRIBUTES}
    result = {"name": node_name(op), "inputs": op["inputs"], "outputs": op["outputs"]}
    result["after"] = [produced[waited] for waited in op["attrs"].get("control_deps", [])]
    if op["type"] in OURS:
        name, renamed = OURS[op["type"]]
        return {**result, "op": name, "attributes": {renamed.get(k, k): v for k, v in attributes.items()}}
    forced = op["attrs"].get("force_mirroring")
    return {
        **result,
        "op": f"mxnet::{op['type']}",
        "attributes": attributes,
        "gradient_reads": gradient_reads(case, op),
        "heavy": op["type"] in listed(case, "heavy"),
        "effect": "random" if op["type"] in listed(case, "never") else "pure",
        "recompute": {None: "allow", True: "prefer", False: "never"}[forced],
    }


def listed(case: Case, kind: str) -> set[str]:
    """Op types the case calls "heavy" (not re-run unless forced) or "never" re-run."""
    said = [re.fullmatch(r"(\w+)( \(never.*\))?", name) for name in case["given"].get("not_mirrorable", [])]
    return {match[1] for match in said if match is not None and bool(match[2]) == (kind == "never")}


def gradient_reads(case: Case, op: dict[str, Any]) -> list[str]:
    """Values among the op's own that its gradient reads, as `backward_reads` or a rule in words declares."""
    rule = gradient_steps(case).get(op["type"])
    if rule is not None:
        words = list(dict.fromkeys(word for reads in rule for word in reads if word in PLACES))
    else:
        words = [word for word in _declared(case, op) if word not in INCOMING]
    return [op[PLACES[word][0]][PLACES[word][1]] for word in words]


def gradient_steps(case: Case) -> dict[str, list[list[str]]]:
    """Op type -> per step of its gradient what it reads: "incoming", a word of `PLACES`, or "gN", an earlier step.

    Rules in words name each step's reads in parentheses: "first op g1 = f(incoming, data); second op ...".
    """
    rules = case["given"].get("grad_rules", {})
    return {
        op: [[word.strip() for word in reads.split(",")] for reads in re.findall(r"\(([^)]*)\)", words)]
        for op, words in rules.items()
    }


def _declared(case: Case, op: dict[str, Any]) -> list[str]:
    for key, words in case["given"]["backward_reads"].items():
        match = re.fullmatch(r"(\w+)(?:\((.*)\))?", key)
        assert match is not None, key
        kinds = match[2].split("|") if match[2] else []
        if match[1] == op["type"] and (not kinds or op["attrs"]["act_type"] in kinds):
            return list(words)
    raise AssertionError(f"{case['id']} says nothing of what the gradient of {op['type']} reads")


def _shapes(case: Case) -> dict[str, list[int]]:
    """Shape per value; "g0..g3" is a range, "all others" is every value not named."""
    given = case["given"]["shapes"]
    outputs = [name for op in case["ops"] for name in (*op["inputs"], *op["outputs"])]
    shapes = dict.fromkeys(outputs, given["all others"]) if "all others" in given else {}
    for name, shape in given.items():
        span = re.fullmatch(r"(\D+)(\d+)\.\.\1(\d+)", name)
        if span is not None:
            shapes |= {f"{span[1]}{i}": shape for i in range(int(span[2]), int(span[3]) + 1)}
        elif name != "all others":
            shapes[name] = shape
    return shapes


def first_target_only(case: Case) -> Case:
    """The case asked for its first target only, without the ops that do not reach it."""
    target, head = next(iter(case["wanted_gradients"]["targets"].items()))
    needed, ops = {target}, []
    for op in reversed(case["ops"]):
        if needed.intersection(op["outputs"]):
            needed.update(op["inputs"], op["attrs"].get("control_deps", []))
            ops.insert(0, op)
    return {**case, "ops": ops, "wanted_gradients": {**case["wanted_gradients"], "targets": {target: head}}}
