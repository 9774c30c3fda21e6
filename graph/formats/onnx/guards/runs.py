"""Runs of nodes that go behind one guard, chosen so that guards hold no large value longer than the nodes do.

    x ──▶ [Sub ──▶ Mul ──▶ Relu] ──▶ y           x is held until the Relu has run; y from before the Sub
    x ──▶ [Sub] ──▶ [Mul] ──▶ [Relu] ──▶ y       each is freed after its last read

ONNX Runtime frees what a branch reads once the whole branch has run, and allocates results of known shapes before it.
So a run ends with the last read of a large value from before it, and only its first node writes a large result. Views
of large values have no guard: a branch would copy them, and a view that is merged with another takes no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

_LARGE_BYTES = 64 * 1024  # smaller values are not worth a guard of their own
#: Ops whose output is their input's bytes in ONNX Runtime.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def guarded_runs(
    graph: GraphProto, repeated: Sequence[bool], infos: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[Sequence[NodeProto], bool]]:
    """(nodes, whether they are repeats that go behind one guard), in the order of the graph; the others one by one.

    `infos` are types of values by name. A run does not end where a value of unknown type is live, since a branch
    declares the types of its results.
    """
    nodes = list(graph.node)
    root = _roots(nodes)
    writer = {name: place for place, node in enumerate(nodes) for name in node.output}
    read_last = {name: place for place, node in enumerate(nodes) for name in reads(node)}
    unknown = [name for name in writer if name not in infos and name in read_last]
    closed = {place for name in unknown for place in range(writer[name] + 1, read_last[name] + 1)}
    freed_at: dict[str, int] = {}  # large values -> the node after which they are freed
    for name, place in [*read_last.items(), *((info.name, len(nodes)) for info in graph.output)]:
        owner = root.get(name, name)
        freed_at[owner] = max(place, freed_at.get(owner, 0))
    large = {name for name in writer if _bytes(infos, name) >= _LARGE_BYTES}

    def owners(names: Iterable[str]) -> set[str]:
        return large.intersection(root.get(name, name) for name in names)

    def is_behind(place: int) -> bool:
        is_large_view = _is_view(nodes[place]) and nodes[place].output[0] in large
        return repeated[place] and not (is_large_view and closed.isdisjoint((place, place + 1)))

    def run_from(start: int) -> int:
        """Where the longest run from `start` ends."""
        found, frees = 0, False
        held = 0  # the last read of large values that its later nodes write
        for end in range(start + 1, len(nodes) + 1):
            place = end - 1
            if place > start:
                held = max(held, *(freed_at.get(name, 0) for name in owners(nodes[place].output)), 0)
            if end not in closed and (held < end or not found):
                found = end
            frees |= any(freed_at[name] == place and writer[name] < start for name in owners(reads(nodes[place])))
            if found and (frees or held >= len(nodes) or end == len(nodes) or not is_behind(end)):
                break
        return found

    start = 0
    while start < len(nodes):
        end = run_from(start) if is_behind(start) else start + 1
        yield nodes[start:end], is_behind(start)
        start = end


def reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, graphs inside of it included; those may be names of their own."""
    yield from filter(None, node.input)
    for body in bodies(node):
        for inner in body.node:
            yield from reads(inner)
        yield from (info.name for info in body.output)


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside of a node."""
    return [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs) if body.node]


def _is_view(node: NodeProto) -> bool:
    return node.op_type in _VIEWS and not node.domain


def _roots(nodes: Sequence[NodeProto]) -> dict[str, str]:
    """Views -> the value that owns their bytes."""
    root: dict[str, str] = {}
    for node in nodes:
        if _is_view(node):
            root[node.output[0]] = root.get(node.input[0], node.input[0])
    return root


def _bytes(infos: Mapping[str, ValueInfoProto], name: str) -> int:
    """Bytes of a tensor of known shape; 0 for others."""
    info = infos.get(name)
    if info is None or info.type.tensor_type.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 0
    tensor = info.type.tensor_type
    elements = 1
    for dimension in tensor.shape.dim:
        elements *= dimension.dim_value
    return elements * int(helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)
