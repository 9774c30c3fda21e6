"""Short turns of the threads of a search: interpreted ones let those that call compiled kernels go on soon."""

from __future__ import annotations

import sys
import threading

#: Seconds after which an interpreted thread lets another run. A walk calls compiled kernels, and waits for its turn
#: after each; with Python's default of 5 ms a bound or another planner beside it takes most of its time.
TURN_SECONDS = 5e-4


class _ShortTurns:
    """Scope in which the threads of the process take turns of TURN_SECONDS; those of before follow the last scope."""

    def __init__(self) -> None:
        self._lock, self._scopes, self._former = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._scopes:
                self._former = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_SECONDS, self._former))
            self._scopes += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._scopes -= 1
            if not self._scopes:
                sys.setswitchinterval(self._former)


SHORT_TURNS = _ShortTurns()
