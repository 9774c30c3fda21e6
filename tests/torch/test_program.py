"""Graphs as Python functions: the same results as FX computes, and values that go after their last reader."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402

from remat.torch.step.aot import run_as_it_is  # noqa: E402
from remat.torch.step.program import program_of  # noqa: E402

aten = torch.ops.aten


def graph_with_every_kind_of_argument() -> fx.GraphModule:
    root = torch.nn.Module()
    root.register_buffer("kept", torch.arange(4.0))
    graph = fx.Graph()
    x, unread = graph.placeholder("x"), graph.placeholder("unread")
    joined = graph.call_function(aten.cat.default, ([x, graph.get_attr("kept")], 0))
    viewed = graph.call_function(aten.view.default, (joined, [2, -1]))
    both = graph.call_function(aten.topk.default, (viewed, 2), {"dim": 1, "largest": False})
    graph.call_function(aten.neg.default, (unread,))
    typed = graph.call_function(aten._to_copy.default, (viewed,), {"dtype": torch.float64})
    scaled = graph.call_function(aten.add.Tensor, (typed, float("inf")))
    chosen = graph.call_function(aten.index.Tensor, (viewed, [None, graph.call_function(operator.getitem, (both, 1))]))
    graph.output((graph.call_function(operator.getitem, (both, 0)), None, scaled, chosen))
    return fx.GraphModule(root, graph)


def test_a_program_returns_what_fx_computes_and_empties_its_arguments() -> None:
    graph = graph_with_every_kind_of_argument()
    given: list[Any] = [torch.randn(4), torch.randn(2)]
    expected = graph(*given)
    found = run_as_it_is(graph, ())(given)
    assert given == []
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_value_goes_after_its_last_reader() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def made_of(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(each() is not None for each in made))
        result = x + 1
        made.append(weakref.ref(result))
        return result

    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(4):
        node = graph.call_function(made_of, (node,))
    graph.output((node,))
    program_of(fx.GraphModule(torch.nn.Module(), graph), lambda target: target)([torch.ones(2)])
    assert alive == [0, 1, 1, 1]


def test_kernels_of_others_may_use_autograd() -> None:
    """Ops of other libraries run with autograd's kernels, PyTorch's own without."""
    with torch.library._scoped_library("remat_test_program", "DEF") as library:
        library.define("slope(Tensor x) -> Tensor")

        def slope(x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                return torch.autograd.grad((inner**2).sum(), inner)[0]

        library.impl("slope", slope, "CPU")
        graph = fx.Graph()
        graph.output((graph.call_function(torch.ops.remat_test_program.slope.default, (graph.placeholder("x"),)),))
        (found,) = run_as_it_is(fx.GraphModule(torch.nn.Module(), graph), ())([torch.ones(3)])
    assert torch.equal(found, torch.full((3,), 2.0))


def test_an_argument_that_nothing_reads_is_freed_before_the_first_op() -> None:
    graph = fx.Graph()
    x, _ = graph.placeholder("x"), graph.placeholder("unread")
    freed: list[bool] = []
    graph.output(graph.call_function(aten.neg.default, (x,)))
    unread = torch.zeros(3)
    alive = weakref.ref(unread)
    given = [torch.ones(2), unread]
    del unread

    def noted(value: torch.Tensor) -> torch.Tensor:
        freed.append(alive() is None)
        return -value

    program_of(fx.GraphModule(torch.nn.Module(), graph), lambda _: noted)(given)
    assert freed == [True]
