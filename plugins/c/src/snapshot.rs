//! Regions in files.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::region::Region;
use crate::status::{Failure, Status};
use crate::stores::THREADS;
use crate::texts::{check_place, clear, give_box, object, required};
use gpu_vmm::snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm::{AnyBackend, Operation, StagingRing, WaitFor};
use std::ffi::c_char;

/// Writes a region to a file, after waiting for the devices: its address, mappings, access and contents. An existing file of that
/// name is replaced when the new one is complete. Nothing may write to the region meanwhile. `compress` compresses the contents.
///
/// Returns GPU_VMM_FILE if the file cannot be written, GPU_VMM_SUSPENDED, and GPU_VMM_BUSY for a capture.
///
/// # Safety
///
/// `region` is null or a region. `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_snapshot(
    region: *const Region,
    path: *const c_char,
    compress: bool,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, path) = unsafe { (object("region", region)?, required("path", path)?) };
        let ring = ring(&region.backend)?;
        region.memory.change(Operation::TakeSnapshot, true, |region| {
            Snapshot::new(&ring).region(region).compress(compress).write(path, WaitFor::all_devices())
        })?;
        Ok(())
    })
}

/// Recreates a region from a file with exactly one, with its contents and at its address. With `relocate`, the region lies elsewhere
/// if its address is taken. The file may come from another process, device or vendor.
///
/// Returns GPU_VMM_ADDRESS_TAKEN without `relocate`, GPU_VMM_FILE for a file that cannot be read or is no snapshot,
/// GPU_VMM_OUT_OF_MEMORY, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_UNAVAILABLE for memory that the driver lacks, and
/// GPU_VMM_INVALID_ARGUMENT for a file with several regions or none.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `region` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_restore(
    backend: *const Backend,
    path: *const c_char,
    relocate: bool,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        check_place("region", region)?;
        // SAFETY: guaranteed by the caller.
        let (backend, path) = unsafe { (&object("backend", backend)?.0, required("path", path)?) };
        let file = SnapshotFile::open(path)?;
        let count = file.description().regions.len();
        if count != 1 {
            return Err(Failure::invalid(format!("restore: {path} has {count} regions; expected one")));
        }
        let options = if relocate { Restore::new().relocate() } else { Restore::new() };
        let restored = options.regions(&file, &ring(backend)?)?;
        let restored = restored.into_iter().next().map(|restored| restored.region);
        let restored = restored.ok_or_else(|| Failure::invalid("restore: there is no region"))?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_box("region", region, || Ok(Region::of(backend, restored))) }
    })
}

fn ring(backend: &AnyBackend) -> gpu_vmm::Result<StagingRing<AnyBackend>> {
    StagingRing::new(backend, THREADS, StagingRing::<AnyBackend>::CHUNK)
}
