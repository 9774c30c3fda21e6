"""Step "Comment" of action.yml: the result in the summary of the job and, with a token, on the pull request.

A second run updates the comment of the first. A comment that GitHub refuses is a warning: the verdict of the check does
not depend on it. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_CHARS = 65_000  # GitHub takes 65,536
MAX_ERROR_CHARS = 4_000
PAGE, MAX_PAGES = 100, 50  # comments per page
SECONDS = 30.0  # limit of one request


class Refused(Exception):
    """GitHub did not do what was asked; the message says why."""


class Api:
    """The REST interface of one repository."""

    def __init__(self, environment: Mapping[str, str]):
        self.url = environment.get("GITHUB_API_URL") or "https://api.github.com"
        self.repository = f"/repos/{urllib.parse.quote(environment['GITHUB_REPOSITORY'])}"
        self.token = environment["CHECK_TOKEN"]

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        """The answer as JSON. Raises Refused."""
        headers = {
            "accept": "application/vnd.github+json",
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "user-agent": "remat-check",
            "x-github-api-version": "2022-11-28",
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: HTTP {error.code}: {_message(error)}") from error
        except (OSError, ValueError) as error:
            raise Refused(f"{method} {path}: {error}") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def body_of(folder: Path, model: str, artifact_url: str) -> str:
    """The Markdown of the comment: what `remat check` wrote, or why there is nothing, and the link to the files."""
    comment, error = folder / "comment.md", folder / "error.txt"
    if comment.is_file():
        text = comment.read_text(errors="replace")
    else:
        said = error.read_text(errors="replace") if error.is_file() else ""
        said = "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in said)
        said = said.strip()[-MAX_ERROR_CHARS:] or "no message; see the log of the job"
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", said + model)), default=0))
        text = f"**remat check could not compare the model**\n\n{fence}text\n{_line(model)}\n{said}\n{fence}\n"
    if len(text) > MAX_CHARS:
        text = "**remat check**: the result is too long for a comment; see the log of the job\n"
    if artifact_url.startswith("https://"):
        text += f"\n[Picture of memory over steps, report and log]({urllib.parse.quote(artifact_url, safe=':/')})\n"
    return text


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def pull_request(environment: Mapping[str, str]) -> int | None:
    """Number of the pull request that started the job; None for other events."""
    try:
        event = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text())
        return int(event["pull_request"]["number"])
    except (KeyError, OSError, TypeError, ValueError):
        return None


def publish(api: Api, number: int, marker: str, body: str) -> str:
    """URL of the comment, written over an earlier one with the same marker, or new. Raises Refused."""
    text = f"{marker}\n{body}"
    comments = f"{api.repository}/issues/{number}/comments"
    mine = _earlier(api, comments, marker)
    if mine is None:
        return str(api("POST", comments, {"body": text})["html_url"])
    return str(api("PATCH", f"{api.repository}/issues/comments/{mine}", {"body": text})["html_url"])


def _earlier(api: Api, comments: str, marker: str) -> int | None:
    """Id of the comment that an earlier run wrote. A comment of another author is not: they could change it later."""
    try:
        own = api("GET", "/user")["login"]
    except Refused:  # the token of a workflow belongs to no user; its comments are by a bot
        own = None
    for page in range(1, MAX_PAGES + 1):
        rows = api("GET", f"{comments}?per_page={PAGE}&page={page}")
        for row in rows:
            author = row.get("user") or {}
            is_own = author.get("type") == "Bot" if own is None else author.get("login") == own
            if is_own and str(row.get("body") or "").startswith(marker):
                return int(row["id"])
        if len(rows) < PAGE:
            break
    return None


def main(environment: Mapping[str, str]) -> None:
    """Write the summary, then the comment where there is a pull request and a token."""
    model = environment["CHECK_MODEL"]
    body = body_of(Path(environment["CHECK_FOLDER"]), model, environment.get("CHECK_ARTIFACT_URL", ""))
    with Path(environment["GITHUB_STEP_SUMMARY"]).open("a") as summary:
        summary.write(body)
    number = pull_request(environment)
    if number is None:
        print("no comment: the job was not started by a pull request; the result is in the job's summary")
        return
    if not environment.get("CHECK_TOKEN"):
        print("no comment: the input token is empty; the result is in the job's summary")
        return
    try:
        url = publish(Api(environment), number, f"<!-- {environment['CHECK_KEY']} -->", body)
    except (Refused, KeyError, TypeError) as error:
        said = _line(str(error)).replace("%", "%25")
        remedy = "give the job `permissions: pull-requests: write`; the result is in the job's summary"
        print(f"::warning title=remat check::no comment: {said}; {remedy}")
        return
    with Path(environment["GITHUB_OUTPUT"]).open("a") as outputs:
        outputs.write(f"comment-url={_line(url)}\n")
    print(f"comment: {_line(url)}")


if __name__ == "__main__":
    main(os.environ)
    sys.exit(0)
