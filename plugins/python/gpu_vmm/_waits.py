"""Waits for other processes, which signals such as that of Ctrl-C can end. Linux only."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Callable, List, SupportsFloat, SupportsIndex, TypeVar

from ._callbacks import in_callback
from ._dtype import shown
from ._library import check, library
from .errors import InvalidArgument, Status, TimedOut, Unsupported

_SLICE = 0.1
"""The longest wait in the library, in seconds. Between two of them Python handles signals, such as that of Ctrl-C."""

_LONGEST = 1e9
"""A time that does not end."""

_T = TypeVar("_T")


def seconds_of(timeout: float, what: str = "timeout") -> float:
    """Returns a timeout. Raises TypeError if it is no number, InvalidArgument if it is negative or NaN."""
    if not isinstance(timeout, (SupportsFloat, SupportsIndex)):
        raise TypeError(f"{what}: expected a number of seconds, not {shown(timeout)}")
    try:
        seconds = float(timeout)
    except OverflowError:
        # Of an integer, and therefore not NaN.
        seconds = _LONGEST if timeout > 0 else -_LONGEST
    if not seconds >= 0:
        raise InvalidArgument(f"{what}: {seconds} is not 0 or more seconds")
    return min(seconds, _LONGEST)


def in_slices(timeout: float, call: Callable[[int], int], is_over: Callable[[], bool] = lambda: True) -> None:
    """Calls ``call`` with a number of milliseconds until it does not time out, at most for ``timeout`` seconds. Raises its error.

    ``is_over`` says whether a call that has succeeded has found what it waited for.
    """
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        status = call(math.ceil(1000 * max(0.0, min(left, _SLICE))))
        if left <= _SLICE or status not in (Status.OK, Status.TIMED_OUT) or status == Status.OK and is_over():
            break
    try:
        check(status)
    except TimedOut as error:
        text = str(error).rpartition(" within ")[0]  # of the last slice
        raise TimedOut(f"{text} within {timeout:g} s", status) from None


def interruptible(work: Callable[[], _T]) -> _T:
    """Returns the result of a call that cannot be cut into slices. On the main thread, another thread makes the call.

    If a signal's handler raises an exception meanwhile, as for Ctrl-C, the call ends at its own timeout, and its result is dropped.
    """
    if threading.current_thread() is not threading.main_thread() or in_callback():
        return work()
    results: List[_T] = []
    errors: List[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        done.set()

    try:
        threading.Thread(target=run, name="gpu-vmm", daemon=True).start()
    except RuntimeError:
        # The interpreter ends, or the system has no more threads.
        return work()
    done.wait()
    if errors:
        raise errors.pop()
    return results.pop()


def linux_function(name: str) -> Any:
    """Returns a function that the library has on Linux."""
    found = getattr(library(), name, None)
    if found is None:
        raise Unsupported("exchange: this system has no exchange of descriptors between processes; it needs Linux")
    return found
