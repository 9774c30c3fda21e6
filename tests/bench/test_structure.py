"""The structure report counts what its definitions say, on small sources and against ruff."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import structure
from bench.source_text import complexity, dialect, read_source

ROOT = Path(__file__).resolve().parents[2]


def checkout(folder: Path, files: dict[str, str]) -> Path:
    """A folder with these files; roots and packages get an empty `__init__`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
        (folder / name.partition("/")[0] / "__init__.py").touch()
    return folder


def test_blank_lines_comments_and_docstrings_are_not_code(tmp_path):
    text = '"""Module,\nof two lines."""\n\n# comment\ntable = """a\n\nb"""\n\n\n'
    text += 'def f():\n    """One."""\n    return 1  # why\n'
    file = read_source(checkout(tmp_path, {"app/a.py": text}) / "app/a.py", tmp_path)
    assert file.code_lines == 5, "three of the string that is a value, the def, the return"
    assert len(file.line_lengths) == 12


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 1", 1),
        ("if x:\n  pass\n elif y:\n  pass\n else:\n  pass", 3),
        ("return [a for a in x if a if b]", 4),
        ("return (x and y and z) if x else w", 4),
        ("try:\n  pass\n except A:\n  pass\n else:\n  pass", 3),
        ("match x:\n  case 1:\n   pass\n  case _:\n   pass", 2),
    ],
)
def test_complexity_counts_branches_operators_and_comprehensions(body, expected):
    function = ast.parse(f"def f(x):\n {body}").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert complexity(function) == expected


def test_c901_is_the_number_that_ruff_reports():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "C901", "--output-format", "json"]
    options = ["--config", "lint.mccabe.max-complexity=4", "--ignore-noqa", "remat", "bench"]
    rows = json.loads(subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True).stdout)
    expected = {
        (str(Path(row["filename"]).relative_to(ROOT)), row["location"]["row"]): int(
            re.search(r"\((\d+) > 4\)", row["message"]).group(1)
        )
        for row in rows
    }
    files = [read_source(path, ROOT) for folder in ("remat", "bench") for path in (ROOT / folder).rglob("*.py")]
    functions = [(file.path, function) for file in files for function in file.functions if function.c901 > 4]
    assert {(path, int(row.place.partition(" ")[0].partition(":")[2])): row.c901 for path, row in functions} == expected


def test_dialect_is_found_in_identifiers_and_counted_once():
    assert dialect(["was told", "made again", "run it again"]) == {"told": 1, "made/run again": 1, "again": 1}
    assert dialect(["MOST NODES", "at the most 3", "masked", "proposed"]) == {"MOST_/LEAST_": 1}


def test_words_of_identifiers_comments_and_docstrings_count_and_other_strings_do_not(tmp_path):
    text = '"""What is told."""\n\n\ndef asked_of(MOST_STEPS):  # again\n    return "nobody"\n'
    file = read_source(checkout(tmp_path, {"app/a.py": text}) / "app/a.py", tmp_path)
    assert file.dialect == {"told": 1, "asked": 1, "MOST_/LEAST_": 1, "again": 1}


def test_a_local_import_needs_a_comment_that_is_no_directive(tmp_path):
    text = "def f():\n    # heavy, rarely needed\n    import a\n    import b\n\n    import c  # noqa: F401\n"
    file = read_source(checkout(tmp_path, {"app/a.py": text}) / "app/a.py", tmp_path)
    assert file.local_imports == (("app/a.py:3", True), ("app/a.py:4", True), ("app/a.py:6", False))


def test_one_comment_gives_the_reason_of_all_local_imports_of_a_module(tmp_path):
    text = "# Imports inside functions: heavy.\n\n\ndef f():\n    import a\n"
    file = read_source(checkout(tmp_path, {"app/a.py": text}) / "app/a.py", tmp_path)
    assert file.local_imports == (("app/a.py:5", True),)


def test_packages_that_import_each_other_are_a_cycle_even_by_an_import_inside_a_function(tmp_path):
    #   p ──▶ q ──▶ r.x        r.y ──▶ p inside a function; top imports p, and nothing imports top
    files = {
        "graph/p/a.py": "from graph.q import b",
        "graph/q/b.py": "from graph.r.x import X",
        "graph/r/x.py": "class X: ...",
        "graph/r/y.py": "def f():\n    import graph.p.a",
        "graph/top.py": "from graph.p.a import b",
    }
    measures = structure.measure(checkout(tmp_path, files))["graph"]
    assert measures.places["import cycles"] == ["graph/p graph/q graph/r"]
    assert measures.figures["packages at the top"] == 3
    assert measures.figures["modules at the top"] == 1
    assert measures.figures["most modules in a folder"] == 2


def test_a_public_class_name_of_two_modules_has_several_meanings(tmp_path):
    text = "class Row: ...\nclass _Private: ...\n"
    measures = structure.measure(checkout(tmp_path, {"app/a.py": text, "graph/b.py": text}))
    assert measures["all"].places["public class names with several meanings"] == ["Row: app/a.py, graph/b.py"]
    assert measures["app"].figures["public class names with several meanings"] == 0


def test_two_checkouts_stand_in_one_table(tmp_path, capsys):
    before = checkout(tmp_path / "before", {"app/a.py": "x = 1\ny = 2\n"})
    after = checkout(tmp_path / "after", {"app/a.py": "x = 1\n", "remat/b.py": "z = 3\n"})
    assert structure.main(["--against", str(before), "--repo", str(after)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | app | remat | all |"
    assert "| lines | 2 → 1 | - → 1 | 2 → 2 |" in lines
    assert structure.main(["--repo", str(after), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repo"]["app"]["figures"]["lines"] == 1
