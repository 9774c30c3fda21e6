"""Event simulation of an order on its engines; see `schedule.py` for the semantics and `jit.py` for kernels."""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.jit import Column, Kernels, Row
from planner.problem.liveness_kernels import Bytes, Flags

#: Engines of a problem: COMPUTE to COMMUNICATION.
ENGINES = 4
#: No step, no instance, or no time.
NONE = -1


class Steps(NamedTuple):
    """An order of s steps and the k instances that they use."""

    order: Column
    cost: Column  # per task, ticks
    workspace: Column  # per task, bytes
    engine: Bytes  # per task
    read_pointer: Column
    reads: Column  # step -> instances
    write_pointer: Column
    writes: Column  # step -> instances
    buffer: Column  # of each instance
    writer: Column  # the step that writes each instance, or NONE
    device_bytes: Column  # of each instance; 0 for residents and in other spaces
    host_bytes: Column  # of each instance; 0 for residents and in other spaces
    held: Flags  # instances held to the end
    take_pointer: Column
    takes: Column  # buffer -> buffers whose storage it may take


class Run(NamedTuple):
    """State and results of a simulation."""

    start: Row  # int64[s]  ticks
    end: Row  # int64[s]  ticks
    device: Row  # int64[s]  device bytes in use once the step has started
    host: Row  # int64[s]  host bytes in use once the step has started
    last_user: Row  # int64[k]  of the steps that use the instance and have started, the last to end; all NONE
    taken_from: Row  # int64[k]  instance whose storage it reuses; all NONE
    unread: Row  # int64[k]  reads that have not started
    freed_device: Row  # int64[s]  bytes freed when the step ends; all 0
    freed_host: Row  # int64[s]
    following: Row  # int64[s]  next step on the same engine; all NONE
    first: Row  # int64[ENGINES]  first step of each engine that has not ended; all NONE
    last: Row  # int64[ENGINES]  last step of each engine that has started; all NONE
    live: Row  # int64[2]  device and host bytes in use


def run_engines(steps: Steps, run: Run, device_limit: int, host_limit: int) -> int:
    """Makespan in ticks; fills the columns of `run`."""
    makespan, now = 0, 0
    for step in range(len(steps.order)):
        now = max(now, ready_time(steps, run, step))
        end_until(run, now)
        while exceeds(steps, run, step, now, device_limit, host_limit):
            event = next_end(run)
            if event == NONE:
                break
            now = event
            end_until(run, now)
        begin(steps, run, step, now)
        makespan = max(makespan, run.end[step])
    return makespan


def ready_time(steps: Steps, run: Run, step: int) -> int:
    """When the engine of the step is free and all that it reads is written."""
    last = run.last[steps.engine[steps.order[step]]]
    result = 0 if last == NONE else run.end[last]
    for entry in range(steps.read_pointer[step], steps.read_pointer[step + 1]):
        writer = steps.writer[steps.reads[entry]]
        if writer != NONE:
            result = max(result, run.end[writer])
    return int(result)


def end_until(run: Run, now: int) -> None:
    """Free the bytes of all steps that end by `now`."""
    for engine in range(ENGINES):
        step = run.first[engine]
        while step != NONE and run.end[step] <= now:
            run.live[0] -= run.freed_device[step]
            run.live[1] -= run.freed_host[step]
            step = run.following[step]
        run.first[engine] = step


def next_end(run: Run) -> int:
    """When the next of the running steps ends; NONE if none runs."""
    result = NONE
    for engine in range(ENGINES):
        step = run.first[engine]
        if step != NONE and (result == NONE or run.end[step] < result):
            result = run.end[step]
    return int(result)


def exceeds(steps: Steps, run: Run, step: int, now: int, device_limit: int, host_limit: int) -> bool:
    """Whether the outputs and the workspace of the step do not fit; sets `taken_from` of its outputs."""
    device, host = run.live[0] + steps.workspace[steps.order[step]], run.live[1]
    for entry in range(steps.write_pointer[step], steps.write_pointer[step + 1]):
        output = steps.writes[entry]
        take(steps, run, step, output, now)
        if run.taken_from[output] == NONE:
            device += steps.device_bytes[output]
            host += steps.host_bytes[output]
    return bool(device > device_limit or host > host_limit)


def take(steps: Steps, run: Run, step: int, output: int, now: int) -> None:
    """Let an output reuse the first listed input that fits and has no later reader and no other running one."""
    run.taken_from[output] = NONE
    buffer = steps.buffer[output]
    for listed in range(steps.take_pointer[buffer], steps.take_pointer[buffer + 1]):
        for entry in range(steps.read_pointer[step], steps.read_pointer[step + 1]):
            source = steps.reads[entry]
            user = run.last_user[source]
            if (
                steps.buffer[source] == steps.takes[listed]
                and not steps.held[source]
                and run.unread[source] == 1
                and (user == NONE or run.end[user] <= now)
                and steps.device_bytes[source] >= steps.device_bytes[output] > 0
                and not is_taken(steps, run, step, output, source)
            ):
                run.taken_from[output] = source
                return


def is_taken(steps: Steps, run: Run, step: int, output: int, source: int) -> bool:
    """Whether an output of the step before `output` reuses the source."""
    for entry in range(steps.write_pointer[step], steps.write_pointer[step + 1]):
        if steps.writes[entry] == output:
            return False
        if run.taken_from[steps.writes[entry]] == source:
            return True
    return False


def begin(steps: Steps, run: Run, step: int, now: int) -> None:
    """Start the step: hold its outputs and workspace, and free at its end what it is the last to use."""
    task = steps.order[step]
    engine = steps.engine[task]
    run.start[step], run.end[step] = now, now + steps.cost[task]
    if run.first[engine] == NONE:
        run.first[engine] = step
    else:
        run.following[run.last[engine]] = step
    run.last[engine] = step
    run.live[0] += steps.workspace[task]
    run.freed_device[step] += steps.workspace[task]
    for entry in range(steps.write_pointer[step], steps.write_pointer[step + 1]):
        output = steps.writes[entry]
        if run.taken_from[output] == NONE:
            run.live[0] += steps.device_bytes[output]
            run.live[1] += steps.host_bytes[output]
        else:
            run.freed_device[step] -= steps.device_bytes[output]  # these bytes of the source stay in use
        use(steps, run, step, output)
    for entry in range(steps.read_pointer[step], steps.read_pointer[step + 1]):
        run.unread[steps.reads[entry]] -= 1
        use(steps, run, step, steps.reads[entry])
    run.device[step], run.host[step] = run.live[0], run.live[1]


def use(steps: Steps, run: Run, step: int, instance: int) -> None:
    """Note that the step uses the instance, and free it with its last user if it has no later reader."""
    user = run.last_user[instance]
    if user == NONE or run.end[user] <= run.end[step]:
        run.last_user[instance] = step
    if run.unread[instance] == 0 and not steps.held[instance]:
        run.freed_device[run.last_user[instance]] += steps.device_bytes[instance]
        run.freed_host[run.last_user[instance]] += steps.host_bytes[instance]


KERNELS = Kernels((run_engines,))
