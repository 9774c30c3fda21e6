"""Plans the zoo by every engine, kills three of them on the way, and holds the plans against each other.

    python -m bench.zoo_engines                           # all of the zoo, made first; 70%, 20 iterations
    python -m bench.zoo_engines --zoo FOLDER --budgets 70%,50% --iterations 100 --only light_resnet50,unet

`remat batch` with `local`, with `server` (a `remat serve` on SQLite) and with `ray` (a cluster here) is killed with
SIGKILL, with all its children, once a third of the items is there, and goes on with --resume; at the service that must
be one batch and not two.
`remat.batch` plans the same on processes of Dask. Plan, layout, timeline and graph of every item must be the same
bytes. Prints seconds and memory of every item; exit 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

import remat
from app.client.blocking import Client
from app.render.text import format_bytes, table
from app.zoo.build import build_zoo, select_networks
from app.zoo.manifest import FILE_NAME, encode_manifest, parse
from bench.batches import Served
from bench.processes import below
from tests.app.clusters import cluster_of

SAME = ("plan", "layout", "timeline", "source")
REMAT = [sys.executable, "-m", "remat"]
EVERY_S = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="a folder with a manifest; else one is made")
    parser.add_argument("--only", default="", help="names of networks")
    parser.add_argument("--sizes", type=int, default=2, help="batch sizes of each network")
    parser.add_argument("--budgets", default="70%")
    parser.add_argument("--planner", default="auto")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, help="where results are left; else nowhere")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        names = [name for name in given.only.split(",") if name]
        models = zoo_of(given.zoo, names, given.sizes, folder / "zoo")
        plans = {
            "local": by_command("local", models, folder, given, []),
            "server": by_service(models, folder, given),
            "dask": by_dask(models, folder, given),
            "ray": by_ray(models, folder, given),
        }
        return told(plans, folder)


def zoo_of(zoo: Path | None, names: Sequence[str], sizes: int, folder: Path) -> Path:
    """A manifest of the networks asked for."""
    folder.mkdir(exist_ok=True)
    if zoo is None:
        zoo = folder
        build_zoo(select_networks(names), folder, lambda line: print(line, file=sys.stderr))
    manifest = parse((zoo / FILE_NAME).read_bytes(), str(zoo))
    models = tuple(
        msgspec.structs.replace(model, file=str((zoo / model.file).absolute()), batches=model.batches[:sizes])
        for model in manifest.models
        if not names or model.name in names
    )
    (folder / FILE_NAME).write_bytes(encode_manifest(msgspec.structs.replace(manifest, models=models)))
    return folder / FILE_NAME


def by_command(engine: str, models: Path, folder: Path, given: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Item -> report, of `remat batch` that was killed once."""
    out = folder / engine
    command = [*REMAT, "batch", str(models), "--budgets", given.budgets, "--planners", given.planner]
    command += ["--iterations", str(given.iterations), "--engine", engine, "-o", str(out), *more]
    command += ["--html", str(folder / f"{engine}.html")]
    if engine == "local":
        command += ["--workers", str(given.workers)]
    enough = asked(models, given) // 3
    with Watched(command) as run:
        while len(lines(out)) < enough:
            assert run.process.poll() is None, f"{engine}: over before it was killed, with {run.process.returncode}"
            time.sleep(EVERY_S)
        run.kill()
    before, seen = lines(out), run.seen
    with Watched([*command, "--resume"]) as run:
        code = run.process.wait()
    rows = lines(out)
    assert code in (0, 1), f"{engine}: exit code {code}"
    assert rows[: len(before)] == before, f"{engine}: what was finished before the kill was made again"
    assert len(rows) == asked(models, given), f"{engine}: {len(rows)} results"
    assert (folder / f"{engine}.html").is_file()
    print(f"{engine}: killed with {len(before)} of {len(rows)} done, and gone on", file=sys.stderr)
    found = {}
    for row in map(msgspec.json.decode, rows):
        memory = None if engine != "local" else held_by(row, {**seen, **run.seen})
        found[name_of(row)] = {"row": row, "memory": memory, "report": json.loads((out / row["plan"]).read_bytes())}
    return found


def by_service(models: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    (folder / "data").mkdir()
    served = Served(folder / "data", given.workers)
    try:
        found = by_command("server", models, folder, given, ["--server", served.url])
        with Client(served.url) as client:
            batches = list(client.batches())
        assert len(batches) == 1, f"server: {len(batches)} batches, where one should have been joined"
    finally:
        served.stop()
    return found


def by_dask(models: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    import distributed

    dasks: Any = distributed
    cluster = dasks.LocalCluster(
        n_workers=given.workers, threads_per_worker=1, dashboard_address=None, local_directory=str(folder / "dask")
    )
    with cluster, dasks.Client(cluster) as dask:
        rows = remat.batch(
            models,
            given.budgets.split(","),
            planners=[given.planner],
            iterations=given.iterations,
            executor=dask.get_executor(),
        )
    print(f"dask: {len(rows)} done", file=sys.stderr)
    return {name_of(row): {"row": row, "report": row["report"]} for row in rows}


def by_ray(models: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    with cluster_of("ray") as cluster:
        return by_command("ray", models, folder, given, ["--cluster", cluster.address])


def asked(models: Path, given: argparse.Namespace) -> int:
    manifest = parse(models.read_bytes(), str(models))
    return sum(len(model.batches) for model in manifest.models) * len(given.budgets.split(","))


def lines(out: Path) -> list[bytes]:
    path = out / "results.jsonl"
    return [line for line in path.read_bytes().split(b"\n")[:-1] if line] if path.exists() else []


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} at {row['batch']}, {row['budget']}"


class Watched:
    """A command, and what its children held: pid -> [from, until, most bytes]."""

    def __init__(self, command: list[str]):
        self.seen: dict[int, list[float]] = {}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._thread.join()

    def kill(self) -> None:
        for pid in [self.process.pid, *below(self.process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _watch(self) -> None:
        while self.process.poll() is None:
            for pid in below(self.process.pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                held = next((int(line.split()[1]) << 10 for line in status.splitlines() if line[:6] == "VmHWM:"), 0)
                first, _, before = self.seen.get(pid, [time.time(), 0.0, 0])
                self.seen[pid] = [first, time.time(), max(before, held)]  # one that has just ended holds nothing
            time.sleep(EVERY_S)


def held_by(row: dict[str, Any], seen: dict[int, list[float]]) -> int | None:
    """Most bytes of the child that lived when the item was made: the one that began and ended most nearly then."""
    ended = datetime.fromisoformat(row["at"]).timestamp()
    began = ended - row["seconds"]
    near = min(seen.values(), key=lambda life: abs(life[0] - began) + abs(life[1] - ended), default=None)
    return None if near is None else int(near[2])


def told(plans: dict[str, dict[str, Any]], folder: Path) -> int:
    """Exit code: 1 where two engines differ."""
    rows, wrong = [], []
    for name, item in plans["local"].items():
        differing = [
            f"{engine}: {part}"
            for engine in ("server", "dask", "ray")
            for part in SAME
            if name not in plans[engine] or text(plans[engine][name]["report"], part) != text(item["report"], part)
        ]
        wrong += [f"{name}: {what}" for what in differing]
        row, report = item["row"], item["report"]
        rows.append(
            (
                name,
                report["model"]["nodes"],
                row["state"],
                f"{100 * row['saved']:.1f}%",
                f"{100 * row['overhead']:.1f}%",
                *(f"{plans[engine][name]['row']['seconds']:.1f}" if name in plans[engine] else "" for engine in plans),
                "" if item["memory"] is None else format_bytes(item["memory"]),
                "no" if differing else "yes",
            )
        )
    head = ("item", "nodes", "state", "saved", "overhead", "local s", "server s", "dask s", "ray s", "held", "same")
    print("\n".join(table(head, rows, tuple(range(1, 10)))))
    print(f"{len(rows)} items, {len(wrong)} differences")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong or not rows else 0


def text(report: dict[str, Any], part: str) -> bytes:
    """The part as bytes. A service is sent the canonical graph: attributes sorted, with a note of its format."""
    said = report[part]
    if part == "source":
        return msgspec.json.encode({name: said[name] for name in said if name != "annotations"}, order="sorted")
    return msgspec.json.encode(said)


if __name__ == "__main__":
    sys.exit(main())
