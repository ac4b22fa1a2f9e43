//! Calls on a region while a tensor of it exists.

use super::*;
use crate::reservation::gpu_vmm_region_reserve;
use crate::snapshot::gpu_vmm_region_snapshot;

/// A region of one unit of memory that can be shared.
fn shareable(backend: *const Backend) -> *mut Region {
    let memory = Properties { handle_types: GPU_VMM_HANDLE_FD, ..of_device(0) };
    let options = RegionOptions { memory, ..region_options(4 * UNIT) };
    // SAFETY: the backend is open, and the options are valid for the call.
    unsafe {
        let region = result(|place| gpu_vmm_region_reserve(backend, &raw const options, place));
        assert_eq!(gpu_vmm_region_grow(region, UNIT), GPU_VMM_OK);
        region
    }
}

#[test]
fn region_with_tensor_is_observed_and_saved() {
    let backend = open(&HostConfig::new());
    let region = one_unit(backend);
    let tensor_of_region = tensor(region, 0, &[16], null(), false);
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-saved-with-a-tensor-{}", std::process::id()));
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let context = null_mut();
    let observer = Observer { context, before: None, after: None, released: None, reserved: [0; 4] };
    // SAFETY: the objects are freed after their last use, and no number is wanted; so below.
    unsafe {
        let allowed = [
            gpu_vmm_region_on_backing_change(region, &raw const observer, null_mut()),
            gpu_vmm_region_snapshot(region, path.as_ptr(), false),
        ];
        assert_eq!(allowed, [GPU_VMM_OK; 2], "{}", last_error());
        gpu_vmm_dlpack_delete(tensor_of_region, true);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_region_with_a_tensor_is_offered() {
    use crate::share::{GPU_VMM_OFFER_BY_PROCESS, gpu_vmm_offer_free, gpu_vmm_region_offer};
    let backend = open(&HostConfig::new());
    let region = shareable(backend);
    let tensor_of_region = tensor(region, 0, &[16], null(), false);
    // SAFETY: as above.
    unsafe {
        let offer = result(|place| gpu_vmm_region_offer(region, GPU_VMM_OFFER_BY_PROCESS, place));
        gpu_vmm_offer_free(offer);
        gpu_vmm_dlpack_delete(tensor_of_region, true);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

#[test]
fn a_refused_swap_names_the_parameter_force() {
    let backend = open(&HostConfig::new());
    let (region, other) = (one_unit(backend), one_unit(backend));
    let tensor_of_region = tensor(region, 0, &[16], null(), false);
    // SAFETY: as above.
    unsafe {
        for status in [
            gpu_vmm_region_swap(other, 0, region, 0, UNIT, false),
            gpu_vmm_region_swap_all(region, other, false),
        ] {
            assert_eq!(status, GPU_VMM_BUSY);
            assert!(last_error().ends_with(", or set force"), "{}", last_error());
        }
        gpu_vmm_dlpack_delete(tensor_of_region, true);
        gpu_vmm_region_free(region);
        gpu_vmm_region_free(other);
        gpu_vmm_close(backend);
    }
}
