"""The structs and the types of the functions that :mod:`gpu_vmm.vmm` calls."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple


class PropertiesStruct(ctypes.Structure):
    """``gpu_vmm_properties``."""

    _fields_ = [
        ("device", c_uint32), ("location", c_uint32), ("node", c_uint32), ("handle_types", c_uint32), ("compressible", c_bool),
        ("remote_dma", c_bool), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class RegionOptions(ctypes.Structure):
    """``gpu_vmm_region_options``."""

    _fields_ = [
        ("memory", PropertiesStruct), ("size", c_uint64), ("placement", c_uint32), ("portable", c_bool),
        ("recommended_granularity", c_bool), ("address", c_uint64), ("alignment", c_uint64), ("extend_by", c_uint64), ("guard", c_uint64), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class DevicePair(ctypes.Structure):
    """``gpu_vmm_device_pair``."""

    _fields_ = [("from_", c_uint32), ("to", c_uint32)]


class RestoreOptions(ctypes.Structure):
    """``gpu_vmm_restore_options``."""

    _fields_ = [
        ("relocate", c_bool), ("by_uuid", c_bool), ("devices", POINTER(DevicePair)), ("device_count", c_uint64),
        ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class RangeStruct(ctypes.Structure):
    """``gpu_vmm_range``."""

    _fields_ = [("offset", c_uint64), ("length", c_uint64)]


class ChangeStruct(ctypes.Structure):
    """``gpu_vmm_backing_change``."""

    _fields_ = [
        ("operation", c_char_p), ("effect", c_uint32), ("address", c_uint64), ("new_address", c_uint64),
        ("parts", POINTER(RangeStruct)), ("count", c_uint64),
    ]  # fmt: skip


BEFORE = CFUNCTYPE(c_int32, c_void_p, POINTER(ChangeStruct))
AFTER = CFUNCTYPE(None, c_void_p, POINTER(ChangeStruct), c_uint32)
RELEASED = CFUNCTYPE(None, c_void_p)


class ObserverStruct(ctypes.Structure):
    """``gpu_vmm_observer``."""

    _fields_ = [
        ("context", c_void_p), ("before", BEFORE), ("after", AFTER), ("released", RELEASED), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class MappingStruct(ctypes.Structure):
    """``gpu_vmm_mapping``."""

    _fields_ = [("offset", c_uint64), ("length", c_uint64), ("device", c_uint32), ("poisoned", c_bool)]


class DmaBufStruct(ctypes.Structure):
    """``gpu_vmm_dma_buf``."""

    _fields_ = [("fd", c_int32), ("offset", c_uint64), ("length", c_uint64)]


class TeamOptions(ctypes.Structure):
    """``gpu_vmm_team_options``."""

    _fields_ = [
        ("devices", POINTER(c_uint32)), ("device_count", c_uint64), ("size", c_uint64), ("elsewhere", c_uint32),
        ("handle_types", c_uint32), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class FabricHandle(ctypes.Structure):
    """``gpu_vmm_fabric_handle``."""

    _fields_ = [("bytes", c_uint8 * 64)]


class CreateOptionsStruct(ctypes.Structure):
    """``gpu_vmm_create_options``."""

    _fields_ = [
        ("memory", PropertiesStruct), ("mode", c_uint32), ("group", c_uint32), ("has_group", c_bool), ("address", c_uint64), ("handle", c_uint64),
        ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class ProgramOptionsStruct(ctypes.Structure):
    """``gpu_vmm_program_options``."""

    _fields_ = [
        ("name", c_char_p), ("priority", c_int32), ("user", c_uint32), ("has_user", c_bool), ("wait_ms", c_uint64), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


class PartStruct(ctypes.Structure):
    """``gpu_vmm_part``."""

    _fields_ = [
        ("name", c_char_p), ("offset", c_uint64), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("ndim", c_int32),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("reserved", c_uint64 * 4),
    ]  # fmt: skip


_OBJECT = c_void_p
_STATUS = c_int32
_NEW = POINTER(_OBJECT)
_U64 = POINTER(c_uint64)
_U32 = POINTER(c_uint32)
_BOOL = POINTER(c_bool)
_PROPERTIES = POINTER(PropertiesStruct)
_OPTIONS = POINTER(RegionOptions)
_OBSERVER = POINTER(ObserverStruct)

FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "gpu_vmm_granularity": (_STATUS, [_OBJECT, _PROPERTIES, _U64]),
    "gpu_vmm_recommended_granularity": (_STATUS, [_OBJECT, _PROPERTIES, _U64]),
    "gpu_vmm_first_supported": (_STATUS, [_OBJECT, _PROPERTIES, c_uint64, _U64, POINTER(c_void_p)]),
    "gpu_vmm_reservation_unit": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_can_access": (_STATUS, [_OBJECT, c_uint32, c_uint32, _BOOL]),
    "gpu_vmm_capabilities": (_STATUS, [_OBJECT, c_uint32, POINTER(c_void_p)]),
    "gpu_vmm_pool_memory_at": (_STATUS, [_OBJECT, c_uint64, _NEW, _U64]),
    "gpu_vmm_physical_adopt": (_STATUS, [_OBJECT, c_uint64, _NEW]),
    "gpu_vmm_physical_create": (_STATUS, [_OBJECT, _PROPERTIES, c_uint64, _NEW]),
    "gpu_vmm_physical_retain": (_STATUS, [_OBJECT, _NEW]),
    "gpu_vmm_physical_release": (None, [_OBJECT]),
    "gpu_vmm_physical_size": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_physical_properties": (_STATUS, [_OBJECT, _PROPERTIES]),
    "gpu_vmm_physical_same": (_STATUS, [_OBJECT, _OBJECT, _BOOL]),
    "gpu_vmm_physical_read": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_physical_write": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_physical_holders": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_physical_copy": (_STATUS, [_OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64]),
    "gpu_vmm_multicast_create": (_STATUS, [_OBJECT, POINTER(TeamOptions), _NEW]),
    "gpu_vmm_multicast_sizes": (_STATUS, [_OBJECT, _U64, _U64, _U64]),
    "gpu_vmm_multicast_bind": (_STATUS, [_OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64]),
    "gpu_vmm_multicast_unbind": (_STATUS, [_OBJECT, c_uint32, c_uint64]),
    "gpu_vmm_multicast_map": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_multicast_unmap": (_STATUS, [_OBJECT]),
    "gpu_vmm_multicast_free": (None, [_OBJECT]),
    "gpu_vmm_page_list_new": (_STATUS, [_OBJECT, _PROPERTIES, c_uint64, c_uint64, _NEW]),
    "gpu_vmm_page_list_free": (None, [_OBJECT]),
    "gpu_vmm_page_list_sizes": (_STATUS, [_OBJECT, _U64, _U64, _U64, _U64]),
    "gpu_vmm_page_list_set_budget": (_STATUS, [_OBJECT, c_uint64]),
    "gpu_vmm_page_list_take": (_STATUS, [_OBJECT, _NEW]),
    "gpu_vmm_physical_export_fabric": (_STATUS, [_OBJECT, POINTER(FabricHandle)]),
    "gpu_vmm_physical_import_fabric": (_STATUS, [_OBJECT, _PROPERTIES, c_uint64, POINTER(FabricHandle), _NEW]),
    "gpu_vmm_physical_offer": (_STATUS, [_OBJECT, _OBJECT, c_uint32, _NEW]),
    "gpu_vmm_physical_import": (_STATUS, [_OBJECT, c_void_p, c_uint64, _NEW]),
    "gpu_vmm_offer_bytes": (_STATUS, [_OBJECT, POINTER(c_void_p), _U64]),
    "gpu_vmm_offer_free": (None, [_OBJECT]),
    "gpu_vmm_region_reserve": (_STATUS, [_OBJECT, _OPTIONS, _NEW]),
    "gpu_vmm_region_reserved": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_region_granularity": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_region_grow_or_move": (_STATUS, [_OBJECT, c_uint64, _U64]),
    "gpu_vmm_region_grow_with": (_STATUS, [_OBJECT, c_uint64, _OBJECT]),
    "gpu_vmm_region_resume_with": (_STATUS, [_OBJECT, _OBJECT, _U64]),
    "gpu_vmm_region_suspend_shared": (_STATUS, [_OBJECT, c_char_p, c_bool, _U64, _U64]),
    "gpu_vmm_region_fork": (_STATUS, [_OBJECT, c_uint64, _OBJECT]),
    "gpu_vmm_region_make_private": (_STATUS, [_OBJECT, c_uint64, c_uint64, _OBJECT, _U64]),
    "gpu_vmm_region_holders": (_STATUS, [_OBJECT, c_uint64, _U64]),
    "gpu_vmm_region_map": (_STATUS, [_OBJECT, c_uint64, _OBJECT]),
    "gpu_vmm_region_unmap": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_bool]),
    "gpu_vmm_region_set_access": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_uint32, c_uint32]),
    "gpu_vmm_region_access": (_STATUS, [_OBJECT, c_uint64, c_uint32, _U32]),
    "gpu_vmm_region_mapping": (_STATUS, [_OBJECT, c_uint64, POINTER(MappingStruct)]),
    "gpu_vmm_region_physical": (_STATUS, [_OBJECT, c_uint64, _NEW]),
    "gpu_vmm_region_on_backing_change": (_STATUS, [_OBJECT, _OBSERVER, _U64]),
    "gpu_vmm_region_remove_observer": (_STATUS, [_OBJECT, c_uint64]),
    "gpu_vmm_region_swap": (_STATUS, [_OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64, c_bool]),
    "gpu_vmm_region_swap_all": (_STATUS, [_OBJECT, _OBJECT, c_bool]),
    "gpu_vmm_region_move_to_device": (_STATUS, [_OBJECT, c_uint32]),
    "gpu_vmm_region_fill": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_uint8]),
    "gpu_vmm_region_copy": (_STATUS, [_OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64]),
    "gpu_vmm_region_offer": (_STATUS, [_OBJECT, c_uint32, _NEW]),
    "gpu_vmm_region_import": (_STATUS, [_OBJECT, c_void_p, c_uint64, _NEW]),
    "gpu_vmm_region_tag": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_region_set_tag": (_STATUS, [_OBJECT, c_char_p]),
    "gpu_vmm_region_snapshot": (_STATUS, [_OBJECT, c_char_p, c_bool]),
    "gpu_vmm_region_restore": (_STATUS, [_OBJECT, c_char_p, POINTER(RestoreOptions), _NEW]),
    "gpu_vmm_regions_snapshot": (_STATUS, [POINTER(c_void_p), c_uint64, c_char_p, c_bool]),
    "gpu_vmm_regions_restore": (_STATUS, [_OBJECT, c_char_p, POINTER(RestoreOptions), POINTER(c_void_p), c_uint64]),
    "gpu_vmm_snapshot_count": (_STATUS, [c_char_p, _U64]),
    "gpu_vmm_banked_new": (_STATUS, [_OBJECT, _OPTIONS, _NEW]),
    "gpu_vmm_banked_free": (None, [_OBJECT]),
    "gpu_vmm_banked_address": (_STATUS, [_OBJECT, _U64]),
    "gpu_vmm_banked_add": (_STATUS, [_OBJECT, c_uint64, _U32]),
    "gpu_vmm_banked_add_physical": (_STATUS, [_OBJECT, POINTER(c_void_p), c_uint64, _U32]),
    "gpu_vmm_banked_select": (_STATUS, [_OBJECT, c_uint32]),
    "gpu_vmm_banked_hide": (_STATUS, [_OBJECT]),
    "gpu_vmm_banked_remove": (_STATUS, [_OBJECT, c_uint32]),
    "gpu_vmm_banked_selected": (_STATUS, [_OBJECT, _U32]),
    "gpu_vmm_banked_read": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_banked_write": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
    "gpu_vmm_banked_on_backing_change": (_STATUS, [_OBJECT, _OBSERVER]),
    "gpu_vmm_event_new": (_STATUS, [_OBJECT, c_uint32, _NEW]),
    "gpu_vmm_event_free": (None, [_OBJECT]),
    "gpu_vmm_event_record": (_STATUS, [_OBJECT, c_void_p]),
    "gpu_vmm_event_done": (_STATUS, [_OBJECT, _BOOL]),
    "gpu_vmm_region_is_plain": (_STATUS, [_OBJECT, _BOOL]),
    "gpu_vmm_event_wait": (_STATUS, [_OBJECT]),
    "gpu_vmm_event_hold": (_STATUS, [_OBJECT, c_void_p]),
    "gpu_vmm_pinned_new": (_STATUS, [_OBJECT, c_uint64, _NEW]),
    "gpu_vmm_pinned_free": (None, [_OBJECT]),
    "gpu_vmm_pinned_data": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
    "gpu_vmm_copy_queue_new": (_STATUS, [_OBJECT, c_uint32, _NEW]),
    "gpu_vmm_copy_queue_free": (None, [_OBJECT]),
    "gpu_vmm_copy_queue_write": (_STATUS, [_OBJECT, _OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64]),
    "gpu_vmm_copy_queue_read": (_STATUS, [_OBJECT, _OBJECT, c_uint64, _OBJECT, c_uint64, c_uint64]),
    "gpu_vmm_copy_queue_hold": (_STATUS, [_OBJECT, _OBJECT]),
    "gpu_vmm_copy_queue_record": (_STATUS, [_OBJECT, _OBJECT]),
    "gpu_vmm_copy_queue_finish": (_STATUS, [_OBJECT]),
}
"""The result type and the argument types of each function."""

if sys.platform == "linux":
    FUNCTIONS.update(
        {
            "gpu_vmm_listener_new": (_STATUS, [c_char_p, _NEW]),
            "gpu_vmm_listener_replace_stale": (_STATUS, [c_char_p, _NEW]),
            "gpu_vmm_listener_free": (None, [_OBJECT]),
            "gpu_vmm_export": (_STATUS, [_OBJECT, _OBJECT, c_uint64, _NEW]),
            "gpu_vmm_export_to_user": (_STATUS, [_OBJECT, _OBJECT, c_uint32, c_uint64, _NEW]),
            "gpu_vmm_exporter_free": (None, [_OBJECT]),
            "gpu_vmm_exporter_publish": (_STATUS, [_OBJECT, _OBJECT, _BOOL]),
            "gpu_vmm_exporter_wait_applied": (_STATUS, [_OBJECT, c_uint64]),
            "gpu_vmm_exporter_request_release": (_STATUS, [_OBJECT]),
            "gpu_vmm_exporter_wait_released": (_STATUS, [_OBJECT, c_uint64, _U32]),
            "gpu_vmm_follow": (_STATUS, [_OBJECT, c_char_p, c_uint64, c_uint64, _NEW]),
            "gpu_vmm_follow_user": (_STATUS, [_OBJECT, c_char_p, c_uint32, c_uint64, c_uint64, _NEW]),
            "gpu_vmm_followed_free": (None, [_OBJECT]),
            "gpu_vmm_followed_next": (_STATUS, [_OBJECT, c_uint64, _U32]),
            "gpu_vmm_followed_apply": (_STATUS, [_OBJECT, c_bool]),
            "gpu_vmm_followed_release": (_STATUS, [_OBJECT]),
            "gpu_vmm_followed_range": (_STATUS, [_OBJECT, _U64, _U64]),
            "gpu_vmm_followed_read": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
            "gpu_vmm_followed_write": (_STATUS, [_OBJECT, c_uint64, c_void_p, c_uint64]),
            "gpu_vmm_connect": (_STATUS, [_OBJECT, c_char_p, _NEW]),
            "gpu_vmm_connect_user": (_STATUS, [_OBJECT, c_char_p, c_uint32, _NEW]),
            "gpu_vmm_client_free": (None, [_OBJECT]),
            "gpu_vmm_set_pool_server": (_STATUS, [c_char_p, POINTER(ProgramOptionsStruct)]),
            "gpu_vmm_pool_granted": (_STATUS, [_OBJECT, _U64, POINTER(c_bool)]),
            "gpu_vmm_pool_reserve": (_STATUS, [_OBJECT, c_uint64, c_uint64]),
            "gpu_vmm_pool_let_sleep": (_STATUS, [_OBJECT, c_char_p]),
            "gpu_vmm_pool_wake": (_STATUS, [_OBJECT, c_char_p, _U64]),
            "gpu_vmm_client_status": (_STATUS, [_OBJECT, POINTER(c_void_p)]),
            "gpu_vmm_client_create": (_STATUS, [_OBJECT, c_char_p, c_uint64, POINTER(CreateOptionsStruct), _NEW]),
            "gpu_vmm_client_load": (_STATUS, [_OBJECT, c_char_p, c_char_p, POINTER(CreateOptionsStruct), _NEW]),
            "gpu_vmm_lease_save": (_STATUS, [_OBJECT, c_char_p, _U64]),
            "gpu_vmm_client_open": (_STATUS, [_OBJECT, c_char_p, c_uint32, c_uint64, _NEW]),
            "gpu_vmm_client_drop": (_STATUS, [_OBJECT, c_char_p]),
            "gpu_vmm_lease_free": (None, [_OBJECT]),
            "gpu_vmm_lease_close": (_STATUS, [_OBJECT]),
            "gpu_vmm_lease_region": (_STATUS, [_OBJECT, _NEW]),
            "gpu_vmm_lease_state": (_STATUS, [_OBJECT, _U32, _U64]),
            "gpu_vmm_lease_layout": (_STATUS, [_OBJECT, _NEW]),
            "gpu_vmm_lease_fd": (_STATUS, [_OBJECT, POINTER(c_int32)]),
            "gpu_vmm_lease_next": (_STATUS, [_OBJECT, c_uint64, _U32]),
            "gpu_vmm_lease_apply": (_STATUS, [_OBJECT, _U64]),
            "gpu_vmm_lease_renew": (_STATUS, [_OBJECT, c_uint64, c_uint64, c_bool, POINTER(RangeStruct)]),
            "gpu_vmm_lease_commit": (_STATUS, [_OBJECT, _OBJECT, _U64]),
            "gpu_vmm_lease_downgrade": (_STATUS, [_OBJECT]),
            "gpu_vmm_layout_new": (_STATUS, [_NEW]),
            "gpu_vmm_layout_free": (None, [_OBJECT]),
            "gpu_vmm_layout_set_part": (_STATUS, [_OBJECT, POINTER(PartStruct)]),
            "gpu_vmm_layout_set_note": (_STATUS, [_OBJECT, c_char_p, c_char_p]),
            "gpu_vmm_layout_sizes": (_STATUS, [_OBJECT, _U64, _U64]),
            "gpu_vmm_layout_part": (_STATUS, [_OBJECT, c_uint64, POINTER(PartStruct)]),
            "gpu_vmm_layout_note": (_STATUS, [_OBJECT, c_uint64, POINTER(c_char_p), POINTER(c_char_p)]),
        }
    )
if os.name == "posix":  # elsewhere the library has no file descriptors
    FUNCTIONS["gpu_vmm_physical_export_fd"] = (_STATUS, [_OBJECT, POINTER(c_int32)])
    FUNCTIONS["gpu_vmm_multicast_export_fd"] = (_STATUS, [_OBJECT, POINTER(c_int32)])
    FUNCTIONS["gpu_vmm_multicast_import_fd"] = (_STATUS, [_OBJECT, POINTER(TeamOptions), c_int32, _NEW])
    FUNCTIONS["gpu_vmm_region_dma_bufs"] = (_STATUS, [_OBJECT, c_uint64, c_uint64, POINTER(DmaBufStruct), c_uint64, _U64])
    FUNCTIONS["gpu_vmm_physical_import_fd"] = (_STATUS, [_OBJECT, _PROPERTIES, c_uint64, c_int32, _NEW])
