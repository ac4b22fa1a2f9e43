"""Callbacks before and after the memory behind a region's addresses changes."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .._handles import BankedHandle, RegionHandle
from .._library import check, library
from .._number import Number
from .._signatures import AFTER, BEFORE, RELEASED, ObserverStruct
from .._waits import running
from ..errors import Error, Status


class BackingEffect(Number):
    """What happens to the memory."""

    REMOVED = 0
    """It is unmapped, and nothing is mapped afterwards."""
    RESTORED = 1
    """A resume or the selection of a bank maps memory where none was."""
    REPLACED = 2
    """Other memory is mapped at the same addresses."""
    MOVED = 3
    """It is mapped from ``new_address`` on, and nothing at the old addresses."""


class Outcome(Number):
    """The end of a change."""

    CHANGED = 0
    """The memory has changed as announced."""
    UNCHANGED = 1
    """The operation failed, and the memory is the same as before."""
    POISONED = 2
    """The rollback failed too, and it is unknown which memory is mapped."""


class Range(NamedTuple):
    """A range of offsets in a region."""

    offset: int
    length: int


@dataclass(frozen=True)
class BackingChange:
    """A change of the memory behind addresses of a region."""

    operation: str
    """The name of the operation, such as ``suspend``."""
    effect: BackingEffect
    address: int
    """The first address of the region before the change."""
    new_address: Optional[int]
    """The first address after ``BackingEffect.MOVED``, else None."""
    parts: Tuple[Range, ...]
    """The ranges of the region whose memory changes, in ascending order."""


Before = Callable[[BackingChange], object]
"""Is called before anything changes. An exception refuses the change."""
After = Callable[[BackingChange, Outcome], object]
"""Is called once for each ``before`` that did not refuse, on every path."""


class _Callbacks(NamedTuple):
    before: Optional[Before]
    after: Optional[After]


# The callbacks of live observers, by the number that is their context in C.
_live: Dict[int, _Callbacks] = {}
_numbers = itertools.count(1)


class _Refused(threading.local):
    """The exception with which a callback has refused the operation of this thread."""

    error: Optional[BaseException] = None


_refused = _Refused()


def _change(change: Any) -> BackingChange:
    found = change.contents
    effect = BackingEffect(found.effect)
    return BackingChange(
        found.operation.decode(), effect, found.address, found.new_address if effect is BackingEffect.MOVED else None,
        tuple(Range(part.offset, part.length) for part in found.parts[: found.count]),
    )  # fmt: skip


def _call_before(context: int, change: Any) -> int:
    running.count += 1
    try:
        before = _live[context].before
        if before is not None:
            before(_change(change))
        return int(Status.OK)
    except BaseException as error:  # an exception cannot pass through C; `changing` raises it
        _refused.error = error
        return int(Status.BUSY)
    finally:
        running.count -= 1


def _call_after(context: int, change: Any, outcome: int) -> None:
    # An exception is reported to sys.unraisablehook: the operation has ended.
    running.count += 1
    try:
        after = _live[context].after
        if after is not None:
            after(_change(change), Outcome(outcome))
    finally:
        running.count -= 1


def _call_released(context: int) -> None:
    _live.pop(context, None)


# Never freed: the library can call them as long as the process lives.
_BEFORE, _AFTER, _RELEASED = BEFORE(_call_before), AFTER(_call_after), RELEASED(_call_released)


def _observer(before: Optional[Before], after: Optional[After]) -> Tuple[int, ObserverStruct]:
    """Returns an observer for C and its number. The callbacks stay until the library releases the observer."""
    for name, callback in (("before", before), ("after", after)):
        if callback is not None and not callable(callback):
            raise TypeError(f"on_backing_change: {name} is a {type(callback).__name__}, which cannot be called")
    number = next(_numbers)
    _live[number] = _Callbacks(before, after)
    return number, ObserverStruct(context=number, before=_BEFORE, after=_AFTER, released=_RELEASED)


def observe(region: RegionHandle, before: Optional[Before], after: Optional[After]) -> int:
    """Adds callbacks to a region and returns the number of the observer."""
    number, observer = _observer(before, after)
    identifier = ctypes.c_uint64()
    try:
        check(library().gpu_vmm_region_on_backing_change(region, ctypes.byref(observer), ctypes.byref(identifier)))
    except BaseException:
        _live.pop(number, None)
        raise
    return identifier.value


def observe_banked(banked: BankedHandle, before: Optional[Before], after: Optional[After]) -> None:
    """Adds callbacks to a banked region, with which they are removed."""
    number, observer = _observer(before, after)
    try:
        check(library().gpu_vmm_banked_on_backing_change(banked, ctypes.byref(observer)))
    except BaseException:
        _live.pop(number, None)
        raise


def changing(call: Any, *arguments: Any) -> None:
    """Calls a function of the library that observers can refuse.

    If a callback's exception refused it, that is the cause of the error. One that is no Exception, such as KeyboardInterrupt, is raised
    itself.
    """
    outer, _refused.error = _refused.error, None
    try:
        check(call(*arguments))
    except Error as error:
        refusal = _refused.error
        if refusal is None:
            raise
        if not isinstance(refusal, Exception):
            raise refusal
        raise error from refusal
    finally:
        _refused.error = outer
