//! What functions of several files return on host memory, and which objects they end.
#![allow(clippy::unwrap_used, unsafe_code)]

use crate::backend::{Backend, gpu_vmm_backend_devices, gpu_vmm_backend_info, gpu_vmm_close, gpu_vmm_memory};
use crate::banked::{gpu_vmm_banked_free, gpu_vmm_banked_new};
use crate::device::{
    gpu_vmm_can_access, gpu_vmm_capabilities, gpu_vmm_granularity, gpu_vmm_reservation_unit,
};
use crate::event::{gpu_vmm_event_free, gpu_vmm_event_hold, gpu_vmm_event_new, gpu_vmm_event_record};
use crate::handles::{self, Object};
use crate::mapping::{
    gpu_vmm_region_access, gpu_vmm_region_map, gpu_vmm_region_mapping, gpu_vmm_region_set_access,
    gpu_vmm_region_unmap,
};
use crate::observer::{
    BackingChange, Observer, gpu_vmm_region_on_backing_change, gpu_vmm_region_remove_observer,
};
use crate::physical::{
    Physical, gpu_vmm_physical_create, gpu_vmm_physical_properties, gpu_vmm_physical_release,
    gpu_vmm_physical_size,
};
use crate::pool::{gpu_vmm_pool_free, gpu_vmm_pool_new};
use crate::properties::{
    GPU_VMM_ACCESS_NONE, GPU_VMM_ACCESS_READ, GPU_VMM_ACCESS_READ_WRITE, GPU_VMM_HANDLE_FD,
    GPU_VMM_LOCATION_DEVICE, GPU_VMM_LOCATION_HOST, Properties,
};
use crate::queue::{
    gpu_vmm_copy_queue_free, gpu_vmm_copy_queue_new, gpu_vmm_pinned_free, gpu_vmm_pinned_new,
};
use crate::region::{
    Region, gpu_vmm_region_address, gpu_vmm_region_free, gpu_vmm_region_grow, gpu_vmm_region_new,
    gpu_vmm_region_resume, gpu_vmm_region_suspend,
};
use crate::replace::{
    gpu_vmm_region_copy, gpu_vmm_region_fill, gpu_vmm_region_move_to_device, gpu_vmm_region_swap,
    gpu_vmm_region_swap_all,
};
use crate::reservation::{RegionOptions, gpu_vmm_region_grow_or_move, gpu_vmm_region_reserved};
use crate::snapshot::{
    DevicePair, GPU_VMM_DEVICE_ALL, RestoreOptions, gpu_vmm_region_restore, gpu_vmm_region_snapshot,
    gpu_vmm_regions_restore, gpu_vmm_regions_snapshot,
};
use crate::status::{
    GPU_VMM_ADDRESS_TAKEN, GPU_VMM_BUSY, GPU_VMM_INTERNAL, GPU_VMM_INVALID_ARGUMENT, GPU_VMM_NO_SUCH_DEVICE,
    GPU_VMM_NOT_FOUND, GPU_VMM_OK, Status, gpu_vmm_last_error,
};
use crate::tensor::{gpu_vmm_dlpack_delete, gpu_vmm_dlpack_device, gpu_vmm_region_dlpack};
use crate::texts::gpu_vmm_string_free;
use gpu_vmm::dlpack::Tensor;
use gpu_vmm::host::HostConfig;
use gpu_vmm::{AnyBackend, Backend as _, Bytes, DeviceId, Operation};
use serde_json::{Value, json};
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut, without_provenance_mut};

mod memory;
mod observers;
mod results;
mod with_tensor;

const UNIT: u64 = Bytes::mib(2).0;

fn open(config: &HostConfig) -> *mut Backend {
    handles::add(Backend(AnyBackend::from(config.open().unwrap()))).unwrap()
}

pub(crate) fn last_error() -> String {
    // SAFETY: a string that lives until the thread's next error.
    unsafe { CStr::from_ptr(gpu_vmm_last_error()) }.to_str().unwrap().to_owned()
}

/// Returns the result of a call that must succeed.
#[track_caller]
fn result<T>(call: impl FnOnce(*mut T) -> Status) -> T {
    let mut place = MaybeUninit::uninit();
    assert_eq!(call(place.as_mut_ptr()), GPU_VMM_OK, "{}", last_error());
    // SAFETY: a call that succeeds has written its result.
    unsafe { place.assume_init() }
}

#[track_caller]
fn json_of(call: impl FnOnce(*mut *mut c_char) -> Status) -> Value {
    let text = result(call);
    // SAFETY: the text is the call's result, and freed once.
    unsafe {
        let value = serde_json::from_str(CStr::from_ptr(text).to_str().unwrap()).unwrap();
        gpu_vmm_string_free(text);
        value
    }
}

/// A region of device 0 with one unit of memory.
fn one_unit(backend: *const Backend) -> *mut Region {
    // SAFETY: the backend is open.
    unsafe {
        let region = result(|place| gpu_vmm_region_new(backend, 0, 4 * UNIT, place));
        assert_eq!(gpu_vmm_region_grow(region, UNIT), GPU_VMM_OK);
        region
    }
}

fn physical(backend: *const Backend, properties: &Properties, size: u64) -> *mut Physical {
    // SAFETY: the backend is open.
    result(|place| unsafe { gpu_vmm_physical_create(backend, properties, size, place) })
}

/// Options for a region of device 0 with this size of addresses.
fn region_options(size: u64) -> RegionOptions {
    RegionOptions {
        memory: of_device(0),
        size,
        placement: 0,
        portable: false,
        recommended_granularity: false,
        address: 0,
        alignment: 0,
        extend_by: 0,
        guard: 0,
        reserved: [0; 4],
    }
}

pub(crate) fn of_device(device: u32) -> Properties {
    Properties {
        device,
        location: GPU_VMM_LOCATION_DEVICE,
        node: 0,
        handle_types: 0,
        compressible: false,
        remote_dma: false,
        reserved: [0; 4],
    }
}

#[test]
fn descriptions_have_the_values_of_the_backend() {
    let config = HostConfig::new().devices(2).memory(Bytes::mib(64));
    for config in [config.clone(), config.without_virtual_memory()] {
        let backend = open(&config);
        // SAFETY: the backend is closed after the last call, and the places are writable.
        unsafe {
            let rust = &handles::find(backend).unwrap().0;
            let driver = rust.driver();
            let devices = rust.devices().iter().map(|device| {
                json!({
                    "device": device.id.0,
                    "name": device.name,
                    "uuid": device.uuid.map(|uuid| uuid.to_string()),
                    "total": Bytes::mib(64).0,
                    "granularity": UNIT,
                    "unusable": null,
                    "no_virtual_memory": device.no_virtual_memory.as_deref(),
                    "compute_mode": null,
                })
            });
            let expected = json!({
                "backend": "host",
                "driver": driver.version,
                "driver_number": driver.version_number,
                "library": driver.library,
                "devices": devices.collect::<Vec<_>>(),
                "quirks": rust.quirks().iter().map(|quirk| quirk.id).collect::<Vec<_>>(),
            });
            assert_eq!(json_of(|place| gpu_vmm_backend_info(backend, place)), expected);
            assert_eq!(result(|place| gpu_vmm_backend_devices(backend, place)), 2);
            let found = rust.capabilities(DeviceId(1)).unwrap().into_iter().map(|one| {
                json!({
                    "feature": one.feature.name(),
                    "available": one.available,
                    "found_by": one.found_by.to_string(),
                    "note": one.note,
                })
            });
            let found = Value::Array(found.collect());
            assert_eq!(json_of(|place| gpu_vmm_capabilities(backend, 1, place)), found);
            gpu_vmm_close(backend);
        }
    }
}

#[test]
fn region_has_requested_memory_and_addresses() {
    let backend = open(&HostConfig::new().devices(2).memory(Bytes::mib(64)));
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        let region = result(|place| gpu_vmm_region_new(backend, 1, 8 * UNIT, place));
        assert_eq!(result(|place| gpu_vmm_region_reserved(region, place)), 8 * UNIT);
        assert_eq!(gpu_vmm_region_grow(region, 3 * UNIT), GPU_VMM_OK);
        assert_eq!(result(|place| gpu_vmm_region_mapping(region, 0, place)).device, 1);
        for (device, free) in [(0, 64), (1, 58)] {
            let (mut free_bytes, mut total_bytes) = (0, 0);
            assert_eq!(
                gpu_vmm_memory(backend, device, &raw mut free_bytes, &raw mut total_bytes),
                GPU_VMM_OK
            );
            assert_eq!([free_bytes, total_bytes], [free, 64].map(|size| Bytes::mib(size).0), "{device}");
        }
        let large = result(|place| gpu_vmm_region_new(backend, 1, 0, place));
        assert_eq!(result(|place| gpu_vmm_region_reserved(large, place)), Bytes::mib(64).0);
        gpu_vmm_region_free(large);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

#[test]
fn units_and_reach_match_memory_and_device() {
    let config = HostConfig::new().devices(2).host_granularity(Bytes::mib(8));
    for (config, reach) in [(config.clone(), true), (config.without_peers(), false)] {
        let backend = open(&config);
        // SAFETY: the backend is closed after the last call, and the places are writable.
        unsafe {
            assert_eq!(result(|place| gpu_vmm_granularity(backend, null(), place)), UNIT);
            let host = Properties { location: GPU_VMM_LOCATION_HOST, ..of_device(1) };
            assert_eq!(result(|place| gpu_vmm_granularity(backend, &raw const host, place)), 4 * UNIT);
            let unit = handles::find(backend).unwrap().0.reservation_unit().bytes().0;
            assert_eq!(result(|place| gpu_vmm_reservation_unit(backend, place)), unit);
            for (owner, expected) in [(0, reach), (1, true)] {
                assert_eq!(result(|place| gpu_vmm_can_access(backend, 1, owner, place)), expected, "{owner}");
            }
            gpu_vmm_close(backend);
        }
    }
}

#[test]
fn memory_and_mappings_have_set_properties() {
    let backend = open(&HostConfig::new().devices(2));
    let wanted = Properties { handle_types: GPU_VMM_HANDLE_FD, ..of_device(1) };
    let memory = physical(backend, &wanted, UNIT + 1);
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        assert_eq!(result(|place| gpu_vmm_physical_size(memory, place)), 2 * UNIT);
        let found = result(|place| gpu_vmm_physical_properties(memory, place));
        assert_eq!(format!("{found:?}"), format!("{wanted:?}"));
        let region = result(|place| gpu_vmm_region_new(backend, 0, 4 * UNIT, place));
        assert_eq!(gpu_vmm_region_map(region, UNIT, memory), GPU_VMM_OK);
        let set = |device, level| gpu_vmm_region_set_access(region, UNIT, 2 * UNIT, device, level);
        let level = |device| result(|place| gpu_vmm_region_access(region, UNIT, device, place));
        assert_eq!(set(0, GPU_VMM_ACCESS_READ), GPU_VMM_OK);
        assert_eq!([0, 1].map(level), [GPU_VMM_ACCESS_READ, GPU_VMM_ACCESS_NONE]);
        assert_eq!(set(1, GPU_VMM_ACCESS_READ_WRITE), GPU_VMM_OK);
        assert_eq!([0, 1].map(level), [GPU_VMM_ACCESS_READ, GPU_VMM_ACCESS_READ_WRITE]);
        assert_eq!(set(0, GPU_VMM_ACCESS_NONE), GPU_VMM_OK);
        assert_eq!([0, 1].map(level), [GPU_VMM_ACCESS_NONE, GPU_VMM_ACCESS_READ_WRITE]);
        let mapping = result(|place| gpu_vmm_region_mapping(region, 2 * UNIT, place));
        assert_eq!((mapping.offset, mapping.length, mapping.device), (UNIT, 2 * UNIT, 1));
        gpu_vmm_region_free(region);
        gpu_vmm_physical_release(memory);
        gpu_vmm_close(backend);
    }
}

#[track_caller]
fn ends<T: Object>(object: *mut T, free: unsafe extern "C" fn(*mut T)) {
    // SAFETY: the object is freed once and not used any more.
    unsafe {
        assert_ne!(gpu_vmm_region_grow(without_provenance_mut::<Region>(8), 1), GPU_VMM_OK);
        let text = last_error();
        free(null_mut());
        assert_eq!(last_error(), text, "freeing null does nothing");
        assert!(handles::find(object).is_some());
        free(object);
        assert!(handles::find(object).is_none(), "{:?} lives", T::KIND);
    }
}

#[test]
fn every_object_ends_with_its_own_function() {
    let backend = open(&HostConfig::new());
    // SAFETY: the backend is open, and each object is freed once.
    unsafe {
        ends(result(|place| gpu_vmm_pool_new(backend, null(), place)), gpu_vmm_pool_free);
        ends(one_unit(backend), gpu_vmm_region_free);
        ends(physical(backend, &of_device(0), UNIT), gpu_vmm_physical_release);
        ends(result(|place| gpu_vmm_event_new(backend, 0, place)), gpu_vmm_event_free);
        ends(result(|place| gpu_vmm_pinned_new(backend, UNIT, place)), gpu_vmm_pinned_free);
        ends(result(|place| gpu_vmm_copy_queue_new(backend, 0, place)), gpu_vmm_copy_queue_free);
        ends(result(|place| gpu_vmm_banked_new(backend, null(), place)), gpu_vmm_banked_free);
    }
    ends(backend, gpu_vmm_close);
}

#[test]
fn event_takes_the_named_stream() {
    let backend = open(&HostConfig::new());
    // No stream has this number.
    let unknown = without_provenance_mut(3);
    // SAFETY: the host never dereferences a stream, and the objects are freed after their last use.
    unsafe {
        let event = result(|place| gpu_vmm_event_new(backend, 0, place));
        assert_ne!(gpu_vmm_event_record(event, unknown), GPU_VMM_OK);
        assert_eq!(gpu_vmm_event_record(event, null_mut()), GPU_VMM_OK);
        assert_ne!(gpu_vmm_event_hold(event, unknown), GPU_VMM_OK);
        gpu_vmm_event_free(event);
        gpu_vmm_close(backend);
    }
}

fn tensor(
    region: *const Region,
    offset: u64,
    shape: &[i64],
    strides: *const i64,
    read_only: bool,
) -> *mut c_void {
    let ndim = shape.len() as i32;
    result(|place| {
        // SAFETY: the region lives, and the strides are null or as many as the dimensions.
        unsafe {
            gpu_vmm_region_dlpack(
                region,
                offset,
                1,
                16,
                2,
                ndim,
                shape.as_ptr(),
                strides,
                read_only,
                true,
                place,
            )
        }
    })
}

#[test]
fn tensor_refuses_removal_of_its_memory() {
    let backend = open(&HostConfig::new().devices(2));
    let (region, other) = (one_unit(backend), one_unit(backend));
    let memory = physical(backend, &of_device(0), UNIT);
    let shown = tensor(region, 0, &[16], null(), false);
    // SAFETY: the objects are freed after their last use, and nothing uses the tensor's elements.
    unsafe {
        let refused = [
            gpu_vmm_region_unmap(region, 0, UNIT, false),
            gpu_vmm_region_swap(region, 0, other, 0, UNIT, false),
            gpu_vmm_region_swap(other, 0, region, 0, UNIT, false),
            gpu_vmm_region_swap_all(region, other, false),
            gpu_vmm_region_move_to_device(region, 1),
            gpu_vmm_region_grow_or_move(region, 2 * UNIT, null_mut()),
        ];
        assert_eq!(refused, [GPU_VMM_BUSY; 6]);
        let allowed = [
            gpu_vmm_region_fill(region, 0, UNIT, 5),
            gpu_vmm_region_copy(other, 0, region, 0, UNIT),
            gpu_vmm_region_swap(region, 0, other, 0, UNIT, true),
            gpu_vmm_region_swap_all(other, region, true),
            gpu_vmm_region_map(region, UNIT, memory),
            gpu_vmm_region_set_access(region, UNIT, UNIT, 1, GPU_VMM_ACCESS_READ),
            gpu_vmm_region_unmap(region, UNIT, UNIT, true),
        ];
        assert_eq!(allowed, [GPU_VMM_OK; 7], "{}", last_error());
        gpu_vmm_dlpack_delete(shown, true);
        assert_eq!(gpu_vmm_region_swap_all(region, other, false), GPU_VMM_OK);
        gpu_vmm_physical_release(memory);
        assert_eq!(gpu_vmm_region_move_to_device(region, 1), GPU_VMM_OK, "{}", last_error());
        assert_eq!(gpu_vmm_region_grow_or_move(region, 2 * UNIT, null_mut()), GPU_VMM_OK);
        gpu_vmm_region_free(region);
        gpu_vmm_region_free(other);
        gpu_vmm_close(backend);
    }
}

#[test]
fn tensor_is_as_requested() {
    let backend = open(&HostConfig::new());
    let region = one_unit(backend);
    // SAFETY: the tensor's structure lives as long as the tensor, and the objects are freed after their last use.
    unsafe {
        let address = result(|place| gpu_vmm_region_address(region, place));
        for (strides, expected) in [(null(), [2, 1]), ([1_i64, 3].as_ptr(), [1, 3])] {
            for read_only in [false, true] {
                let raw = tensor(region, 8, &[3, 2], strides, read_only).cast();
                let tensor = Tensor::from_raw(std::ptr::NonNull::new(raw).unwrap());
                assert_eq!(tensor.is_read_only(), read_only);
                let found = tensor.dl_tensor();
                assert_eq!(found.data.addr() as u64 + found.byte_offset, address + 8);
                let dtype = found.dtype;
                assert_eq!((dtype.code.0, dtype.bits, dtype.lanes, found.ndim), (1, 16, 2, 2));
                assert_eq!([*found.shape, *found.shape.add(1)], [3, 2]);
                assert_eq!([*found.strides, *found.strides.add(1)], expected);
            }
        }
        let most = [1_i64; 33];
        let mut place = null_mut();
        let mut export = |ndim| {
            gpu_vmm_region_dlpack(
                region,
                0,
                0,
                8,
                1,
                ndim,
                most.as_ptr(),
                null(),
                false,
                false,
                &raw mut place,
            )
        };
        assert_eq!([33, -1].map(&mut export), [GPU_VMM_INVALID_ARGUMENT; 2]);
        assert_eq!(export(32), GPU_VMM_OK);
        gpu_vmm_dlpack_delete(place, false);
        let (mut device_type, mut device_id) = (0, 1);
        assert_eq!(gpu_vmm_dlpack_device(backend, 0, &raw mut device_type, &raw mut device_id), GPU_VMM_OK);
        assert_eq!((device_type, device_id), (1, 0));
        let exports = handles::find(region).unwrap().memory.exports();
        assert_eq!(exports, 0, "all tensors were deleted");
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

type Changes = Vec<(u64, u64, Vec<(u64, u64)>)>;

/// Notes the addresses and the ranges of a change.
unsafe extern "C" fn note(context: *mut c_void, change: *const BackingChange) -> Status {
    // SAFETY: the context is a `Changes`, and the change is valid during the call.
    unsafe {
        let change = &*change;
        let parts = std::slice::from_raw_parts(change.parts, change.count as usize);
        let parts = parts.iter().map(|part| (part.offset, part.length)).collect();
        (*context.cast::<Changes>()).push((change.address, change.new_address, parts));
    }
    GPU_VMM_OK
}

#[test]
fn observer_learns_where_memory_changes() {
    let backend = open(&HostConfig::new());
    let (region, memory) = (one_unit(backend), physical(backend, &of_device(0), UNIT));
    let mut changes = Changes::new();
    let context = (&raw mut changes).cast();
    let observer = Observer { context, before: Some(note), after: None, released: None, reserved: [0; 4] };
    // SAFETY: the context outlives the region, and the objects are freed after their last use.
    unsafe {
        let address = result(|place| gpu_vmm_region_address(region, place));
        assert_eq!(gpu_vmm_region_map(region, 2 * UNIT, memory), GPU_VMM_OK);
        gpu_vmm_physical_release(memory);
        let [id, later] = [(); 2]
            .map(|()| result(|place| gpu_vmm_region_on_backing_change(region, &raw const observer, place)));
        assert_ne!(id, later);
        assert_eq!(gpu_vmm_region_remove_observer(region, later), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_remove_observer(region, later), GPU_VMM_NOT_FOUND);
        assert_eq!(gpu_vmm_region_suspend(region, null(), false, null_mut()), GPU_VMM_OK, "{}", last_error());
        assert_eq!(gpu_vmm_region_resume(region, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_unmap(region, 2 * UNIT, UNIT, false), GPU_VMM_OK);
        let both = vec![(0, UNIT), (2 * UNIT, UNIT)];
        let expected = [(address, 0, both.clone()), (address, 0, both), (address, 0, vec![(2 * UNIT, UNIT)])];
        assert_eq!(*context.cast::<Changes>(), expected);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

#[test]
fn snapshot_regions_share_backend_and_addresses() {
    let (backend, stranger) = (open(&HostConfig::new()), open(&HostConfig::new()));
    let regions = [one_unit(backend), one_unit(backend)].map(<*mut Region>::cast_const);
    let mixed = [regions[0], one_unit(stranger).cast_const()];
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-regions-{}", std::process::id()));
    let path = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        let write = |regions: &[*const Region]| {
            gpu_vmm_regions_snapshot(regions.as_ptr(), regions.len() as u64, path.as_ptr(), false)
        };
        let refused = [write(&mixed), write(&vec![regions[0]; 1025])];
        assert_eq!(refused, [GPU_VMM_INVALID_ARGUMENT; 2]);
        assert!(last_error().contains("1 to 1024") && !file.exists(), "{}", last_error());
        assert_eq!(write(&regions), GPU_VMM_OK);
        let mut restored = [null_mut(); 2];
        let mut restore =
            |options| gpu_vmm_regions_restore(backend, path.as_ptr(), options, restored.as_mut_ptr(), 2);
        assert_eq!(restore(null()), GPU_VMM_ADDRESS_TAKEN);
        assert_eq!(restore(&ELSEWHERE), GPU_VMM_OK);
        for region in restored.into_iter().chain(regions.map(<*const Region>::cast_mut)) {
            ends(region, gpu_vmm_region_free);
        }
        gpu_vmm_region_free(mixed[1].cast_mut());
        gpu_vmm_close(backend);
        gpu_vmm_close(stranger);
    }
    std::fs::remove_file(&file).unwrap();
}

/// Options with which a region lies elsewhere if its address is taken.
pub(crate) const ELSEWHERE: RestoreOptions =
    RestoreOptions { relocate: true, by_uuid: false, devices: null(), device_count: 0, reserved: [0; 4] };

#[test]
fn region_is_restored_on_another_device() {
    let config = HostConfig::new().devices(3).memory(Bytes::mib(64));
    let (backend, fewer) = (open(&config), open(&config.clone().devices(1)));
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-devices-{}", std::process::id()));
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let pair = |from, to| DevicePair { from, to };
    // SAFETY: the objects are freed after their last use, the places are writable, and the options point to their pairs.
    unsafe {
        let written = result(|place| gpu_vmm_region_new(backend, 1, 0, place));
        assert_eq!(gpu_vmm_region_grow(written, 1), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_snapshot(written, path.as_ptr(), false), GPU_VMM_OK);
        ends(written, gpu_vmm_region_free);
        let restore = |backend, by_uuid, pairs: &[DevicePair]| {
            let (devices, device_count) = (pairs.as_ptr(), pairs.len() as u64);
            let options = RestoreOptions { by_uuid, devices, device_count, ..ELSEWHERE };
            let mut region = null_mut();
            let status = gpu_vmm_region_restore(backend, path.as_ptr(), &raw const options, &raw mut region);
            if status != GPU_VMM_OK {
                return Err(status);
            }
            let found = result(|place| gpu_vmm_region_mapping(region, 0, place));
            ends(region, gpu_vmm_region_free);
            Ok(found.device)
        };
        assert_eq!(restore(backend, false, &[]), Ok(1));
        assert_eq!(restore(backend, true, &[]), Ok(1));
        assert_eq!(restore(backend, false, &[pair(1, 2)]), Ok(2));
        assert_eq!(restore(backend, false, &[pair(0, 2)]), Ok(1));
        assert_eq!(restore(backend, false, &[pair(GPU_VMM_DEVICE_ALL, 0), pair(1, 2)]), Ok(2));
        assert_eq!(restore(backend, true, &[pair(1, 0)]), Ok(0));
        assert_eq!(restore(fewer, false, &[pair(GPU_VMM_DEVICE_ALL, 0)]), Ok(0));
        for by_uuid in [false, true] {
            assert_eq!(restore(fewer, by_uuid, &[]), Err(GPU_VMM_NO_SUCH_DEVICE), "{}", last_error());
        }
        assert!(last_error().contains("UUID"), "{}", last_error());
        assert_eq!(restore(fewer, true, &[pair(GPU_VMM_DEVICE_ALL, 0)]), Ok(0));
        assert_eq!(restore(backend, false, &[pair(1, 4711)]), Err(GPU_VMM_NO_SUCH_DEVICE));
        for (device_count, text) in [(1, "devices is null"), (0, "reserved")] {
            let options = RestoreOptions { device_count, reserved: [0, 0, 0, 1 - device_count], ..ELSEWHERE };
            let mut region = null_mut();
            let status = gpu_vmm_region_restore(backend, path.as_ptr(), &raw const options, &raw mut region);
            assert_eq!(status, GPU_VMM_INVALID_ARGUMENT);
            assert!(last_error().contains(text), "{}", last_error());
        }
        gpu_vmm_close(backend);
        gpu_vmm_close(fewer);
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn panic_becomes_status_with_text() {
    for text in ["a literal", "a formatted text"] {
        let work = || if text == "a literal" { panic!("a literal") } else { panic!("{text}") };
        assert_eq!(crate::call::status(work), GPU_VMM_INTERNAL);
        assert!(last_error().ends_with(text), "{}", last_error());
    }
}

#[test]
fn callback_runs_until_outer_one_ends() {
    use crate::callback::{is_running, running};
    let lock = gpu_vmm::extend::Lock::new(());
    let taken = lock.lock(Operation::LockRegion).unwrap();
    running(|| {
        running(|| ());
        assert!(is_running());
        let answer = crate::call::held(&lock, Operation::LockRegion).map(drop);
        assert_eq!(answer.map_err(|failure| failure.status), Err(GPU_VMM_BUSY), "it does not wait");
    });
    assert!(!is_running());
    drop(taken);
}

#[test]
fn the_version_is_that_of_the_package() {
    // SAFETY: a static string.
    let version = unsafe { CStr::from_ptr(crate::version::gpu_vmm_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}
