"""The types of arguments that several modules take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Protocol, SupportsFloat, SupportsIndex, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer
    from typing_extensions import CapsuleType as CapsuleType
else:
    # Type checkers know both without the package typing_extensions. At run time these names replace them.
    _Buffer = CapsuleType = object


class _Array(Protocol):
    """A NumPy array. To type checkers it is a buffer only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> Dict[str, Any]: ...


Buffer = Union[_Buffer, _Array]
"""An object that ``memoryview()`` takes."""


class SupportsComplex(Protocol):
    """A number that ``complex()`` converts."""

    def __complex__(self) -> complex: ...


Number = Union[SupportsIndex, SupportsFloat, SupportsComplex, complex]
"""An element. Before Python 3.11 ``complex`` has no ``__complex__``."""

Values = Union[Buffer, Iterable[Number]]
"""Elements: a buffer of the same type, ``bytes`` as raw contents, or numbers."""
