"""Engines that copy storages to host memory and back beside compute: streams of an accelerator, threads on a CPU.

    compute stream   a ─── b ─── (waits) ─── c      c is the first op that may use the bytes that u leaves
                          │         ▲
    stream to host        ╰─ u ─────╯               u waits for all that compute was given before it

Every block on the device belongs to the compute stream: it is allocated there, and a copy keeps it until compute waits
for the copy. Whatever reuses the block then runs after the copy, without `record_stream`, which would delay its reuse
by a time that no plan knows. Host buffers are pinned; PyTorch notes on them which copies still read or write them.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class Copy:
    """A copy that runs: it keeps its source until it is waited for."""

    source: torch.Tensor | None
    target: torch.Tensor
    done: Any  # event of a stream, or result of a thread


class CopyEngine(Protocol):
    """Copies in both directions; those of one direction run one after the other."""

    def begin_out(self, tensor: torch.Tensor) -> Copy:
        """Begin to copy the storage of a tensor to host memory."""
        ...

    def begin_in(self, host: torch.Tensor) -> Copy:
        """Begin to copy a storage back from host memory."""
        ...

    def wait(self, copy: Copy) -> torch.Tensor:
        """The tensor that was copied, of the same type, shape, strides and offset, for ops that compute is given next.

        The source is released. Raises what the copy raised.
        """
        ...


class StreamEngine:
    """Copies on two streams of an accelerator, one for each direction.

    `streams` has `Stream`, `Event`, `stream` and `current_stream` as `torch.cuda` has them. Was not run on a GPU yet:
    `tests/torch/test_copies.py` checks the order of its calls.
    """

    def __init__(self, device: torch.device, streams: Any = torch.cuda, pin: bool = True):
        self.device, self.streams, self.pin = device, streams, pin
        self.to_host, self.from_host = streams.Stream(device), streams.Stream(device)

    def begin_out(self, tensor: torch.Tensor) -> Copy:
        return self._begun(self.to_host, tensor, alike(tensor, torch.device("cpu"), self.pin))

    def begin_in(self, host: torch.Tensor) -> Copy:
        # Allocated on the compute stream, whose earlier ops may still use the block: the copy waits for them.
        return self._begun(self.from_host, host, alike(host, self.device))

    def _begun(self, stream: Any, source: torch.Tensor, target: torch.Tensor) -> Copy:
        stream.wait_stream(self.streams.current_stream(self.device))
        with self.streams.stream(stream):
            storage_bytes(target).copy_(storage_bytes(source), non_blocking=True)
            done = self.streams.Event()
            done.record(stream)
        return Copy(source, target, done)

    def wait(self, copy: Copy) -> torch.Tensor:
        self.streams.current_stream(self.device).wait_event(copy.done)
        copy.source = None
        return copy.target


class ThreadEngine:
    """Copies on two threads, one for each direction, between blocks of a CPU, whose ops have ended when they return."""

    def __init__(self, device: torch.device):
        self.device = device
        self.to_host, self.from_host = ThreadPoolExecutor(1, "offload"), ThreadPoolExecutor(1, "fetch")

    def begin_out(self, tensor: torch.Tensor) -> Copy:
        return self._begun(self.to_host, tensor, alike(tensor, torch.device("cpu")))

    def begin_in(self, host: torch.Tensor) -> Copy:
        return self._begun(self.from_host, host, alike(host, self.device))

    def _begun(self, thread: ThreadPoolExecutor, source: torch.Tensor, target: torch.Tensor) -> Copy:
        done: Future[None] = thread.submit(_copy, [storage_bytes(target), storage_bytes(source)])
        return Copy(source, target, done)

    def wait(self, copy: Copy) -> torch.Tensor:
        copy.done.result()
        copy.source = copy.done = None
        return copy.target


def _copy(pair: list[torch.Tensor]) -> None:
    """Copy the second tensor to the first and empty the list, which the thread holds longer than the copy takes."""
    pair[0].copy_(pair[1])
    pair.clear()


@functools.cache
def engine_for(device: torch.device) -> CopyEngine:
    """The engine of a device; all steps on it share one, as they share its link."""
    return StreamEngine(device) if device.type == "cuda" else ThreadEngine(device)


def alike(tensor: torch.Tensor, device: torch.device, pin: bool = False) -> torch.Tensor:
    """A tensor that is not initialized, in a storage of its own of the same size, with the same strides and offset."""
    size = tensor.untyped_storage().nbytes()
    raw = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pin)
    made = torch.empty(0, dtype=tensor.dtype, device=device)
    return made.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
