"""Unique names."""

from __future__ import annotations

from graph.ir.names import unique_name


def test_remembered_suffixes_give_the_names_of_a_search_from_the_start():
    taken = {"a", "a/1", "a/3"}
    passed: dict[str, int] = {}
    names: list[str] = []
    for name in ("a", "b", "a", "b", "a/1", "a"):
        free = unique_name(name, taken, passed)
        assert free == unique_name(name, taken) == unique_name(name, taken, passed), "asking takes no name"
        taken.add(free)
        names.append(free)
    assert names == ["a/2", "b", "a/4", "b/1", "a/1/1", "a/5"]
