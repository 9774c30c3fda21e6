"""Load on a service: cached plans read while others are solved, reads without a pause, and a flood of small graphs.

    .venv/bin/python -m bench.service --seconds 20 --rate 200 --graphs 1000 --clients 32 > bench/results/service.json
    .venv/bin/python -m bench.service --soak 600      # all kinds of requests for ten minutes: memory by the minute

Reads are sent on a clock, whether or not the last one was answered, so a stall is seen by all that fall into it. Those
without a pause send the next request once the last one is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from bench.processes import below

Json = dict[str, Any]


def model(blocks: int, name: str, width: int = 64) -> Json:
    """A chain with its backward part: block i's gradient reads what it made."""
    values = [{"name": "x", "shape": [width, width], "dtype": "float32", "role": "input"}]
    values += [
        {"name": f"{kind}{i}", "shape": [width, width + i % 7], "dtype": "float32"}
        for kind in "hg"
        for i in range(blocks)
    ]
    nodes: list[Json] = [
        {"name": f"f{i}", "op": "own::Block", "inputs": [f"h{i - 1}" if i else "x"], "outputs": [f"h{i}"]}
        for i in range(blocks)
    ]
    nodes += [
        {
            "name": f"b{i}",
            "op": "own::BlockGrad",
            "phase": "backward",
            "outputs": [f"g{i}"],
            "inputs": [f"h{i}", f"g{i + 1}" if i + 1 < blocks else f"h{blocks - 1}"],
        }
        for i in reversed(range(blocks))
    ]
    return {"format": "remat/1", "name": name, "values": values, "nodes": nodes, "outputs": ["g0"]}


@contextmanager
def serving(data: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, int]]:
    """(URL, process id) of a service of its own."""
    command = [sys.executable, "-m", "remat", "serve", "--port", "0", "--data", str(data), *arguments]
    settings = {"REMAT_LOG_LEVEL": "warning", "OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | settings) as process:
        assert process.stderr is not None
        found = re.search(r"listening on (\S+)", process.stderr.readline())
        assert found is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield found[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def resident_bytes(pid: int) -> int:
    """Of the process itself, without its children."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def family_bytes(pid: int) -> int:
    """Of the process and everything below it; pages that they share count once each, as PSS has it."""
    total = 0
    for each in [pid, *below(pid)]:
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        total += sum(int(size) * 1024 for size in re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE))
    return total


class Highest:
    """The largest value that a function had, looked at ten times a second."""

    def __init__(self, look: Callable[[], int]):
        self.look, self.value = look, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Highest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.value = max(self.value, self.look())


def spread(seconds: Sequence[float]) -> Json:
    """Milliseconds of the median and the slowest few."""
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    told = {name: round(1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1) for name, q in at.items()}
    return told | {"max": round(1e3 * ordered[-1], 1)}


READER = """
import json, socket, sys, threading, time

host, port, rate, seconds, clients, key, body, *paths = sys.argv[1:]
own = b"authorization: Bearer " + key.encode() + b"\\r\\n" if key else b""
posted = b"content-type: application/json\\r\\ncontent-length: %d\\r\\n" % len(body) if body else b""
said = b" HTTP/1.1\\r\\nhost: localhost\\r\\n" + own + posted + b"\\r\\n" + body.encode()
method = b"POST " if body else b"GET "
rate, clients = float(rate), int(clients)
took, statuses, lock = [], {}, threading.Lock()
began = time.perf_counter() + 0.2
until, total = began + float(seconds), int(rate * float(seconds)) or 1 << 60  # rate 0: without a pause

def read(connection):
    got = b""
    while b"\\r\\n\\r\\n" not in got:
        got += connection.recv(1 << 16) or exit("cut off")
    head, _, body = got.partition(b"\\r\\n\\r\\n")
    lines = head.lower().split(b"\\r\\n")
    left = next(int(line[15:]) for line in lines if line.startswith(b"content-length:")) - len(body)
    while left:
        left -= len(connection.recv(1 << 16) or exit("cut off"))
    return int(head.split(b" ", 2)[1])

def work(k):
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for n in range(k, total, clients):
        due = began + n / rate if rate else max(began, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
        if due >= until:
            break
        connection.sendall(method + paths[n % len(paths)].encode() + said)
        status = read(connection)
        with lock:
            took.append(time.perf_counter() - due)
            statuses[status] = statuses.get(status, 0) + 1

threads = [threading.Thread(target=work, args=(k,)) for k in range(clients)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps({"took": took, "statuses": statuses}))
"""


def read_steadily(
    url: str, paths: Sequence[str], rate: float, seconds: float, clients: int = 16, key: str = "", body: str = ""
) -> Json:
    """GET, or POST of `body`, on a clock, from a process of its own; a request is late from the moment it was due.

    `rate` 0: each of the clients sends the next one once the last one is answered.
    """
    host, port = url.removeprefix("http://").split(":")
    command = [sys.executable, "-c", READER, host, port, str(rate), str(seconds), str(clients), key, body, *paths]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    a_second = {} if rate else {"a_second": round(len(said["took"]) / seconds)}
    return {"reads": len(said["took"]), "statuses": said["statuses"], "milliseconds": spread(said["took"])} | a_second


def cached_reads(url: str, pid: int, rate: float, seconds: float) -> Json:
    """200 cached plans a second, first with nothing else, then while two solves run."""
    plans = []
    for n in range(8):
        asked = {"graph": model(40, f"read {n}"), "budget": "70%", "planner": "greedy", "iterations": 20}
        answer = httpx2.post(f"{url}/v1/plans", json=asked, timeout=120)
        assert answer.status_code == 201, answer.text
        plans.append(answer.headers["location"])
    quiet = read_steadily(url, plans, rate, seconds / 2)
    operations = []
    for seed in range(2):
        slow = {"graph": model(400, "slow"), "budget": "30%", "planner": "anneal", "search_seconds": 10 * seconds}
        answer = httpx2.post(f"{url}/v1/plans", json=slow | {"seed": seed}, headers={"prefer": "wait=0"}, timeout=120)
        operations.append(answer.json()["id"])
    until = time.monotonic() + 120
    while time.monotonic() < until and not all(state(url, id) == "running" for id in operations):
        time.sleep(0.2)
    time.sleep(5)  # both search by now
    before, processor = [state(url, id) for id in operations], cpu_seconds(pid)
    busy = read_steadily(url, plans, rate, seconds)
    told = {"states_before": before, "states_after": [state(url, id) for id in operations]}
    used = round((cpu_seconds(pid) - processor) / busy["reads"] * 1e3, 2)
    for id in operations:
        httpx2.post(f"{url}/v1/operations/{id}:cancel", timeout=60)
    return {"alone": quiet, "while two solves run": busy | told | {"cpu_milliseconds_a_read": used}}


def without_a_pause(url: str, seconds: float, clients: int) -> Json:
    """A plan read on one connection and on many, and the same request with its graph on many."""
    question = {"graph": model(40, "again"), "budget": "70%", "planner": "greedy", "iterations": 20}
    answer = httpx2.post(f"{url}/v1/plans", json=question, timeout=120)
    assert answer.status_code == 201, answer.text
    plan, body = answer.headers["location"], json.dumps(question)
    return {
        "one connection": read_steadily(url, [plan], 0, seconds, 1),
        f"{clients} connections": read_steadily(url, [plan], 0, seconds, clients),
        "the same request, inline": read_steadily(url, ["/v1/plans"], 0, seconds, clients, body=body),
    }


def soak(url: str, pid: int, seconds: float) -> Json:
    """Reads, known questions and new ones at a steady rate: highest memory of each minute, with all children."""
    question = {"graph": model(40, "soak"), "budget": "70%", "planner": "greedy", "iterations": 20}
    plan = httpx2.post(f"{url}/v1/plans", json=question, timeout=120).headers["location"]
    until = time.monotonic() + seconds
    solved: Counter[int] = Counter()

    def ask() -> None:
        n = 0
        while time.monotonic() < until:
            n += 1
            fields = {"graph": model(20, f"new {n}"), "budget": "70%", "planner": "greedy", "iterations": 20}
            solved[httpx2.post(f"{url}/v1/plans", json=fields, timeout=120).status_code] += 1
            time.sleep(0.5)

    minutes = list[Json]()
    with ThreadPoolExecutor(3) as pool:
        asked = pool.submit(ask)
        reads = pool.submit(read_steadily, url, [plan], 50.0, seconds, 4)
        posts = pool.submit(read_steadily, url, ["/v1/plans"], 10.0, seconds, 4, "", json.dumps(question))
        while time.monotonic() < until:
            with Highest(lambda: family_bytes(pid)) as family, Highest(lambda: resident_bytes(pid)) as service:
                time.sleep(min(60.0, max(0.0, until - time.monotonic())))
            minutes.append({"service_bytes": service.value, "with_children_bytes": family.value})
        asked.result()
        return {"minutes": minutes, "reads": reads.result(), "posts": posts.result(), "solved": dict(solved)}


def state(url: str, operation_id: str) -> str:
    return str(httpx2.get(f"{url}/v1/operations/{operation_id}", timeout=60).json()["state"])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flood(url: str, pid: int, graphs: int, clients: int) -> Json:
    """Small graphs posted by many clients at once, who come back when told to."""
    statuses: Counter[int] = Counter()
    refusals: Counter[int] = Counter()
    lock = threading.Lock()

    def post(numbers: Sequence[int]) -> list[float]:
        took = []
        with httpx2.Client(base_url=url, timeout=300) as client:
            for n in numbers:
                began = time.perf_counter()
                while (answer := client.post("/v1/graphs", json=model(4, f"small {n}"))).status_code == 429:
                    with lock:
                        refusals[429] += 1
                    time.sleep(float(answer.headers["retry-after"]))
                took.append(time.perf_counter() - began)
                with lock:
                    statuses[answer.status_code] += 1
        return took

    before, began = family_bytes(pid), time.perf_counter()
    with Highest(lambda: family_bytes(pid)) as highest, ThreadPoolExecutor(clients) as pool:
        took = [each for some in pool.map(post, [range(k, graphs, clients) for k in range(clients)]) for each in some]
    seconds = time.perf_counter() - began
    return {
        "answers": dict(statuses),
        "told_to_come_back": refusals[429],
        "seconds": round(seconds, 1),
        "a_second": round(graphs / seconds, 1),
        "milliseconds": spread(took),
        "memory_before_bytes": before,
        "memory_highest_bytes": highest.value,
        "memory_after_bytes": family_bytes(pid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS", help="only this, for so long")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), REMAT_WORKERS="2") as (url, pid):
        told: Json = {"cores": os.cpu_count()}
        if asked.soak:
            told["soak"] = soak(url, pid, asked.soak)
        else:
            told["cached_reads"] = cached_reads(url, pid, asked.rate, asked.seconds)
            told["without_a_pause"] = without_a_pause(url, asked.seconds, asked.clients)
            told["flood"] = flood(url, pid, asked.graphs, asked.clients)
        print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
