"""Files at the top of the repository agree with the project: licences, changes, contributing, hooks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_licence_beside_shipped_files_goes_into_the_wheel() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    listed = {path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    shipped = {
        path
        for package in ("app", "planner", "graph", "remat")
        for path in (ROOT / package).rglob("*.txt")
        if "LICENSE" in path.name or "NOTICE" in path.name
    }
    assert listed == shipped | {ROOT / "LICENSE"}
    assert all(any(ROOT.glob(pattern)) for pattern in PROJECT["license-files"])


def released() -> list[tuple[int, ...]]:
    """Versions of the changelog from top to bottom; every heading is a version with a date, or Unreleased."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = headings[headings[:1] == ["[Unreleased]"] :]
    matches = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}", heading) for heading in versions]
    assert matches and all(matches), versions
    return [tuple(map(int, match.groups())) for match in matches if match]


def test_the_changelog_lists_the_current_version_or_has_changes_above_it() -> None:
    versions = released()
    assert versions == sorted(set(versions), reverse=True), "the newest stands first"
    current = tuple(map(int, PROJECT["version"].split(".")))
    unreleased = "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()
    assert versions[0] == current or (unreleased and versions[0] < current)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_and_files_named_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    named = set(re.findall(r"`((?:graph|planner|app|remat|tests|bench|docs)/[\w/]*(?:\.py|\.md|\.json)?)[ `]", text))
    named.discard("remat/1")  # a document's format
    assert links and not [path for path in links | named if not (ROOT / path).exists()]


def test_the_hooks_run_the_commands_of_check_and_the_docs_test_that_check_includes() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    hooks = repos[0]["hooks"]
    assert all(hook["language"] == "system" and hook["always_run"] and not hook["pass_filenames"] for hook in hooks)
    commands = re.findall(r"^(?:\w+=\S+ )*(\.venv/bin/.*)$", (ROOT / "check").read_text(), re.MULTILINE)
    checked = [command.partition(" >")[0] for command in commands]  # without where the output goes
    *quick, tests = checked
    *entries, docs = [hook["entry"] for hook in hooks]
    assert entries == quick
    pytest_command, _, path = docs.rpartition(" ")
    assert tests.startswith(pytest_command) and path == "tests/test_docs.py" and (ROOT / path).is_file()
