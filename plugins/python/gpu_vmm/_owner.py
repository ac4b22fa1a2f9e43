"""The base class of objects that own something of the library: they are initialized once, and neither copied nor pickled by accident.

Python copies an object by copying its attributes. Two objects with one pointer would free it twice and overwrite each other.
"""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Owner:
    """An object that owns something of the library."""

    __slots__ = ()
    _refuses = "copied or pickled"
    _instead = ""
    """What to do instead of copying it."""

    def _make_once(self, attribute: str) -> None:
        """Raises TypeError if ``__init__`` has set this attribute before: users of the object would lose what it owned."""
        if hasattr(self, attribute):
            raise TypeError(f"{type(self).__name__}.__init__: the object exists already; create another one")

    # copy.copy, copy.deepcopy and pickle end here, unless a class has __copy__ and __deepcopy__.
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be {self._refuses}: {self._instead}")
