"""What is written about the instances agrees with itself."""

from __future__ import annotations

import csv
import json

import pytest

from bench import catalogue, run, table, targets
from bench.catalogue import FOLDER, PUBLISHED, Instance, find_published, instances, published_folder, read_published
from bench.generators import published_like


@pytest.mark.parametrize("instance", instances(), ids=lambda instance: instance.name)
def test_the_best_known_schedule_is_never_below_the_proven_bound(instance):
    assert instance.budgets
    for budget in instance.budgets:
        best, bound = instance.best_known(budget), instance.bound(budget)
        assert bound is not None and bound >= 0
        assert best is None or best >= bound


@pytest.mark.parametrize("name", ["chain40", "vgg16_b32", "unet_b4", "layered_n100_s1", "layered_n250_s2"])
def test_the_peak_without_recomputation_is_the_one_written_down(name):
    instance = Instance(name)
    row = run.scored(instance, "0.50", "as_given", 0, 1.0, "given")
    assert row["peak_bytes"] == instance.baseline_peak_bytes
    assert row["budget_bytes"] == -(-instance.baseline_peak_bytes // 2)


def folder_with(folder, name, nodes):
    """A folder with a graph drawn like the published one, under the name of a published graph."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(published_like(nodes)))
    return folder


def test_a_published_graph_in_the_folder_gets_its_rows_and_the_others_are_named_as_skipped(tmp_path):
    folder = folder_with(tmp_path, "layered_n250", 250)
    found = find_published(folder)
    rows = [target for target in targets.targets(found) if target.goal.startswith("published")]
    assert {target.case for target in rows} == {"250 nodes, 0.9", "250 nodes, 0.8", "250 nodes, 0.7"}
    message = table.skipped(folder, found)
    assert "layered_n250" not in message
    assert all(name in message for name in PUBLISHED if name != "layered_n250")


def test_without_the_folder_the_message_names_source_licence_and_remedy_and_no_row_is_published(tmp_path):
    folder = tmp_path / "missing"
    assert find_published(folder) == {}
    message = table.skipped(folder, {})
    assert str(folder) in message
    assert all(text in message for text in ("Moccasin", "Checkmate", "GPL-3", "--published", "REMAT_PUBLISHED"))
    assert not [target for target in targets.targets() if target.goal.startswith("published")]


def test_an_option_precedes_the_environment_which_precedes_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("REMAT_PUBLISHED", raising=False)
    assert published_folder() == catalogue.PUBLISHED_DEFAULT
    monkeypatch.setenv("REMAT_PUBLISHED", str(tmp_path))
    assert published_folder() == tmp_path
    assert published_folder(tmp_path / "named") == tmp_path / "named"


def test_a_graph_of_another_size_is_not_taken_for_the_published_one(tmp_path):
    path = folder_with(tmp_path, "layered_n250", 250) / "layered_n250.json"
    assert json.loads(read_published(path))["format"] == "remat/1"
    path = folder_with(tmp_path, "layered_n500", 250) / "layered_n500.json"
    with pytest.raises(ValueError, match="250 nodes and 944 reads; the published graph has"):
        read_published(path)


@pytest.mark.parametrize("path", sorted((FOLDER / "layout").glob("*.csv")), ids=lambda path: path.stem)
def test_a_layout_instance_needs_no_more_at_once_than_its_capacity(path):
    rows = [{key: int(x) for key, x in row.items()} for row in csv.DictReader(path.open())]
    changes = sorted([(row["lower"], row["size"]) for row in rows] + [(row["upper"], -row["size"]) for row in rows])
    live, most = 0, 0
    for _, change in changes:
        live += change
        most = max(most, live)
    assert most <= int(path.stem.partition(".")[2])
