"""A lock that a forked child does not inherit: the thread that held it is not there to let go of it."""

from __future__ import annotations

import os
import threading


class Lock:
    """A reentrant lock, for ``with``. In a forked child it is free."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            # The child has one thread here, or others that hold nothing yet.
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
