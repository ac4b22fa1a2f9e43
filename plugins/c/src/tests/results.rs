//! What out-parameters hold after an error, and refusals of calls that other tests make only with success.

use super::*;
use crate::backend::{gpu_vmm_backend_name, gpu_vmm_open};
use crate::banked::{
    gpu_vmm_banked_add, gpu_vmm_banked_add_physical, gpu_vmm_banked_address, gpu_vmm_banked_selected,
};
use crate::event::gpu_vmm_event_done;
use crate::mapping::gpu_vmm_region_physical;
use crate::physical::{
    gpu_vmm_physical_read, gpu_vmm_physical_retain, gpu_vmm_physical_same, gpu_vmm_physical_write,
};
use crate::pool::{
    gpu_vmm_alloc, gpu_vmm_find, gpu_vmm_forget_stream, gpu_vmm_free, gpu_vmm_pool_snapshot,
    gpu_vmm_pool_stats, gpu_vmm_pool_tagged, gpu_vmm_trim,
};
use crate::queue::gpu_vmm_pinned_data;
use crate::region::{gpu_vmm_region_is_plain, gpu_vmm_region_size};
use crate::reservation::{gpu_vmm_region_granularity, gpu_vmm_region_reserve};
use crate::share::{
    FabricHandle, GPU_VMM_OFFER_BY_FABRIC, gpu_vmm_offer_bytes, gpu_vmm_offer_free,
    gpu_vmm_physical_export_fabric, gpu_vmm_physical_import, gpu_vmm_physical_import_fabric,
    gpu_vmm_physical_import_fd, gpu_vmm_physical_offer, gpu_vmm_region_import, gpu_vmm_region_offer,
};
use crate::sleep::{
    gpu_vmm_host_memory, gpu_vmm_is_suspended, gpu_vmm_resume, gpu_vmm_suspend, gpu_vmm_trim_host,
};
use crate::snapshot::{gpu_vmm_region_restore, gpu_vmm_snapshot_count};
use crate::status::{GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_UNSUPPORTED};

/// Calls a function with a place full of ones. It must refuse its arguments and set the place to zeros.
#[track_caller]
fn zero<T>(call: impl FnOnce(*mut T) -> Status) {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: the place is writable; all of its bytes are written before they are read.
    let bytes = unsafe {
        place.as_mut_ptr().write_bytes(0xff, 1);
        assert_eq!(call(place.as_mut_ptr()), GPU_VMM_INVALID_ARGUMENT, "{}", last_error());
        std::slice::from_raw_parts(place.as_ptr().cast::<u8>(), size_of::<T>())
    };
    assert!(bytes.iter().all(|byte| *byte == 0), "{bytes:?}");
}

#[test]
fn each_result_of_a_call_without_an_object_is_zero() {
    let (no, name) = (null_mut(), c"vulkan".as_ptr());
    // SAFETY: the name is a string, null is refused, and the places are writable.
    unsafe {
        zero(|place| gpu_vmm_open(name, place));
        zero(|place| gpu_vmm_backend_devices(null(), place));
        zero(|place| gpu_vmm_backend_info(null(), place));
        zero(|place| gpu_vmm_memory(null(), 0, place, no));
        zero(|place| gpu_vmm_memory(null(), 0, no, place));
        zero(|place| gpu_vmm_granularity(null(), null(), place));
        zero(|place| gpu_vmm_reservation_unit(null(), place));
        zero(|place| gpu_vmm_can_access(null(), 0, 0, place));
        zero(|place| gpu_vmm_capabilities(null(), 0, place));
    }
    // SAFETY: as above.
    unsafe {
        zero(|place| gpu_vmm_banked_new(null(), null(), place));
        zero(|place| gpu_vmm_banked_address(null(), place));
        zero(|place| gpu_vmm_banked_add(null(), 1, place));
        zero(|place| gpu_vmm_banked_add_physical(null(), null(), 0, place));
        zero(|place| gpu_vmm_banked_selected(null(), place));
        zero(|place| gpu_vmm_event_new(null(), 0, place));
        zero(|place| gpu_vmm_event_done(null(), place));
        zero(|place| gpu_vmm_pinned_new(null(), 1, place));
        zero(|place| gpu_vmm_pinned_data(null(), place));
        zero(|place| gpu_vmm_copy_queue_new(null(), 0, place));
    }
    // SAFETY: as above.
    unsafe {
        zero(|place| gpu_vmm_physical_create(null(), null(), 1, place));
        zero(|place| gpu_vmm_physical_retain(null(), place));
        zero(|place| gpu_vmm_physical_size(null(), place));
        zero(|place| gpu_vmm_physical_properties(null(), place));
        zero(|place| gpu_vmm_physical_same(null(), null(), place));
        zero(|place| gpu_vmm_physical_import_fd(null(), null(), 1, 0, place));
        zero(|place| gpu_vmm_physical_export_fabric(null(), place));
        zero(|place| gpu_vmm_physical_import_fabric(null(), null(), 1, null(), place));
        zero(|place| gpu_vmm_physical_offer(null(), null(), 0, place));
        zero(|place| gpu_vmm_physical_import(null(), null(), 0, place));
        zero(|place| gpu_vmm_region_offer(null(), 0, place));
        zero(|place| gpu_vmm_region_import(null(), null(), 0, place));
        let mut data = null();
        zero(|place| gpu_vmm_offer_bytes(null(), &raw mut data, place));
        let mut size = 1;
        zero(|place| gpu_vmm_offer_bytes(null(), place, &raw mut size));
    }
    // SAFETY: as above.
    unsafe {
        zero(|place| gpu_vmm_pool_new(null(), null(), place));
        zero(|place| gpu_vmm_pool_tagged(null(), null(), place));
        zero(|place| gpu_vmm_alloc(null(), 1, 0, no.cast(), place));
        zero(|place| gpu_vmm_find(null(), 1, place));
        zero(|place| gpu_vmm_trim(null(), 0, place));
        zero(|place| gpu_vmm_pool_stats(null(), place));
        zero(|place| gpu_vmm_pool_snapshot(null(), place));
        zero(|place| gpu_vmm_is_suspended(null(), null(), place));
        zero(|place| gpu_vmm_suspend(null(), null(), null(), place));
        zero(|place| gpu_vmm_resume(null(), null(), place));
        zero(|place| gpu_vmm_host_memory(null(), place));
        zero(|place| gpu_vmm_trim_host(null(), place));
    }
    // SAFETY: as above.
    unsafe {
        zero(|place| gpu_vmm_region_new(null(), 0, 0, place));
        zero(|place| gpu_vmm_region_reserve(null(), null(), place));
        zero(|place| gpu_vmm_region_address(null(), place));
        zero(|place| gpu_vmm_region_size(null(), place));
        zero(|place| gpu_vmm_region_reserved(null(), place));
        zero(|place| gpu_vmm_region_granularity(null(), place));
        zero(|place| gpu_vmm_region_is_plain(null(), place));
        zero(|place| gpu_vmm_region_grow_or_move(null(), 1, place));
        zero(|place| gpu_vmm_region_suspend(null(), null(), false, place));
        zero(|place| gpu_vmm_region_resume(null(), place));
        zero(|place| gpu_vmm_region_access(null(), 0, 0, place));
        zero(|place| gpu_vmm_region_mapping(null(), 0, place));
        zero(|place| gpu_vmm_region_physical(null(), 0, place));
        zero(|place| gpu_vmm_region_on_backing_change(null(), null(), place));
        zero(|place| gpu_vmm_region_restore(null(), null(), false, place));
        zero(|place| gpu_vmm_snapshot_count(null(), place));
        let mut places = [without_provenance_mut::<Region>(8); 2];
        let restored = gpu_vmm_regions_restore(null(), null(), false, places.as_mut_ptr(), 2);
        assert_eq!((restored, places), (GPU_VMM_INVALID_ARGUMENT, [null_mut(); 2]));
        zero(|place| gpu_vmm_region_dlpack(null(), 0, 0, 8, 1, 0, null(), null(), false, true, place));
        zero(|place| gpu_vmm_dlpack_device(null(), 0, place, null_mut()));
        zero(|place| gpu_vmm_dlpack_device(null(), 0, null_mut(), place));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn each_result_of_an_exchange_without_an_object_is_zero() {
    use crate::exchange::{
        gpu_vmm_export, gpu_vmm_exporter_publish, gpu_vmm_exporter_wait_released, gpu_vmm_follow,
        gpu_vmm_followed_next, gpu_vmm_followed_range, gpu_vmm_listener_new,
    };
    // SAFETY: as above.
    unsafe {
        zero(|place| gpu_vmm_listener_new(null(), place));
        zero(|place| gpu_vmm_export(null(), null(), 0, place));
        zero(|place| gpu_vmm_exporter_publish(null(), null(), place));
        zero(|place| gpu_vmm_exporter_wait_released(null(), 0, place));
        zero(|place| gpu_vmm_follow(null(), null(), 0, 0, place));
        zero(|place| gpu_vmm_followed_next(null(), 0, place));
        zero(|place| gpu_vmm_followed_range(null(), place, null_mut()));
        zero(|place| gpu_vmm_followed_range(null(), null_mut(), place));
    }
}

#[test]
fn a_backend_has_its_name_and_no_other_is_opened() {
    let backend = open(&HostConfig::new());
    let mut opened = null_mut();
    // SAFETY: the names are strings, and the backend is closed last.
    unsafe {
        assert_eq!(CStr::from_ptr(gpu_vmm_backend_name(backend)), c"host");
        assert_eq!(CStr::from_ptr(gpu_vmm_backend_name(null())), c"");
        assert_eq!(gpu_vmm_open(c"vulkan".as_ptr(), &raw mut opened), GPU_VMM_INVALID_ARGUMENT);
        let text = "open backend: there is no backend \"vulkan\"; give \"cuda\", \"hip\" or \"host\"";
        assert_eq!(last_error(), text);
        assert_eq!(gpu_vmm_open(c"host".as_ptr(), null_mut()), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "backend, the place for the result, is null");
        let (mut free, mut number, mut reaches, mut event) = (1, 1, true, null_mut());
        let unknown = Properties { ..of_device(9) };
        let refused = [
            gpu_vmm_memory(backend, 9, &raw mut free, null_mut()),
            gpu_vmm_granularity(backend, &raw const unknown, &raw mut number),
            gpu_vmm_can_access(backend, 9, 0, &raw mut reaches),
            gpu_vmm_can_access(backend, 0, 9, &raw mut reaches),
            gpu_vmm_dlpack_device(backend, 9, null_mut(), null_mut()),
            gpu_vmm_event_new(backend, 9, &raw mut event),
        ];
        assert_eq!((refused, event), ([GPU_VMM_NO_SUCH_DEVICE; 6], null_mut()));
        assert_eq!((free, number, reaches), (0, 0, false));
        assert_eq!(
            gpu_vmm_dlpack_device(backend, 0, null_mut(), null_mut()),
            GPU_VMM_OK,
            "both are optional"
        );
        assert_eq!(gpu_vmm_memory(backend, 0, null_mut(), null_mut()), GPU_VMM_OK);
        gpu_vmm_close(backend);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn memory_is_offered_as_it_was_created() {
    let backend = open(&HostConfig::new());
    let properties = Properties { handle_types: GPU_VMM_HANDLE_FD, ..of_device(0) };
    let (shared, private) = (physical(backend, &properties, UNIT), physical(backend, &of_device(0), UNIT));
    let mut offer = null_mut();
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_physical_offer(backend, private, 0, &raw mut offer), GPU_VMM_UNSUPPORTED);
        let by_fabric = gpu_vmm_physical_offer(backend, shared, GPU_VMM_OFFER_BY_FABRIC, &raw mut offer);
        assert_eq!(by_fabric, GPU_VMM_UNSUPPORTED);
        assert_eq!(gpu_vmm_physical_offer(backend, shared, 2, &raw mut offer), GPU_VMM_INVALID_ARGUMENT);
        assert!(
            last_error().starts_with("offer: by is 2; expected GPU_VMM_OFFER_BY_PROCESS (0"),
            "{}",
            last_error()
        );
        let offer = result(|place| gpu_vmm_physical_offer(backend, shared, 0, place));
        let (mut data, mut size) = (null(), 0);
        assert_eq!(gpu_vmm_offer_bytes(offer, null_mut(), &raw mut size), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(size, 0, "neither is given");
        assert_eq!(gpu_vmm_offer_bytes(offer, &raw mut data, &raw mut size), GPU_VMM_OK);
        let imported = result(|place| gpu_vmm_physical_import(backend, data, size, place));
        let (text, mut found) = (b"bytes", [0; 5]);
        assert_eq!(gpu_vmm_physical_write(shared, 11, text.as_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(gpu_vmm_physical_read(imported, 11, found.as_mut_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(&found, text);
        let mut handle = FabricHandle { bytes: [7; 64] };
        assert_eq!(gpu_vmm_physical_export_fabric(shared, &raw mut handle), GPU_VMM_UNSUPPORTED);
        assert_eq!(handle.bytes, [0; 64]);
        let mut none = null_mut();
        let from_fabric = gpu_vmm_physical_import_fabric(
            backend,
            &raw const properties,
            UNIT,
            &raw const handle,
            &raw mut none,
        );
        assert_eq!(from_fabric, GPU_VMM_UNSUPPORTED);
        gpu_vmm_offer_free(offer);
        for memory in [shared, private, imported] {
            gpu_vmm_physical_release(memory);
        }
        gpu_vmm_close(backend);
    }
}

#[test]
fn a_tensor_needs_its_shape_and_a_pool_its_sizes() {
    let backend = open(&HostConfig::new().memory(Bytes::mib(64)));
    let region = one_unit(backend);
    let mut tensor = null_mut();
    // SAFETY: as above.
    unsafe {
        let mut export = |ndim, shape| {
            gpu_vmm_region_dlpack(region, 0, 0, 8, 1, ndim, shape, null(), false, true, &raw mut tensor)
        };
        assert_eq!(export(1, null()), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "export a tensor: shape, or tensor, the place for the result, is null");
        assert_eq!(export(33, null()), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "export a tensor: ndim is not between 0 and 32");
        assert_eq!(export(0, null()), GPU_VMM_OK, "a single element has no shape");
        gpu_vmm_dlpack_delete(tensor, true);
        gpu_vmm_dlpack_delete(null_mut(), true);

        let pool = result(|place| gpu_vmm_pool_new(backend, null(), place));
        let mut address = 1;
        let mut alloc = |size, alignment| gpu_vmm_alloc(pool, size, alignment, null_mut(), &raw mut address);
        assert_eq!([alloc(0, 0), alloc(1, 3)], [GPU_VMM_INVALID_ARGUMENT; 2]);
        assert_eq!(alloc(Bytes::mib(128).0, 0), GPU_VMM_OUT_OF_MEMORY);
        assert_eq!(alloc(1, 0), GPU_VMM_OK);
        assert_ne!(address, 0);
        assert_eq!(gpu_vmm_forget_stream(pool, null_mut()), GPU_VMM_OK);
        assert_eq!(
            [gpu_vmm_free(pool, address), gpu_vmm_free(pool, address)],
            [GPU_VMM_OK, GPU_VMM_NOT_FOUND]
        );
        assert_eq!(gpu_vmm_alloc(pool, 1, 0, null_mut(), null_mut()), GPU_VMM_INVALID_ARGUMENT);
        let live = json_of(|place| gpu_vmm_pool_stats(pool, place))["live_blocks"].clone();
        assert_eq!(live, 0, "a block without a place for its address is none");
        gpu_vmm_pool_free(pool);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

#[test]
fn a_panic_of_another_type_has_no_text() {
    let status = crate::call::status(|| std::panic::panic_any(5));
    assert_eq!(status, GPU_VMM_INTERNAL);
    assert_eq!(last_error(), "a defect of gpu-vmm, please report it: no text");
}
