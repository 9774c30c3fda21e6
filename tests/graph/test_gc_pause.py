"""Records that are made while collections are paused are not visited by the next one."""

from __future__ import annotations

import gc

import pytest

from graph.gc_pause import MANY_RECORDS, gc_paused


@pytest.mark.parametrize(("count", "are_old"), [(MANY_RECORDS, True), (MANY_RECORDS // 4, False)])
def test_many_records_of_a_pause_are_in_the_oldest_generation_and_collections_run_again(
    count: int, are_old: bool
) -> None:
    assert gc.isenabled()
    gc.collect()
    with gc_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(count)]
    assert gc.isenabled() and gc.get_freeze_count() == 0
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
    assert any(id(each) in young for each in made) != are_old


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
