"""Models and events for tests of stops."""

from __future__ import annotations

import json
import threading

from bench.service_stops import forward


def document(layers: int) -> bytes:
    """A forward model of two nodes a layer."""
    return json.dumps(forward(layers, 4, 4)).encode()


def set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
