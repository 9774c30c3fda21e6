"""Standard output and standard error, whose readers may leave before a command ends."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import IO, Any

#: Set once a reader has left: commands without an end of their own end.
reader_has_left = threading.Event()


class Output(io.FileIO):
    """A stream that discards what is written once its reader has left, so that the exit code is that of the answer."""

    lost: type[OSError] = BrokenPipeError  # whatever is written from then on is discarded

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except self.lost as error:
            discard(self)
            if isinstance(error, BrokenPipeError):
                reader_has_left.set()
            return memoryview(data).nbytes


class Messages(Output):
    """Standard error, which also discards what a full disk does not take: messages are not the answer."""

    lost = OSError


def discard(stream: IO[Any]) -> None:
    """Let a stream that cannot be written to lead nowhere, so that Python exits without a second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_streams() -> None:
    """Open standard streams with which the process began closed as the null device; outlive readers of the others.

    Names may hold characters that the terminal lacks.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _outliving(stream, Messages if name == "stderr" else Output))


def _outliving(stream: io.TextIOWrapper, kind: type[Output]) -> io.TextIOWrapper:
    """The stream, with the same encoding and buffering, that outlives its reader."""
    raw = kind(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
