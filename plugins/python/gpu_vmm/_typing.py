"""The types of arguments that several modules take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, Protocol, SupportsFloat, SupportsIndex, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer
    from typing_extensions import CapsuleType as CapsuleType
else:
    # Type checkers know both without the package typing_extensions. At run time the names stay resolvable.
    _Buffer = CapsuleType = object


class _Array(Protocol):
    """An array of NumPy, which is a buffer by its types for Python 3.12 and later alone."""

    @property
    def __array_interface__(self) -> Dict[str, Any]: ...


Buffer = Union[_Buffer, _Array]
"""What ``memoryview()`` takes."""


class SupportsComplex(Protocol):
    """A number that ``complex()`` converts."""

    def __complex__(self) -> complex: ...


Number = Union[SupportsIndex, SupportsFloat, SupportsComplex, complex]
"""An element. Before Python 3.11 ``complex`` has no ``__complex__``."""

Values = Union[Buffer, Iterable[Number]]
"""Elements: a buffer of the type, ``bytes`` as they lie, or numbers."""
