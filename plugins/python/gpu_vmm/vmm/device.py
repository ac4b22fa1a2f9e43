"""The devices of a backend and what they can do."""

from __future__ import annotations

import ctypes
import json
from typing import List, Sequence, SupportsIndex, Tuple

from .._arguments import unsigned
from .._handles import text_of
from .._library import check, library
from .._signatures import PropertiesStruct
from ..backend import Backend
from ..results import CapabilityInfo
from .properties import DEFAULT, Properties, pointer_to, struct_of


class Device:
    """A device of a backend. Objects with the same backend and number are equal."""

    __slots__ = ("_backend", "_number")

    def __init__(self, backend: Backend, number: SupportsIndex = 0) -> None:
        self._backend, self._number = checked(backend), unsigned("number", number, 32)

    def __repr__(self) -> str:
        return f"<gpu_vmm.vmm.Device {self._backend.name} {self._number}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self._backend, self._number) == (other._backend, other._number)

    def __hash__(self) -> int:
        return hash((id(self._backend), self._number))

    @property
    def backend(self) -> Backend:
        """The backend."""
        return self._backend

    @property
    def number(self) -> int:
        """The number of the device."""
        return self._number

    def memory(self) -> Tuple[int, int]:
        """Returns the free and the total bytes of the device, as its driver reports them."""
        return self._backend.memory(self._number)

    def granularity(self) -> int:
        """Returns the unit of the sizes of the device's memory. :func:`granularity` takes other properties."""
        return granularity(self._backend, Properties(device=self._number))

    def recommended_granularity(self) -> int:
        """Returns the unit that the driver recommends for the device's memory. :func:`recommended_granularity` takes other properties."""
        return recommended_granularity(self._backend, Properties(device=self._number))

    def can_access(self, owner: SupportsIndex) -> bool:
        """Returns whether this device can access memory of the device ``owner``. Raises NoSuchDevice."""
        reachable = ctypes.c_bool()
        number = unsigned("owner", owner, 32)
        check(library().gpu_vmm_can_access(self._backend._handle, self._number, number, ctypes.byref(reachable)))
        return reachable.value

    def capabilities(self) -> List[CapabilityInfo]:
        """Returns what the device can do, with the reason for each missing feature. Raises NoSuchDevice.

        The first call may allocate one granule of memory for trials.
        """
        text = text_of(library().gpu_vmm_capabilities, self._backend._handle, self._number)
        found: List[CapabilityInfo] = json.loads(text)
        return found


def devices(backend: Backend) -> List[Device]:
    """Returns all devices of a backend, including devices that cannot be used."""
    return [Device(backend, number) for number in range(checked(backend).devices)]


def granularity(backend: Backend, properties: Properties = DEFAULT) -> int:
    """Returns the unit of the sizes of memory with these properties. Raises NoSuchDevice, or Unsupported for memory that the driver lacks."""
    unit = ctypes.c_uint64()
    check(library().gpu_vmm_granularity(checked(backend)._handle, pointer_to(properties), ctypes.byref(unit)))
    return unit.value


def recommended_granularity(backend: Backend, properties: Properties = DEFAULT) -> int:
    """Returns the unit that the driver recommends for memory with these properties, a multiple of :func:`granularity`.

    The pages of pools are multiples of it. Raises NoSuchDevice, or Unsupported for memory that the driver lacks.
    """
    unit = ctypes.c_uint64()
    check(library().gpu_vmm_recommended_granularity(checked(backend)._handle, pointer_to(properties), ctypes.byref(unit)))
    return unit.value


def first_supported(backend: Backend, preferred: Sequence[Properties]) -> Tuple[Properties, List[str]]:
    """Returns the first of several kinds of memory that the device supports, and the reason for each kind before it.

    Each kind is tried: a granule is created, and exported by each of its handle types. Raises Unsupported with all reasons if the device
    supports none.
    """
    kinds = [struct_of(properties) for properties in preferred]
    index, array = ctypes.c_uint64(), (PropertiesStruct * len(kinds))(*kinds)
    opened, call = checked(backend)._handle, library().gpu_vmm_first_supported
    reasons: List[str] = json.loads(text_of(call, opened, array, len(kinds), ctypes.byref(index)))
    return preferred[index.value], reasons


def reservation_unit(backend: Backend) -> int:
    """Returns the unit of the sizes of address ranges."""
    unit = ctypes.c_uint64()
    check(library().gpu_vmm_reservation_unit(checked(backend)._handle, ctypes.byref(unit)))
    return unit.value


def checked(backend: Backend) -> Backend:
    """Returns the backend. Raises TypeError for another object."""
    if not isinstance(backend, Backend):
        raise TypeError(f"backend: expected a gpu_vmm.Backend, not {type(backend).__name__}; gpu_vmm.open(name) opens one")
    return backend
