"""Calls of the library that can call Python, for the observers of regions.

An exception cannot pass through the library. Python runs handlers of signals at the entry of a function that C calls, before any ``try``, and
ends a daemon thread that needs the interpreter when that ends, which would unwind the library's frames. Both are kept away from such calls.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._library import error_of
from .errors import Error

_LONGEST = 5.0
"""How long the end of the interpreter waits for other threads that are in such calls, in seconds."""


class _Thread(threading.local):
    """A thread's state."""

    running = 0
    """The number of callbacks that it is in."""
    held: Optional[_HeldSignals] = None
    """The signals that its innermost call keeps away."""
    raised: Optional[BaseException] = None
    """What a callback of its innermost call has raised."""


this_thread = _Thread()


def in_callback() -> bool:
    """Returns whether this thread is in a callback. The library waits for no object there, but would in another thread."""
    return this_thread.running > 0


class Observer:
    """The callbacks of one observer."""

    __slots__ = ("before", "after", "home", "__weakref__")

    def __init__(self, before: Any, after: Any, home: Dict[int, Observer]) -> None:
        self.before, self.after = before, after
        self.home = home
        """The observers of the region, which has them: so an object that observes its own region can be collected with it."""


# By the number that is the observer's context in C.
_known: weakref.WeakValueDictionary[int, Observer] = weakref.WeakValueDictionary()
# Those of closed regions, which the library can still call: while the region ends, and as long as a tensor keeps it.
_closed: Dict[int, Observer] = {}


def observer_of(number: int) -> Optional[Observer]:
    """Returns an observer that the library calls."""
    return _closed.get(number) or _known.get(number)


def add(number: int, observer: Observer) -> None:
    """Adds an observer to its region."""
    observer.home[number] = observer
    _known[number] = observer


def remove(number: int) -> None:
    """Removes an observer, which the library calls no more."""
    observer = observer_of(number)
    _closed.pop(number, None)
    if observer is not None:
        observer.home.pop(number, None)


def close(observers: Dict[int, Observer], free: Callable[[], None]) -> None:
    """Calls a function that closes a region with these observers. Raises what a callback has raised, behind the end of the region."""
    if _is_over():
        return  # what remains is not freed
    _closed.update(observers)
    _, raised = _called(free)
    try:
        if raised is not None:
            raise raised
    finally:
        del raised  # its traceback has this frame


# The native module of ``signal``, whose functions make enumerations of all results. Type checkers do not know it.
_native: Any = importlib.import_module("_signal")


class _HeldSignals:
    """Keeps the handlers of signals away while the library works, in the main thread.

    A signal's handler runs when a callback ``before`` begins, whose exceptions refuse, or behind the call. In a callback it runs at once.
    """

    def __init__(self) -> None:
        self.depth = this_thread.running
        self.came: List[Tuple[int, Any]] = []
        self.handlers: Dict[int, Any] = {}

    def hold(self) -> None:
        for number in range(1, signal.NSIG):
            handler = _native.getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                with contextlib.suppress(ValueError):  # in another interpreter, which runs no handlers
                    _native.signal(number, self)

    def __call__(self, number: int, frame: Any) -> None:
        if this_thread.running > self.depth:
            self.handlers[number](number, frame)
        else:
            self.came.append((number, frame))

    def deliver(self) -> None:
        """Runs the handlers of the signals that came."""
        while self.came:
            number, frame = self.came.pop(0)
            self.handlers[number](number, frame)

    def release(self) -> None:
        """Restores the handlers, and runs those of the signals that came."""
        self.depth = -1  # runs them at once from now on: they can raise in the loop
        for number, handler in self.handlers.items():
            if _native.getsignal(number) is self:
                _native.signal(number, handler)
        self.deliver()


def _called(call: Callable[..., Any], *arguments: Any) -> Tuple[Optional[Error], Optional[BaseException]]:
    """Calls a function of the library. Returns its error, and what a callback has raised."""
    token = object()
    held = _HeldSignals() if (_known or _closed) and threading.current_thread() is threading.main_thread() else None
    outer = this_thread.held, this_thread.raised
    try:
        if held is not None:
            held.hold()
        this_thread.held, this_thread.raised = held, None
        _inside.add(token)
        if _is_over():
            raise SystemExit  # as the interpreter ends the other threads, but here
        status = call(*arguments)
        return error_of(status) if status else None, this_thread.raised
    finally:
        _inside.discard(token)
        this_thread.held, this_thread.raised = outer
        if held is not None:
            held.release()


def changing(call: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function of the library that observers can refuse.

    If a callback's exception refused it, that is the cause of the error. One that is no Exception, such as KeyboardInterrupt, is raised
    itself.
    """
    error, raised = _called(call, *arguments)
    try:
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        if error is not None:
            raise error from raised
    finally:
        del error, raised  # their tracebacks have this frame


# The calls that other threads are in, and whether the interpreter ends.
_inside: Set[object] = set()
_ending = False


def _is_over() -> bool:
    """Returns whether the interpreter ends, for a thread other than the main one."""
    return _ending and threading.current_thread() is not threading.main_thread()


def _end() -> None:
    """Waits until no thread is in such a call, and lets no other begin one."""
    global _ending
    _ending = True
    until = time.monotonic() + _LONGEST
    while _inside and time.monotonic() < until:
        time.sleep(0.001)


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inside.clear)  # the other threads do not exist there
