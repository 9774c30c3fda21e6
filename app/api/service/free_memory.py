"""How much memory is left, for this machine and for the group of processes this one runs in."""

from __future__ import annotations

from pathlib import Path

UNBOUNDED = 2**63 - 1
MEMINFO, CGROUP, GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Bytes that this process and its children may take before the system kills one of them."""
    return min(_of_machine(), _of_group())


def _of_machine() -> int:
    for line in MEMINFO.read_text().splitlines():
        name, _, said = line.partition(":")
        if name == "MemAvailable":
            return int(said.split()[0]) * 1024
    return UNBOUNDED


def _of_group() -> int:
    """What the limit of the control group (v2) leaves; pages of files that can be dropped count as free."""
    try:
        line = next(line for line in CGROUP.read_text().splitlines() if line.startswith("0::"))
        folder = GROUPS / line.removeprefix("0::").lstrip("/")
        most = (folder / "memory.max").read_text().strip()
        if most == "max":
            return UNBOUNDED
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used = int((folder / "memory.current").read_text())
    except (OSError, StopIteration, ValueError):
        return UNBOUNDED
    return max(0, int(most) - used + int(stat.get("inactive_file", 0)))
