//! Refusals of calls that other tests make only with success.

use super::*;
use crate::backend::{gpu_vmm_backend_name, gpu_vmm_open};
use crate::pool::{gpu_vmm_alloc, gpu_vmm_forget_stream, gpu_vmm_free, gpu_vmm_pool_stats};
use crate::status::{GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_OUT_OF_MEMORY};

#[test]
fn unknown_backend_name_opens_nothing() {
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
fn tensor_shape_and_pool_sizes_needed() {
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
fn panic_of_other_type_lacks_text() {
    let status = crate::call::status(|| std::panic::panic_any(5));
    assert_eq!(status, GPU_VMM_INTERNAL);
    assert_eq!(last_error(), "a defect of gpu-vmm, please report it: no text");
}
