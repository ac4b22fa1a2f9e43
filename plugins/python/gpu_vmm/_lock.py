"""Reentrant locks of ``with``, which a forked child has unlocked: the threads that held them do not exist there to release them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from .errors import Busy

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.RLock:
    """Returns a lock: Python's own, since it is native. No signal's exception comes between it and the block of ``with``."""
    made = threading.RLock()
    _locks.add(made)
    return made


def unless_inside(lock: threading.RLock, operation: str) -> threading.RLock:
    """Returns the lock of a change, for ``with``. Raises Busy if this thread is inside one: in a signal's handler or a callback."""
    if is_mine(lock):
        raise Busy(f"{operation}: this thread is inside another change of the same object, which a handler or a callback interrupts")
    return lock


def is_mine(lock: Any) -> bool:
    """Returns whether this thread holds a lock."""
    return bool(lock._is_owned())


def _renew() -> None:
    for lock in _locks:
        # The thread that forked goes on in the child, and releases what it holds.
        if not is_mine(lock):
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
