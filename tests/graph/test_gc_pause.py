"""Records that are made while collections are paused are not visited by the next one."""

from __future__ import annotations

import gc

from graph.gc_pause import gc_paused


def test_records_of_a_pause_are_in_the_oldest_generation_and_collections_run_again() -> None:
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(20_000)]
    assert gc.isenabled() and gc.get_freeze_count() == 0
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
    assert not any(id(each) in young for each in made)


def test_frozen_objects_of_others_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused():
            pass
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()


def test_a_pause_inside_of_a_pause_enables_nothing() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
