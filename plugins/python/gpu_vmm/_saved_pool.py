"""The calls for the files of pools."""

from __future__ import annotations

import ctypes
import json
from typing import Optional, Sequence, Tuple

from ._arguments import Path, path_of, text
from ._handles import BackendHandle, PoolHandle, text_of
from ._library import PoolOptions, RestoredBlock, check, library
from .errors import InvalidArgument
from .results import AddressInfo

_LONG_TAG = 60
"""Fields of fewer bytes hold whole tags: a character has up to four, and the field has space for 63."""


def save(pool: PoolHandle, path: Path, tags: Optional[Sequence[str]], compress: bool) -> None:
    """Writes the live blocks with these tags to a file; None means all."""
    name, wanted = path_of("path", path), None
    if tags is not None:
        if isinstance(tags, str):
            raise TypeError(f"tags: expected a sequence of str, not the str {tags!r}; pass [{tags!r}]")
        wanted = (ctypes.c_char_p * len(tags))(*(text("tags", tag) for tag in tags))
        if not wanted:
            raise InvalidArgument("save: tags is empty; pass None for all")
    check(library().gpu_vmm_pool_save(pool, name, wanted, len(wanted or ()), bool(compress)))


def restore(backend: BackendHandle, path: Path, options: PoolOptions) -> Tuple[PoolHandle, ctypes.Array[RestoredBlock]]:
    """Returns the pool of a file, and its blocks."""
    handle, found = PoolHandle(), places(path)
    check(
        library().gpu_vmm_pool_restore(
            backend, path_of("path", path), ctypes.byref(options), handle.place(), found, len(found)
        )
    )
    return handle, found


def places(path: Path) -> ctypes.Array[RestoredBlock]:
    """Returns the places for the blocks of a file."""
    count = ctypes.c_uint64()
    check(library().gpu_vmm_saved_pool_count(path_of("path", path), ctypes.byref(count)))
    return (RestoredBlock * count.value)()


def whole_tag(field: bytes, address: int) -> str:
    """Returns the tag of the block at an address. The library truncates a long one in its field."""
    if len(field) >= _LONG_TAG:
        found: AddressInfo = json.loads(text_of(library().gpu_vmm_at, address))
        if found["block"] is not None:
            return found["block"]["tag"]
    return field.decode("utf-8", "replace")
