"""Names of outer blobs in the nested nets of an op, renamed like the values of the graph.

If(c) {y: relu(x)}      x renamed to q, y to r      If(c) {r: relu(q)}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph.formats.caffe2.proto import net_of
from graph.formats.shared.written_names import WrittenOp

#: Op whose nested nets see outer blobs -> its arguments that list outer blobs by name.
OUTER_NAMES: Mapping[str, tuple[str, ...]] = {
    "If": (),
    "AsyncIf": (),
    "While": (),
    "RecurrentNetwork": ("link_external", "alias_dst"),
}


def rename_nested(operator: Any, op: WrittenOp) -> None:
    """Rename outer blobs in the arguments of an OperatorDef. Raises BadGraph where a new name is taken inside."""
    if op.group.origin.op not in OUTER_NAMES:
        return
    names = op.nested_names()
    if not names:
        return
    used: set[str] = set()
    for argument in operator.arg:
        if argument.name.endswith("_net") and argument.s:  # a net as text
            argument.n.CopyFrom(net_of(argument.s))
            argument.ClearField("s")
        for net in _nets(argument):
            _rename_net(net, names, used)
        if argument.name in OUTER_NAMES[operator.type]:
            argument.strings[:] = [names.get(name.decode(), name.decode()).encode() for name in argument.strings]
    op.refuse_clash(names, used, "nested net")


def _nets(argument: Any) -> Sequence[Any]:
    return [*([argument.n] if argument.HasField("n") else []), *argument.nets]


def _rename_net(net: Any, names: Mapping[str, str], used: set[str]) -> None:
    """Rename blobs of a net and of the nets inside it; blobs that keep their name are added to `used`."""
    for blobs in (net.external_input, net.external_output, *(side for op in net.op for side in (op.input, op.output))):
        used.update(name for name in blobs if name not in names)
        blobs[:] = [names.get(name, name) for name in blobs]
    for op in net.op:
        for argument in op.arg:
            for inner in _nets(argument):
                _rename_net(inner, names, used)
