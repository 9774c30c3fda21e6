"""What is written about the instances agrees with itself."""

from __future__ import annotations

import csv

import pytest

from bench import run
from bench.catalogue import FOLDER, Instance, instances, published
from graph.formats.readers import load
from planner.formulation.formulate import question_of
from planner.request.plan_request import parse_request


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


@pytest.mark.parametrize(
    ("name", "nodes", "reads", "peak"),
    [
        ("layered_n250", 250, 944, 146_840), ("layered_n500", 500, 2461, 284_439),
        ("layered_n1000", 1000, 5875, 608_619),
        ("fcn8_b32", 73, 149, 13_484_795_520), ("resnet50_b256", 353, 751, 38_059_356_160),
    ],
)  # fmt: skip
def test_a_published_graph_has_the_size_and_the_peak_of_its_authors(name, nodes, reads, peak):
    question = question_of(load(published(name)), parse_request({}))
    problem = question.lowered.problem
    assert (problem.tasks, len(problem.reads.index)) == (nodes, reads)
    assert question.baseline.score.peak_bytes == peak


@pytest.mark.parametrize("path", sorted((FOLDER / "layout").glob("*.csv")), ids=lambda path: path.stem)
def test_a_layout_instance_needs_no_more_at_once_than_its_capacity(path):
    rows = [{key: int(x) for key, x in row.items()} for row in csv.DictReader(path.open())]
    changes = sorted(
        [(row["lower"], row["size"]) for row in rows] + [(row["upper"], -row["size"]) for row in rows]
    )  # fmt: skip
    live, most = 0, 0
    for _, change in changes:
        live += change
        most = max(most, live)
    assert most <= int(path.stem.partition(".")[2])
