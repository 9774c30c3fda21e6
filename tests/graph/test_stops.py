"""A pass that takes long hears that nobody waits for it any longer; what heeds nothing goes on."""

from __future__ import annotations

import threading

import pytest

from graph import stops
from graph.autodiff import differentiate
from graph.execute import execute
from graph.feeds import drawn
from graph.importers import load
from tests.graph.stopping import document, set_event


def test_checks_pass_until_the_event_and_then_the_spare_ones() -> None:
    stop = threading.Event()
    with stops.heeding(stop, spare=2):
        for _ in range(9):
            stops.check()
        stop.set()
        stops.check()
        stops.check()
        with pytest.raises(stops.Stopped):
            stops.check()
    stops.check()  # nothing is heeded here


def test_none_leaves_what_was_heeded_before() -> None:
    with stops.heeding(set_event()), stops.heeding(None), pytest.raises(stops.Stopped):
        stops.check()


def test_a_thread_heeds_only_what_it_was_told_to() -> None:
    heard: list[bool] = []

    def other() -> None:
        stops.check()
        heard.append(False)

    with stops.heeding(set_event()):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert heard == [False]


def test_what_is_good_as_it_is_stays_so_when_a_stop_comes_first() -> None:
    stop = threading.Event()

    def bettered(n: int) -> int:
        if n == 7:
            stop.set()
        stops.check()
        return n + 1

    assert stops.unless_stopped(stop, bettered, 1) == 2
    assert stops.unless_stopped(stop, bettered, 7) == 7
    assert stops.unless_stopped(stop, bettered, 1) == 1


def test_reading_hears_a_stop() -> None:
    with stops.heeding(set_event()), pytest.raises(stops.Stopped):
        load(document(3))


def test_differentiation_hears_a_stop_at_the_next_node() -> None:
    #   one ── two ── ... ── loss        the rule of the first node from behind is asked, that of the second is not
    stop, asked = threading.Event(), []

    def told(event: object) -> None:
        asked.append(event)
        stop.set()

    graph = load(document(20))
    with stops.heeding(stop), pytest.raises(stops.Stopped):
        differentiate(graph, ["loss"], callbacks=[told])
    assert asked and len(asked) < 10


def test_a_run_hears_a_stop_at_the_next_node() -> None:
    stop, ran = threading.Event(), []

    def watch(n: int, *_: object) -> None:
        ran.append(n)
        stop.set()

    graph = load(document(3))
    fed = {graph.values[v].name: array for v, array in drawn(graph, 0).items()}
    with stops.heeding(stop), pytest.raises(stops.Stopped):
        execute(graph, fed, watch=watch)
    assert ran == [0]
