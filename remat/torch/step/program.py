"""A graph as one Python function, with as little Python around each op as there can be.

    graph     %view = aten.view.default(%x, [8, 128])     %sum = aten.add.Tensor(%view, %y)     return (%sum,)

    program   def program(arguments):
                  v0, v1 = arguments
                  arguments.clear()
                  v2 = c0(v0, c1)          c0, c1: the kernel of the op and [8, 128], looked up once, not at each call
                  del v0
                  v3 = c2(v2, v1)
                  del v1, v2               each value goes after its last reader
                  return (v3,)

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

Program = Callable[[list[Any]], Any]
PLAIN = (bool, int, str, type(None))  # constants that Python code holds as they are


def program_of(graph: fx.GraphModule, function_of: Callable[[Any], Callable[..., Any]]) -> Program:
    """A function of a list of arguments, which it empties, that returns what a graph returns.

    Parameters:
        graph: Calls of functions, arguments and attributes; no calls of modules or methods.
        function_of: What to call for the target of a node, with the same arguments.
    """
    names: dict[fx.Node, str] = {}
    constants: dict[str, Any] = {}
    numbers: dict[int, str] = {}  # id of a constant -> its name; `constants` keeps it alive

    def constant(value: Any) -> str:
        name = numbers.setdefault(id(value), f"c{len(numbers)}")
        constants[name] = value
        return name

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if type(value) in PLAIN:
            return repr(value)
        if not _has_node(value):
            return constant(value)
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {text(item)}' for key, item in value.items())}}}"
        items = "".join(f"{text(item)}, " for item in value)
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"

    lines: list[str] = []
    arguments: list[str] = []
    unread: list[str] = []  # arguments
    freed = _freed(graph)
    for node in graph.graph.nodes:
        if node.op == "output":
            lines.append(f"return {text(node.args[0])}")
            break
        names[node] = f"v{len(names)}"
        if node.op == "placeholder":
            arguments.append(names[node])
            if freed[node]:
                unread.append(names[node])
            continue
        if node.op == "get_attr":
            names[node] = constant(operator.attrgetter(node.target)(graph))
            continue
        assert node.op == "call_function", node.op
        given = [text(each) for each in node.args] + [f"{key}={text(each)}" for key, each in node.kwargs.items()]
        is_element = node.target is operator.getitem
        call = f"{given[0]}[{given[1]}]" if is_element else f"{constant(function_of(node.target))}({', '.join(given)})"
        lines.append(f"{names[node]} = {call}")
        if gone := [names[each] for each in freed[node]]:
            lines.append(f"del {', '.join(gone)}")
    taken = f"{', '.join(arguments)}, = arguments" if arguments else "pass"
    cleared = [f"del {', '.join(unread)}"] if unread else []
    source = "\n    ".join(["def program(arguments):", taken, "arguments.clear()", *cleared, *lines])
    exec(compile(source, "<step under a plan>", "exec"), constants)
    program: Program = constants["program"]
    return program


def _has_node(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_node(item) for item in value.values())
    return isinstance(value, fx.Node) or (isinstance(value, (tuple, list)) and any(_has_node(item) for item in value))


def _freed(graph: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    """For each node the values that nothing reads after it, its own among them if nothing reads it at all."""
    freed: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    seen: set[fx.Node] = set()
    for node in reversed(graph.graph.nodes):
        read = [node] if node.op in ("call_function", "placeholder") else []
        for value in (*read, *node.all_input_nodes):
            if value not in seen and value.op != "get_attr":
                seen.add(value)
                freed[node].append(value)
    return freed
