"""An interrupted solver ends with the result that it has."""

from __future__ import annotations

import threading

import pytest

from planner.bounds.solvers.interruption import interruptible


def test_a_solver_is_interrupted_once_it_should_end():
    ended, polls = threading.Event(), list[bool]()

    def should_end() -> bool:
        polls.append(True)
        return len(polls) > 2

    assert interruptible(lambda: ended.wait(60), ended.set, should_end)
    assert len(polls) > 2


def test_one_that_ends_by_itself_is_not():
    assert interruptible(lambda: 3, pytest.fail, lambda: False) == 3


def test_what_it_raises_is_raised():
    with pytest.raises(TimeoutError, match="its own"):
        interruptible(lambda: (_ for _ in ()).throw(TimeoutError("its own")), pytest.fail, lambda: False)


def test_an_error_of_the_caller_ends_it():
    ended = threading.Event()
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: ended.wait(60), ended.set, lambda: 1 // 0 > 0)
    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("remat-solver")]
