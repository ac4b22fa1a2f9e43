"""A lock whose state a forked child does not inherit: a thread that held it does not exist in the child to release it."""

from __future__ import annotations

import os
import threading


class Lock:
    """A reentrant lock, for ``with``. In a forked child it is unlocked."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            # No thread of the child holds the old lock.
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
