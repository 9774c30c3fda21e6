"""Rules of single values and nodes: sizes, dtypes, constants, costs, recompute options."""

from __future__ import annotations

import math

from graph.errors import Findings, quoted
from graph.ir import DTYPE_BITS, MAX_BYTES, UNKNOWN_COST, Graph, Node, Value

RECOMPUTE_OPTIONS = (None, "allow", "never", "prefer")


def check_values(graph: Graph, where: str, writer: list[int], findings: Findings) -> None:
    """Collect values without a size, sizes above 2^63 - 1, constants of another shape, invalid costs."""
    total = _total_bytes(graph, where, writer, findings)
    sound: set[int] = {id(UNKNOWN_COST)}  # by id(): most costs are shared objects
    reported: set[int] = set()  # workspaces that are too large beside the values
    for n, node in enumerate(graph.nodes):
        cost = node.cost
        if id(cost) not in sound and _cost(node, f"{where}nodes[{n}]", findings):
            sound.add(id(cost))
            workspace = cost.workspace_bytes or 0
            if total <= MAX_BYTES < total + workspace and workspace not in reported:
                reported.add(workspace)
                findings.add(
                    "size_too_large",
                    f"{where}nodes[{n}].cost.workspace_bytes",
                    f"{workspace:,} bytes of {quoted(node.name)} beside values of {total}",
                    f"at most {MAX_BYTES} (2^63 - 1) together",
                    "correct the workspace",
                )
        if node.recompute is not None or node.gradient_reads is not None:
            _node(node, f"{where}nodes[{n}]", findings)


def _total_bytes(graph: Graph, where: str, writer: list[int], findings: Findings) -> int:
    """Bytes of all values of valid size; collects the findings of the others, and of constants of another shape."""
    sizes: dict[int, int] = {}  # by id() of the type: types are shared objects, each is checked once
    total = 0
    for v, value in enumerate(graph.values):
        size = value.bytes
        if value.type is None and size is not None and 0 <= size <= MAX_BYTES:
            total += size
            continue
        is_declared = value.type is None or value.fixed_bytes
        if not is_declared and id(value.type) in sizes:
            total += sizes[id(value.type)]
        elif _value(graph, where, writer, v, value, findings):
            total += value.nbytes
            if not is_declared:
                sizes[id(value.type)] = value.nbytes
        if value.data is not None and value.type is not None and value.data.shape != value.type.shape:
            findings.add(
                "type_conflict",
                f"{_place(graph, where, writer, v)}.data",
                f"data of shape {value.data.shape}",
                f"{value.type}, the declared type of {quoted(value.name)}",
                "correct the shape or the data",
            )
    if total > MAX_BYTES:
        findings.add(
            "size_too_large",
            f"{where}values",
            f"{total:,} bytes in all",
            f"at most {MAX_BYTES} (2^63 - 1)",
            "correct the shapes",
        )
    return total


def _value(graph: Graph, where: str, writer: list[int], v: int, value: Value, findings: Findings) -> bool:
    """True if the value has a valid size."""
    name, faults = quoted(value.name), len(findings)
    path = _place(graph, where, writer, v)
    if value.type is not None:
        if value.type.dtype not in DTYPE_BITS:
            findings.add(
                "unknown_dtype",
                f"{path}.dtype",
                f"{quoted(value.type.dtype)} of {name}",
                "one of " + ", ".join(DTYPE_BITS),
                "use the ONNX name of the element type",
            )
        if any(length < 0 for length in value.type.shape):
            findings.add(
                "negative_size",
                f"{path}.shape",
                f"{list(value.type.shape)} of {name}",
                "lengths of 0 or more",
                "bind unknown dimensions to numbers",
            )
    elif value.bytes is None:
        producer = graph.nodes[writer[v]] if writer[v] >= 0 else None
        why = f", which {producer.op} ({quoted(producer.name)}) does not infer" if producer is not None else ""
        findings.add(
            "unknown_size",
            path,
            f"{name} with neither type nor bytes{why}",
            "shape and dtype, or bytes",
            f"declare shape and dtype, or bytes, of {name} under values",
        )
    if value.bytes is not None and value.bytes < 0:
        findings.add("negative_size", f"{path}.bytes", f"{value.bytes} of {name}", "0 or more", "correct the size")
    if value.fixed_bytes and value.bytes is None:
        findings.add(
            "unknown_size",
            f"{path}.fixed_bytes",
            f"{name} with `fixed_bytes` and without `bytes`",
            "bytes",
            "set `bytes`, or remove `fixed_bytes`",
        )
    if len(findings) == faults and value.nbytes > MAX_BYTES:
        findings.add(
            "size_too_large",
            path,
            f"{name} of {value.nbytes:,} bytes",
            f"at most {MAX_BYTES} (2^63 - 1)",
            "correct the shape",
        )
    return len(findings) == faults


def _cost(node: Node, path: str, findings: Findings) -> bool:
    """True if all amounts of the node's cost are finite numbers from 0 to MAX_BYTES."""
    faults, cost = len(findings), node.cost
    amounts = (cost.seconds, cost.flops, cost.traffic_bytes, cost.workspace_bytes)
    for field, amount in zip(("seconds", "flops", "traffic_bytes", "workspace_bytes"), amounts, strict=True):
        if amount is not None and not (math.isfinite(amount) and 0 <= amount <= MAX_BYTES):
            findings.add(
                "bad_cost",
                f"{path}.cost.{field}",
                f"{amount} of {quoted(node.name)}",
                "a finite number from 0 to 2^63 - 1",
                "correct or remove the cost",
            )
    return len(findings) == faults


def _node(node: Node, path: str, findings: Findings) -> None:
    if node.recompute not in RECOMPUTE_OPTIONS:
        findings.add(
            "unknown_word",
            f"{path}.recompute",
            quoted(str(node.recompute)),
            "allow, never or prefer",
            "use one of these",
        )
    if node.gradient_reads is not None:
        own = {*node.inputs, *node.outputs}
        for i, v in enumerate(node.gradient_reads):
            if v not in own:
                findings.add(
                    "foreign_gradient_read",
                    f"{path}.gradient_reads[{i}]",
                    f"a value that {quoted(node.name)} neither reads nor writes",
                    "an input or output of the node itself",
                    "list only inputs and outputs of this node",
                )


def _place(graph: Graph, where: str, writer: list[int], v: int) -> str:
    """Path of a value in the document: the output that writes it, else its declaration."""
    if writer[v] < 0:
        return f"{where}values[{v}]"
    return f"{where}nodes[{writer[v]}].outputs[{graph.nodes[writer[v]].outputs.index(v)}]"
