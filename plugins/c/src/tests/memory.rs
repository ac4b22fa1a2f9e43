//! Physical memory, regions and copies on host memory: sizes, addresses and contents.

use super::*;
use crate::physical::{gpu_vmm_physical_read, gpu_vmm_physical_write};
use crate::properties::GPU_VMM_LOCATION_HOST_NODE;
use crate::queue::{
    gpu_vmm_copy_queue_finish, gpu_vmm_copy_queue_read, gpu_vmm_copy_queue_write, gpu_vmm_pinned_data,
};
use crate::region::{gpu_vmm_region_read, gpu_vmm_region_write};
use crate::reservation::{
    GPU_VMM_PLACE_ANYWHERE, GPU_VMM_PLACE_BELOW, GPU_VMM_PLACE_EXACT, GPU_VMM_PLACE_PREFER,
    gpu_vmm_region_reserve,
};
use crate::share::{FabricHandle, gpu_vmm_physical_export_fd, gpu_vmm_physical_import_fd};
use crate::status::{
    GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_OUT_OF_RANGE, GPU_VMM_UNALIGNED, GPU_VMM_UNSUPPORTED,
};

fn write(region: *const Region, offset: u64, bytes: &[u8]) -> Status {
    // SAFETY: the region is not freed yet; so below.
    unsafe { gpu_vmm_region_write(region, offset, bytes.as_ptr().cast(), bytes.len() as u64) }
}

fn read(region: *const Region, offset: u64) -> [u8; 5] {
    let mut bytes = [0; 5];
    // SAFETY: as above.
    let status = unsafe { gpu_vmm_region_read(region, offset, bytes.as_mut_ptr().cast(), 5) };
    assert_eq!(status, GPU_VMM_OK, "{}", last_error());
    bytes
}

#[test]
fn each_region_uses_its_own_offset() {
    let backend = open(&HostConfig::new());
    let regions = [one_unit(backend), one_unit(backend)];
    // SAFETY: as above.
    unsafe {
        for region in regions {
            assert_eq!(gpu_vmm_region_grow(region, 2 * UNIT), GPU_VMM_OK);
        }
        // In both orders of their addresses.
        for (one, other) in [(regions[0], regions[1]), (regions[1], regions[0])] {
            assert_eq!(gpu_vmm_region_fill(one, 0, 2 * UNIT, b'-'), GPU_VMM_OK);
            assert_eq!(gpu_vmm_region_fill(other, UNIT, UNIT, b'+'), GPU_VMM_OK);
            assert_eq!((read(one, UNIT), read(other, UNIT)), (*b"-----", *b"+++++"));
            assert_eq!(write(other, UNIT + 8, b"bytes"), GPU_VMM_OK);
            assert_eq!(gpu_vmm_region_copy(one, 100, other, UNIT + 8, 4), GPU_VMM_OK);
            assert_eq!((read(one, 99), read(one, 100)), (*b"-byte", *b"byte-"));
            assert_eq!(gpu_vmm_region_swap(one, 0, other, UNIT, UNIT, false), GPU_VMM_OK, "{}", last_error());
            assert_eq!((read(one, 8), read(other, UNIT + 100)), (*b"bytes", *b"byte-"));
            let copied = gpu_vmm_region_copy(one, 0, one, UNIT, 8);
            assert_eq!(
                (copied, last_error()),
                (GPU_VMM_INVALID_ARGUMENT, "copy: both regions are the same one".to_owned())
            );
        }
        for region in regions {
            gpu_vmm_region_free(region);
        }
        gpu_vmm_close(backend);
    }
}

#[test]
fn a_region_lies_where_its_placement_says() {
    let backend = open(&HostConfig::new());
    let taken = one_unit(backend);
    // SAFETY: as above.
    unsafe {
        let address = result(|place| gpu_vmm_region_address(taken, place));
        let options = |placement| {
            let address = if placement == GPU_VMM_PLACE_ANYWHERE { 0 } else { address };
            RegionOptions { placement, address, ..region_options(UNIT + 1) }
        };
        let mut region = null_mut();
        let mut reserve = |options: &RegionOptions| gpu_vmm_region_reserve(backend, options, &raw mut region);
        assert_eq!(reserve(&options(GPU_VMM_PLACE_EXACT)), GPU_VMM_ADDRESS_TAKEN);
        assert_eq!(reserve(&options(5)), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "reserve: placement is 5; expected 0, 1, 2, 3 or 4");
        let low = RegionOptions { address: UNIT, ..options(GPU_VMM_PLACE_BELOW) };
        assert_eq!(reserve(&low), GPU_VMM_OUT_OF_ADDRESS_SPACE, "{}", last_error());
        assert_eq!(
            reserve(&RegionOptions { reserved: [0, 0, 1, 0], ..options(0) }),
            GPU_VMM_INVALID_ARGUMENT
        );
        assert_eq!(last_error(), "reserve: reserved is not zero; this version knows no setting there");
        let wrong = RegionOptions { address: address + 1, ..options(GPU_VMM_PLACE_EXACT) };
        assert_eq!(reserve(&wrong), GPU_VMM_UNALIGNED, "{}", last_error());
        let mut memory = Properties { location: 3, ..of_device(0) };
        assert_eq!(reserve(&RegionOptions { memory, ..options(0) }), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "reserve: location is 3; expected 0, 1 or 2");
        memory = Properties { handle_types: 1 << 31, ..of_device(0) };
        assert_eq!(reserve(&RegionOptions { memory, ..options(0) }), GPU_VMM_INVALID_ARGUMENT);
        assert!(last_error().starts_with("reserve: handle_types is 0x80000000; "), "{}", last_error());
        memory = Properties { location: GPU_VMM_LOCATION_HOST_NODE, ..of_device(0) };
        assert_eq!(reserve(&RegionOptions { memory, ..options(0) }), GPU_VMM_UNSUPPORTED);
        let wrong = RegionOptions { address, ..options(GPU_VMM_PLACE_ANYWHERE) };
        assert_eq!(reserve(&wrong), GPU_VMM_INVALID_ARGUMENT);
        assert!(
            last_error().contains("placement is 0 (anywhere), which takes no address"),
            "{}",
            last_error()
        );
        let below = RegionOptions { address: 1 << 46, ..options(GPU_VMM_PLACE_BELOW) };
        let below = result(|place| gpu_vmm_region_reserve(backend, &raw const below, place));
        assert!(result(|place| gpu_vmm_region_address(below, place)) < 1 << 46);
        gpu_vmm_region_free(below);
        let options = options(GPU_VMM_PLACE_PREFER);
        let elsewhere = result(|place| gpu_vmm_region_reserve(backend, &raw const options, place));
        assert_ne!(result(|place| gpu_vmm_region_address(elsewhere, place)), address);
        assert_eq!(result(|place| gpu_vmm_region_reserved(elsewhere, place)), 2 * UNIT, "it is rounded up");
        let set = gpu_vmm_region_set_access(taken, 0, UNIT, 0, 2);
        assert_eq!(set, GPU_VMM_INVALID_ARGUMENT);
        assert!(
            last_error().starts_with("access is 2; expected GPU_VMM_ACCESS_NONE (0)"),
            "{}",
            last_error()
        );
        gpu_vmm_region_free(elsewhere);
        gpu_vmm_region_free(taken);
        gpu_vmm_close(backend);
    }
}

#[test]
fn descriptor_import_checks_its_size() {
    let backend = open(&HostConfig::new());
    let properties = Properties { handle_types: GPU_VMM_HANDLE_FD, ..of_device(0) };
    let memory = physical(backend, &properties, UNIT);
    let (mut fd, mut imported) = (0, null_mut());
    // SAFETY: as above.
    unsafe {
        let private = physical(backend, &of_device(0), UNIT);
        assert_eq!(gpu_vmm_physical_export_fd(private, &raw mut fd), GPU_VMM_UNSUPPORTED);
        assert_eq!(fd, -1, "no descriptor, which is not 0");
        let mut import = |size, fd| {
            gpu_vmm_physical_import_fd(backend, &raw const properties, size, fd, &raw mut imported)
        };
        assert_eq!(import(UNIT, -1), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "import memory: fd is -1; expected an open descriptor");
        assert_eq!(gpu_vmm_physical_export_fd(memory, &raw mut fd), GPU_VMM_OK);
        assert_ne!(import(2 * UNIT, fd), GPU_VMM_OK, "of another size");
        assert_eq!(import(UNIT, fd), GPU_VMM_OK, "{}", last_error());
        let (text, mut found) = (b"bytes", [0; 5]);
        assert_eq!(gpu_vmm_physical_write(memory, 7, text.as_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(gpu_vmm_physical_read(imported, 7, found.as_mut_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(&found, text);
        assert_eq!(libc::close(fd), 0, "the descriptor stays the caller's");
        for memory in [memory, private, imported] {
            gpu_vmm_physical_release(memory);
        }
        gpu_vmm_close(backend);
    }
    assert_eq!(format!("{:?}", FabricHandle { bytes: [7; 64] }), "FabricHandle(..)");
}

#[test]
fn queue_copies_between_both_offsets() {
    let backend = open(&HostConfig::new());
    let region = one_unit(backend);
    // SAFETY: as above; no copy is queued when the page-locked memory is used.
    unsafe {
        let queue = result(|place| gpu_vmm_copy_queue_new(backend, 0, place));
        let pinned = result(|place| gpu_vmm_pinned_new(backend, 64, place));
        let data = result(|place| gpu_vmm_pinned_data(pinned, place)).cast::<u8>();
        data.copy_from_nonoverlapping(b"0123456789".as_ptr(), 10);
        assert_eq!(gpu_vmm_copy_queue_write(queue, region, 100, pinned, 3, 5), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_finish(queue), GPU_VMM_OK);
        assert_eq!(read(region, 100), *b"34567");
        assert_eq!(write(region, 200, b"bytes"), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_read(queue, region, 200, pinned, 59, 5), GPU_VMM_OK);
        assert_eq!(gpu_vmm_copy_queue_finish(queue), GPU_VMM_OK);
        assert_eq!(std::slice::from_raw_parts(data.add(59), 5), b"bytes");
        for (offset, size) in [(60, 5), (65, 0), (u64::MAX, 2)] {
            let status = gpu_vmm_copy_queue_read(queue, region, 0, pinned, offset, size);
            assert_eq!(status, GPU_VMM_OUT_OF_RANGE, "{size} at {offset}");
        }
        assert_eq!(gpu_vmm_copy_queue_write(queue, region, 0, pinned, 60, 5), GPU_VMM_OUT_OF_RANGE);
        let text = last_error();
        assert!(text.ends_with("5 B at offset 60 B exceeds the page-locked memory of 64 B"), "{text}");
        for offset in [0, 9 * UNIT] {
            let status = gpu_vmm_copy_queue_read(queue, region, offset, pinned, 64, 0);
            assert_eq!(status, GPU_VMM_OK, "nothing is copied");
        }
        gpu_vmm_pinned_free(pinned);
        gpu_vmm_copy_queue_free(queue);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}
