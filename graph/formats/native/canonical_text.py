"""Canonical bytes of a graph, written without a record for each row that has few fields.

The bytes are those of the records of `write.py` in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from graph.formats.native.write import PHASE_WORDS, DocumentNames, cost_row, is_plain, node_row, rows_around, value_row
from graph.ir import UNKNOWN_COST, Graph, Role

_ENCODER = msgspec.json.Encoder(order="deterministic")


def canonical(graph: Graph) -> bytes:
    """Canonical bytes of the graph: rows in JSON, fields in schema order, all other keys sorted."""
    names = DocumentNames(graph, anonymous=False)
    document = rows_around(graph, names, values=_list(_values(names)), nodes=_list(_nodes(names)))
    return _ENCODER.encode(document)


def _list(rows: Iterable[str]) -> msgspec.Raw:
    """JSON of a list of rows in JSON."""
    return msgspec.Raw(f"[{','.join(rows)}]".encode())


def _quoted(names: list[str]) -> list[str]:
    """Each string in JSON, which holds no line break."""
    return _ENCODER.encode_lines(names).decode().split("\n")[: len(names)]


def _values(names: DocumentNames) -> Iterator[str]:
    """The rows of all values; most have a name and bytes only."""
    activation = Role.ACTIVATION
    for v, (value, name) in enumerate(zip(names.graph.values, _quoted(names.values), strict=False)):
        is_small = value.type is None and value.role is activation and value.data is None and not value.annotations
        if is_small and not value.fixed_bytes and not value.stop_gradient and value.bytes is not None:
            yield f'{{"name":{name},"bytes":{value.bytes}}}'
        else:
            yield _ENCODER.encode(value_row(names, v, value)).decode()


def _nodes(names: DocumentNames) -> Iterator[str]:
    """The rows of all nodes; most have a name, an op, ids, a phase, a cost and `heavy` only."""
    phases = ["", *(f',"phase":"{word}"' for word in PHASE_WORDS[1:])]
    heavy = {None: "", True: ',"heavy":true', False: ',"heavy":false'}
    costs, ops = {id(UNKNOWN_COST): ""}, dict[str, str]()  # costs by id(): they are shared objects
    values, nodes = _quoted(names.values), names.graph.nodes
    for n, (node, name) in enumerate(zip(nodes, _quoted(names.nodes), strict=True)):
        if not is_plain(node):
            yield _ENCODER.encode(node_row(names, n, node)).decode()
            continue
        op, cost = ops.get(node.op), costs.get(id(node.cost))
        if op is None:
            op = ops[node.op] = _ENCODER.encode(node.op).decode()
        if cost is None:
            row = cost_row(node.cost)
            cost = costs[id(node.cost)] = "" if row is None else f',"cost":{_ENCODER.encode(row).decode()}'
        inputs = ",".join([values[v] for v in node.inputs])
        outputs = ",".join([values[v] for v in node.outputs])
        rest = f"{phases[node.phase]}{cost}{heavy[node.heavy]}"
        yield f'{{"name":{name},"op":{op},"inputs":[{inputs}],"outputs":[{outputs}]{rest}}}'
