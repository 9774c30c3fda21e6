"""Generated pages are current, and commands of hand-written pages print the output that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import generate


@pytest.mark.parametrize("path", generate.GENERATED, ids=lambda path: path.name)
def test_a_generated_file_is_current(path: Path) -> None:
    assert path.read_text() == generate.GENERATED[path](), "run: python -m docs.generate"


@pytest.mark.heavy
@pytest.mark.parametrize("path", generate.pages_with_commands(), ids=lambda path: path.name)
def test_commands_print_the_output_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "PICTURES", tmp_path)
    assert generate.captured(path) == path.read_text(), "run: python -m docs.generate --run"
    for picture in tmp_path.glob("*.svg"):
        assert picture.read_text() == (generate.DOCS / "pictures" / picture.name).read_text()


def test_check_fails_and_names_a_page_that_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "GENERATED", {tmp_path / "reference" / "one.md": lambda: "new\n"})
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "out of date: reference/one.md\n"
    assert generate.main([]) == 0
    assert (tmp_path / "reference" / "one.md").read_text() == "new\n"
    assert generate.main(["--check"]) == 0


def test_a_console_block_gets_the_output_of_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "PICTURES", tmp_path / "pictures")
    page = tmp_path / "page.md"
    page.write_text("a\n```console\n$ echo x > y.svg\n$ cat y.svg\nold\n```\nb\n```console\n$ cat y.svg\n```\n")
    expected = "a\n```console\n$ echo x > y.svg\n$ cat y.svg\nx\n```\nb\n```console\n$ cat y.svg\nx\n```\n"
    assert generate.captured(page) == expected
    assert (tmp_path / "pictures" / "y.svg").read_text() == "x\n"


def test_cells_of_a_table_hold_any_text() -> None:
    assert generate.table(["a"], [["x|y\n z"]]) == "| a |\n| --- |\n| x\\|y z |"
    assert generate.table(["a"], []) == ""
