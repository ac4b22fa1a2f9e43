"""The base class of objects that can be closed before they are garbage-collected."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Type, TypeVar

from .._handles import Handle
from .._owner import Owner
from ..errors import InvalidArgument

Self = TypeVar("Self", bound="Closable")


class Closable(Owner):
    """An object with one handle, which ``close`` or the end of a ``with`` block drops.

    A call of another thread keeps the handle until it returns, so no call uses freed memory.
    """

    __slots__ = ("_handle",)
    _instead = "any thread and any object may use the same one"

    def _own(self, handle: Handle) -> None:
        """Sets the handle. Raises TypeError if the object has one: its users would lose it."""
        try:
            object.__getattribute__(self, "_handle")
        except AttributeError:
            self._handle: Any = handle
        else:
            raise TypeError(f"{type(self).__name__}.__init__: the object exists already; create another one")

    @classmethod
    def _of(cls: Type[Self], handle: Handle) -> Self:
        """Returns an object for a handle."""
        made = cls.__new__(cls)
        made._own(handle)
        return made

    @property
    def closed(self) -> bool:
        """Whether the object is closed."""
        try:
            object.__getattribute__(self, "_handle")
        except AttributeError:
            return True
        return False

    def close(self) -> None:
        """Releases the object now instead of when it is garbage-collected. Later calls, except ``close``, raise InvalidArgument."""
        try:
            del self._handle
        except AttributeError:
            pass

    if not TYPE_CHECKING:  # for type checkers, every attribute would exist

        def __getattr__(self, name: str) -> Any:
            # Called for a missing attribute only: the handle of a closed object.
            if name == "_handle":
                raise InvalidArgument(f"{type(self).__name__}: the object is closed")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


def handle_of(what: str, value: Closable, kind: Type[Closable], name: str = "") -> Any:
    """Returns the handle of an argument. Raises TypeError for an object of another class. ``name``: that of the class, if ``kind`` is a part."""
    if not isinstance(value, kind):
        raise TypeError(f"{what}: expected a gpu_vmm.vmm.{name or kind.__name__}, not {type(value).__name__}")
    return value._handle
