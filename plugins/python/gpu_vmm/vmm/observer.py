"""Callbacks before and after the memory behind a region's addresses changes."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

from .._callbacks import Observer, add, observer_of, remove, this_thread
from .._handles import BankedHandle, RegionHandle
from .._library import check, library
from .._number import Number
from .._signatures import AFTER, BEFORE, RELEASED, ObserverStruct
from ..errors import Status


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


_Observed = Union[RegionHandle, BankedHandle]
_numbers = itertools.count(1)


def _change(change: Any) -> BackingChange:
    found = change.contents
    effect = BackingEffect(found.effect)
    return BackingChange(
        found.operation.decode(), effect, found.address, found.new_address if effect is BackingEffect.MOVED else None,
        tuple(Range(part.offset, part.length) for part in found.parts[: found.count]),
    )  # fmt: skip


def _call_before(context: int, change: Any) -> int:
    try:
        this_thread.running += 1
        try:
            if this_thread.held is not None:
                this_thread.held.deliver()
            observer = observer_of(context)
            if observer is not None and observer.before is not None:
                observer.before(_change(change))
            return int(Status.OK)
        finally:
            this_thread.running -= 1
    except BaseException as error:  # an exception cannot pass through C; `changing` raises it
        this_thread.raised = error
        return int(Status.BUSY)


def _call_after(context: int, change: Any, outcome: int) -> None:
    try:
        this_thread.running += 1
        try:
            observer = observer_of(context)
            if observer is not None and observer.after is not None:
                observer.after(_change(change), Outcome(outcome))
        finally:
            this_thread.running -= 1
    except Exception:
        raise  # reported to sys.unraisablehook: the operation has ended
    except BaseException as error:
        this_thread.raised = error


def _call_released(context: int) -> None:
    remove(context)


# Never freed: the library can call them as long as the process lives.
_BEFORE, _AFTER, _RELEASED = BEFORE(_call_before), AFTER(_call_after), RELEASED(_call_released)


def _observe(call: Callable[..., Any], handle: _Observed, before: Optional[Before], after: Optional[After], *places: Any) -> None:
    """Adds callbacks by a function of the library. The handle has them until the library releases the observer."""
    for name, callback in (("before", before), ("after", after)):
        if callback is not None and not callable(callback):
            raise TypeError(f"on_backing_change: {name} is a {type(callback).__name__}, which cannot be called")
    number = next(_numbers)
    add(number, Observer(before, after, handle.observers))
    given = ObserverStruct(context=number, before=_BEFORE, after=_AFTER, released=_RELEASED)
    status = Status.INTERNAL
    try:
        status = call(handle, ctypes.byref(given), *places)
        check(status)
    finally:
        if status:
            remove(number)


def observe(region: RegionHandle, before: Optional[Before], after: Optional[After]) -> int:
    """Adds callbacks to a region and returns the number of the observer."""
    identifier = ctypes.c_uint64()
    _observe(library().gpu_vmm_region_on_backing_change, region, before, after, ctypes.byref(identifier))
    return identifier.value


def observe_banked(banked: BankedHandle, before: Optional[Before], after: Optional[After]) -> None:
    """Adds callbacks to a banked region, with which they are removed."""
    _observe(library().gpu_vmm_banked_on_backing_change, banked, before, after)
