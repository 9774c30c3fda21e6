"""Free memory of the machine and of the control group of this process."""

from __future__ import annotations

from pathlib import Path

UNBOUNDED = 2**63 - 1
MEMINFO, CGROUP, GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Bytes that this process and its children may allocate before the OOM killer acts."""
    return min(_of_machine(), _of_group())


def _of_machine() -> int:
    for line in MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNBOUNDED


def _of_group() -> int:
    """Bytes left of the cgroup v2 limit; the inactive page cache counts as free."""
    try:
        line = next(line for line in CGROUP.read_text().splitlines() if line.startswith("0::"))
        folder = GROUPS / line.removeprefix("0::").lstrip("/")
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return UNBOUNDED
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used = int((folder / "memory.current").read_text())
    except (OSError, StopIteration, ValueError):
        return UNBOUNDED
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
