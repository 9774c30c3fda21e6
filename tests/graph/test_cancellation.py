"""A pass that takes long hears that nobody waits for it any longer; what heeds nothing goes on."""

from __future__ import annotations

import threading

import pytest

from graph import cancellation
from graph.autodiff.differentiate import differentiate
from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.formats.readers import load
from tests.graph.stopping import document, set_event


def test_checks_pass_until_the_event_and_then_the_spare_ones() -> None:
    stop = threading.Event()
    with cancellation.cancellation_scope(stop, spare=2):
        for _ in range(9):
            cancellation.check_cancelled()
        assert not cancellation.is_cancelled()
        stop.set()
        cancellation.check_cancelled()
        cancellation.check_cancelled()
        assert cancellation.is_cancelled()  # spends none of the spare ones
        with pytest.raises(cancellation.CancellationError):
            cancellation.check_cancelled()
    cancellation.check_cancelled()  # nothing is heeded here
    assert not cancellation.is_cancelled()


def test_none_leaves_what_was_heeded_before() -> None:
    with (
        cancellation.cancellation_scope(set_event()),
        cancellation.cancellation_scope(None),
        pytest.raises(cancellation.CancellationError),
    ):
        cancellation.check_cancelled()


def test_a_thread_is_cancelled_only_by_its_own_scope() -> None:
    heard: list[bool] = []

    def other() -> None:
        cancellation.check_cancelled()
        heard.append(False)

    with cancellation.cancellation_scope(set_event()):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert heard == [False]


def test_what_is_good_as_it_is_stays_so_when_a_stop_comes_first() -> None:
    stop = threading.Event()

    def bettered(n: int) -> int:
        if n == 7:
            stop.set()
        cancellation.check_cancelled()
        return n + 1

    assert cancellation.unless_cancelled(stop, bettered, 1) == 2
    assert cancellation.unless_cancelled(stop, bettered, 7) == 7
    assert cancellation.unless_cancelled(stop, bettered, 1) == 1


def test_reading_hears_a_stop() -> None:
    with cancellation.cancellation_scope(set_event()), pytest.raises(cancellation.CancellationError):
        load(document(3))


def test_differentiation_hears_a_stop_at_the_next_node() -> None:
    #   one ── two ── ... ── loss        the rule of the first node from behind is asked, that of the second is not
    stop, asked = threading.Event(), []

    def told(event: object) -> None:
        asked.append(event)
        stop.set()

    graph = load(document(20))
    with cancellation.cancellation_scope(stop), pytest.raises(cancellation.CancellationError):
        differentiate(graph, ["loss"], callbacks=[told])
    assert asked and len(asked) < 10


def test_a_run_hears_a_stop_at_the_next_node() -> None:
    stop, ran = threading.Event(), []

    def watch(n: int, *_: object) -> None:
        ran.append(n)
        stop.set()

    graph = load(document(3))
    fed = {graph.values[v].name: array for v, array in sample_arrays(graph, 0).items()}
    with cancellation.cancellation_scope(stop), pytest.raises(cancellation.CancellationError):
        execute(graph, fed, watch=watch)
    assert ran == [0]
