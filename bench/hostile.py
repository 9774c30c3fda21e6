"""Attacks on a service, each for a while: what they are answered, its memory, and what a bystander waited.

    .venv/bin/python -m bench.hostile --seconds 10 > bench/results/hostile.json

The bystander reads a plan twenty times a second and requests it by POST five times a second, on a clock. A connection
that is cut off counts as answer 0. Exit 1 if during an attack the bystander is refused, waits longer than LONGEST_MS
(99th percentile), or the service takes more than LARGEST_BYTES.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import zstandard

from bench.service import Highest, Json, family_bytes, model, read_steadily, resident_bytes, serving

BYSTANDER_RATE, BYSTANDER_POSTS = 20.0, 5.0  # a second
LONGEST_MS, LARGEST_BYTES = 500.0, 1_500_000_000


class Attack:
    """A service, a good key to it, and a time to end."""

    def __init__(self, url: str, key: str, seconds: float):
        host, port = url.removeprefix("http://").split(":")
        self.place, self.key, self.seconds = (host, int(port)), key, seconds
        self.until = float("inf")
        self.begun = threading.Event()
        self.answers: Counter[int] = Counter()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """All is prepared; the time runs from now on."""
        self.until = time.monotonic() + self.seconds
        self.begun.set()

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def count(self, status: int, times: int = 1) -> None:
        with self._lock:
            self.answers[status] += times

    def head(self, method: str, path: str, length: int = 0, **headers: str) -> bytes:
        given = {"host": "localhost", "authorization": f"Bearer {self.key}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        if method == "POST":
            given = {"content-type": "application/json", "content-length": str(length)} | given
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()

    def connected(self) -> socket.socket:
        return socket.create_connection(self.place, timeout=60)

    def send(self, data: bytes) -> None:
        """One request on a connection of its own; its status is counted."""
        try:
            with self.connected() as connection:
                with suppress(ConnectionError):  # it was answered before it was all read
                    connection.sendall(data)
                self.count(status_of(connection.recv(1 << 16)))
        except OSError:
            self.count(0)

    def by(self, clients: int, work: Callable[[int], None]) -> None:
        """The work of many clients at once."""
        self.begin()
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(work, range(clients)))

    def again_and_again(self, clients: int, data: bytes) -> None:
        def work(_: int) -> None:
            while self.goes_on():
                self.send(data)

        self.by(clients, work)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def posted(attack: Attack, body: bytes, path: str = "/v1/plans", **headers: str) -> bytes:
    return attack.head("POST", path, len(body), **headers) + body


def bombs(attack: Attack, coding: str) -> None:
    """Two GiB of spaces in two MiB, or less."""
    if coding == "gzip":
        body = b"".join([gzip.compress(bytes(1 << 26), 9)] * 32)
    else:
        body = b"".join([zstandard.compress(bytes(1 << 26), 19)] * 32)
    attack.again_and_again(8, posted(attack, body, content_encoding=coding))


def streams(attack: Attack, coding: str) -> None:
    """Four MB of empty gzip members or zstd frames."""
    empty = gzip.compress(b"") if coding == "gzip" else zstandard.compress(b"")
    attack.again_and_again(2, posted(attack, empty * (4_000_000 // len(empty)), content_encoding=coding))


def nests(attack: Attack) -> None:
    attack.again_and_again(8, posted(attack, b'{"graph": ' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}"))


def integers(attack: Attack) -> None:
    body = b'{"graph": {"format": "remat/1", "values": [{"name": "x", "shape": [%b]}]}}' % (b"9" * 1_000_000)
    attack.again_and_again(8, posted(attack, body))


def names(attack: Attack) -> None:
    """As a dict these fifty MB would be five hundred."""
    body = b'{"graph": {},' + b",".join(b'"%x":0' % n for n in range(4_000_000)) + b"}"
    attack.again_and_again(4, posted(attack, zstandard.compress(body), content_encoding="zstd"))


def documents(attack: Attack) -> None:
    """Whole graphs of a million values, which no service may plan."""
    document = model(2, "wide")
    document["values"] += [{"name": f"v{n}", "bytes": 1} for n in range(1_100_000)]
    body = zstandard.compress(json.dumps(document).encode())
    attack.again_and_again(4, posted(attack, body, "/v1/graphs", content_encoding="zstd"))


def slow_bodies(attack: Attack) -> None:
    _trickle(attack, attack.head("POST", "/v1/plans", 10_000), 400)


def slow_heads(attack: Attack) -> None:
    _trickle(attack, b"GET /v1/operations HTTP/1.1\r\nx: ", 400)


def _trickle(attack: Attack, start: bytes, count: int) -> None:
    """Many connections that send a byte a second."""
    opened = []
    attack.begin()
    for _ in range(count):
        connection = attack.connected()
        connection.sendall(start)
        opened.append(connection)
    while attack.goes_on():
        for connection in opened:
            with suppress(OSError):
                connection.send(b"x")
        time.sleep(1)
    for connection in opened:
        connection.settimeout(0.01)
        try:
            attack.count(status_of(connection.recv(1 << 16)))
        except TimeoutError:
            attack.count(-1)  # still open
        except OSError:
            attack.count(0)
        connection.close()


def analyses(attack: Attack) -> None:
    """Analyses of a large graph after sixteen others."""
    headers = {"authorization": f"Bearer {attack.key}"}
    url = f"http://{attack.place[0]}:{attack.place[1]}"
    id = httpx2.post(f"{url}/v1/graphs", json=model(5_000, "large"), headers=headers, timeout=120).json()["id"]
    path = f"/v1/graphs/{id}/analysis?" + "&".join([f"before={id}"] * 16)
    attack.again_and_again(140, attack.head("GET", path, connection="close"))


def listings(attack: Attack) -> None:
    attack.again_and_again(48, attack.head("GET", "/v1/operations?limit=1", connection="close"))


def event_streams(attack: Attack) -> None:
    """512 streams of the events of one batch, which has no end in sight."""
    headers = {"authorization": f"Bearer {attack.key}"}
    url = f"http://{attack.place[0]}:{attack.place[1]}"
    graph = httpx2.post(f"{url}/v1/graphs", json=model(100, "followed"), headers=headers, timeout=120).json()
    request = {"graph_ids": [graph["id"]], "planners": ["anneal"], "budgets": ["30%"], "search_seconds": 300}
    batch = httpx2.post(f"{url}/v1/batches", json=request, headers=headers, timeout=120).json()
    path = f"{batch['operation']}/events"
    attack.begin()
    opened = [attack.connected() for _ in range(512)]
    for connection in opened:
        connection.sendall(attack.head("GET", path))
    while attack.goes_on():
        time.sleep(0.1)
    for connection in opened:
        connection.settimeout(1)
        try:
            attack.count(status_of(connection.recv(100)))
        except OSError:
            attack.count(0)
        connection.close()
    httpx2.post(f"{url}/v1/batches/{batch['id']}:cancel", headers=headers, timeout=120)


def readiness(attack: Attack) -> None:
    attack.again_and_again(64, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")


def half_open(attack: Attack) -> None:
    """More connections without the end of a head than the service may have."""
    opened = []
    attack.begin()
    while attack.goes_on():
        if len(opened) < 2_200:
            with suppress(OSError):
                connection = attack.connected()
                connection.sendall(b"GET /livez HTTP/1.1\r\nx: ")
                opened.append(connection)
        else:
            time.sleep(0.1)
    for connection in opened:
        connection.close()


def unread(attack: Attack) -> None:
    """Large answers that nobody takes."""
    body = json.dumps({**model(2, "large"), "annotations": {"note": "x" * (12 << 20)}}).encode()
    url = f"http://{attack.place[0]}:{attack.place[1]}"
    headers = {"authorization": f"Bearer {attack.key}", "content-type": "application/json"}
    path = httpx2.post(f"{url}/v1/graphs", content=body, headers=headers, timeout=60).headers["location"]
    opened = []
    attack.begin()
    while attack.goes_on():
        if len(opened) < 64:
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(attack.place)
            connection.sendall(attack.head("GET", path))
            opened.append(connection)
        time.sleep(0.05)
    for connection in opened:
        attack.count(status_of(connection.recv(100)))
        connection.close()


def tiny(attack: Attack) -> None:
    """A hundred thousand requests, however long they take."""

    def work(k: int) -> None:
        asked = attack.head("POST", "/v1/plans", 2) + b"{}", attack.head("GET", f"/v1/operations/op{k:026x}")
        with attack.connected() as connection:
            for n in range(100_000 // 64):
                connection.sendall(asked[n % 2])
                got = b""
                while b"\r\n\r\n" not in got:
                    more = connection.recv(1 << 16)
                    if not more:
                        raise SystemExit(f"the connection was closed after {n} requests and {got!r}")
                    got += more
                length = next(
                    int(line[15:]) for line in got.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                left = length - len(got.partition(b"\r\n\r\n")[2])
                while left:
                    left -= len(connection.recv(left))
                attack.count(status_of(got))

    attack.by(64, work)


def foreign(attack: Attack) -> None:
    """Ids of nobody's things, and of what another tenant might have."""

    def work(_: int) -> None:
        while attack.goes_on():
            kind = secrets.choice(["graphs", "plans"])
            attack.send(attack.head("GET", f"/v1/{kind}/{secrets.token_hex(32)}", connection="close"))

    attack.by(8, work)


def guessed(attack: Attack) -> None:
    id = attack.key.split("_")[1]

    def work(_: int) -> None:
        while attack.goes_on():
            guess = f"remat_{id}_{secrets.token_urlsafe(32)}"
            attack.send(attack.head("GET", "/v1/operations", authorization=f"Bearer {guess}", connection="close"))

    attack.by(8, work)


def headers(attack: Attack) -> None:
    games = [
        attack.head("GET", "/v1/operations", x="y" * 100_000),
        attack.head("GET", "/v1/operations", prefer="wait=1e308"),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
        attack.head("POST", "/v1/plans", 5, transfer_encoding="chunked") + b"0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        attack.head("GET", "/v1/operations", x_forwarded_for="127.0.0.1", x_original_url="/metrics"),
        attack.head("POST", "/v1/plans", 10**18),
        attack.head("GET", "/v1/operations", content_encoding="gzip," * 500),
    ]

    def work(k: int) -> None:
        while attack.goes_on():
            attack.send(games[(k + sum(attack.answers.values())) % len(games)])

    attack.by(8, work)


ATTACKS: dict[str, Callable[[Attack], None]] = {
    "gzip bombs": lambda attack: bombs(attack, "gzip"),
    "zstd bombs": lambda attack: bombs(attack, "zstd"),
    "empty gzip streams": lambda attack: streams(attack, "gzip"),
    "empty zstd streams": lambda attack: streams(attack, "zstd"),
    "deep nests": nests,
    "huge integers": integers,
    "a dict of names": names,
    "documents past the limit": documents,
    "slow bodies": slow_bodies,
    "slow heads": slow_heads,
    "unread answers": unread,
    "analyses of large graphs": analyses,
    "lists of operations": listings,
    "event streams": event_streams,
    "readiness": readiness,
    "half-open heads": half_open,
    "10^5 tiny requests": tiny,
    "foreign ids": foreign,
    "guessed keys": guessed,
    "header games": headers,
}


def key_of(data: Path, tenant: str) -> str:
    command = [sys.executable, "-m", "remat", "keys", "create", tenant, "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Bystander:
    """Another tenant, who has a plan and asks for it."""

    url: str
    key: str
    path: str  # of the plan
    body: str  # of the request for it, by graph_id

    def ask(self, seconds: float) -> Json:
        with ThreadPoolExecutor(2) as pool:
            reads = pool.submit(read_steadily, self.url, [self.path], BYSTANDER_RATE, seconds, 4, self.key)
            plans = ["/v1/plans"]
            posts = pool.submit(read_steadily, self.url, plans, BYSTANDER_POSTS, seconds, 4, self.key, self.body)
        return {"reads": reads.result(), "posts": posts.result()}


def attacked(attack: Attack, pid: int, bystander: Bystander, run: Callable[[Attack], None]) -> Json:
    """One attack, with the bystander beside it."""
    told: Json = {}

    def stand_by() -> None:
        attack.begun.wait()
        told.update(bystander.ask(attack.seconds))

    beside = threading.Thread(target=stand_by)
    with Highest(lambda: resident_bytes(pid)) as service, Highest(lambda: family_bytes(pid)) as family:
        beside.start()
        run(attack)
        beside.join()
    return {
        "answers": {str(status): count for status, count in sorted(attack.answers.items())},
        "bystander": told,
        "service_highest_bytes": service.value,
        "family_highest_bytes": family.value,
        "service_after_bytes": resident_bytes(pid),
    }


def missed(told: Json) -> list[str]:
    """What the service did not hold during an attack."""
    found = []
    for kind, seen in told["bystander"].items():
        if (p99 := seen["milliseconds"]["p99"]) > LONGEST_MS:
            found.append(f"{kind}: p99 {p99:.0f} ms")
        if refused := sum(count for status, count in seen["statuses"].items() if not status.startswith("2")):
            found.append(f"{kind}: {refused} not answered")
    if told["service_highest_bytes"] > LARGEST_BYTES:
        found.append(f"{told['service_highest_bytes'] / 1e9:.2f} GB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        keys = key_of(data, "attacker"), key_of(data, "bystander")
        settings = {"REMAT_WORKERS": "2", "REMAT_BODY_SECONDS": "5", "REMAT_HEAD_SECONDS": "5"}
        with serving(data, "--auth", **settings) as (url, pid):
            question: Json = {"graph": model(40, "read"), "budget": "70%", "planner": "greedy", "iterations": 20}
            headers = {"authorization": f"Bearer {keys[1]}", "prefer": "wait=300"}
            graph = httpx2.post(f"{url}/v1/graphs", json=question.pop("graph"), headers=headers, timeout=120).json()
            question |= {"graph_id": graph["id"], "return": []}
            path = httpx2.post(f"{url}/v1/plans", json=question, headers=headers, timeout=330).headers["location"]
            assert path.startswith("/v1/plans/"), path
            bystander = Bystander(url, keys[1], path, json.dumps(question))
            told: Json = {"cores": os.cpu_count(), "service_before_bytes": resident_bytes(pid)}
            told["nobody attacks"] = bystander.ask(asked.seconds)
            for name, run in ATTACKS.items():
                if asked.only in name:
                    told[name] = attacked(Attack(url, keys[0], asked.seconds), pid, bystander, run)
                    print(name, json.dumps(told[name]), file=sys.stderr, flush=True)
            print(json.dumps(told, indent=1))
    failures = {name: found for name, run in told.items() if name in ATTACKS and (found := missed(run))}
    for name, found in failures.items():
        print(f"{name}: {'; '.join(found)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
