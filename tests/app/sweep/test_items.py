"""What a batch is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import BadUsage
from app.sweep.items import expand_items, find_models
from app.zoo.manifest import Manifest, ManifestModel, encode_manifest, sha256
from planner.errors import BadRequest


def test_models_are_those_of_a_folder_a_file_or_a_pattern(folder: Path) -> None:
    assert [model.name for model in find_models(folder)] == ["one", "two"]
    assert [model.name for model in find_models(folder / "two.json")] == ["two"]
    assert [model.name for model in find_models(f"{folder}/o*.json")] == ["one"]
    assert all(Path(model.file).is_absolute() for model in find_models(folder))
    with pytest.raises(BadUsage, match="no models found"):
        find_models(f"{folder}/*.onnx")


def test_files_of_one_stem_keep_their_places_in_their_names(folder: Path) -> None:
    (folder / "one.onnx").write_bytes(b"")
    names = [model.name for model in find_models(folder)]
    assert names == [str(folder / "one.json"), str(folder / "one.onnx"), "two"]


def test_a_manifest_in_a_folder_says_which_models_and_sizes(folder: Path) -> None:
    listed = ManifestModel("first", "one.json", batches=(2, 4), dims={"n": 3}, loss="l")
    (folder / "manifest.json").write_bytes(encode_manifest(Manifest((listed,))))
    for named in (folder, folder / "manifest.json"):
        models = find_models(named)
        assert [(model.name, model.file) for model in models] == [("first", str(folder / "one.json"))]
        items = expand_items(models, ["50%"], fields={"device": "h100-80gb"})
        assert [item.fields["batch"] for item in items] == [2, 4]
        assert items[0].fields["dims"] == {"n": 3} and items[0].fields["loss"] == "l"
    assert [item.fields["batch"] for item in expand_items(models, ["50%"], batches=[7])] == [7]


def test_every_combination_is_an_item_with_a_key_of_its_own(folder: Path) -> None:
    items = expand_items(find_models(folder), ["90%", "8GiB"], ["auto", "greedy"], [0, 1], [1, 2])
    assert len(items) == len({item.key for item in items}) == 32
    again = expand_items(find_models(folder), ["90%", "8GiB"], ["auto", "greedy"], [0, 1], [1, 2])
    assert [item.key for item in again] == [item.key for item in items]


def test_a_key_is_of_the_content_and_the_question(folder: Path) -> None:
    def key(**fields: object) -> str:
        return expand_items(find_models(folder / "one.json"), ["50%"], fields=fields)[0].key

    before = key()
    assert key(iterations=5) != before
    (folder / "one.json").write_text((folder / "one.json").read_text() + " ")
    assert key() != before


@pytest.mark.parametrize("fields", [{"batch": 3}, {"seed": 1}, {"iterations": 0}, {"nonsense": 1}])
def test_a_bad_field_is_told_before_anything_begins(folder: Path, fields: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        expand_items(find_models(folder), ["50%"], fields=fields)


def test_what_means_the_same_twice_is_told(folder: Path) -> None:
    with pytest.raises(BadRequest) as told:
        expand_items(find_models(folder), ["50%", "50.0%"], seeds=[1, 1], batches=[4, 4])
    assert [finding.path for finding in told.value.findings] == ["budgets[1]", "seeds[1]", "batch_sizes[1]"]


def test_a_file_that_is_not_the_manifests_is_told(folder: Path) -> None:
    model = ManifestModel("one", str(folder / "one.json"), sha256(b"another"))
    with pytest.raises(BadUsage, match="hash differs from the manifest"):
        expand_items([model], ["50%"])


def test_a_manifest_names_no_two_models_alike(folder: Path) -> None:
    twice = Manifest((ManifestModel("net", "one.json"), ManifestModel("net", "two.json")))
    (folder / "manifest.json").write_bytes(encode_manifest(twice))
    with pytest.raises(BadUsage, match="2 models are called 'net'"):
        find_models(folder)


def test_a_batch_of_nothing_is_told(folder: Path) -> None:
    with pytest.raises(BadUsage, match="0 plans"):
        expand_items(find_models(folder), [])
