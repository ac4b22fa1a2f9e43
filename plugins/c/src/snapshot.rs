//! Regions in files.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::properties::check_reserved;
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::stores::ring;
use crate::texts::{self, check_place, clear, give, give_box, give_text, object, take_box};
use gpu_vmm::extend::check_same;
use gpu_vmm::snapshot::{Restore, Snapshot, SnapshotFile};
use gpu_vmm::{AnyBackend, DeviceId, Operation, Region as Memory, WaitFor};
use std::ffi::c_char;

/// For `from` of gpu_vmm_device_pair: every device without an entry of its own.
pub const GPU_VMM_DEVICE_ALL: u32 = 0xFFFF_FFFF;

/// A device of a file, and the device of this process that replaces it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevicePair {
    /// The number of the device in the process that wrote the file, or GPU_VMM_DEVICE_ALL.
    pub from: u32,
    /// The number of the device in this process.
    pub to: u32,
}

/// The options of restoring regions. All zeros, as after `= {0}`, is the default: at the address that each region had, and on the devices
/// with the same numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// Whether a region lies elsewhere if its address is taken.
    pub relocate: bool,
    /// Whether each device without an entry in `devices` is the one with the same UUID here, whatever its number. A device that has no
    /// UUID in the file is taken by its number, and one that is missing here by the entry of GPU_VMM_DEVICE_ALL, if there is one.
    pub by_uuid: bool,
    /// The devices that replace devices of the file, with their access; null for none. GPU_VMM_DEVICE_HOST is the CPU.
    pub devices: *const DevicePair,
    /// The number of entries in `devices`.
    pub device_count: u64,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

impl RestoreOptions {
    /// Reads the options; null means the default.
    ///
    /// # Safety
    ///
    /// `options` is null or points to options whose `devices` is null or points to `device_count` pairs.
    unsafe fn read(options: *const Self) -> CallResult<Restore> {
        let mut restore = Restore::new();
        // SAFETY: guaranteed by the caller.
        let Some(options) = (unsafe { options.as_ref() }) else { return Ok(restore) };
        check_reserved("restore", options.reserved)?;
        let Self { devices, device_count, .. } = *options;
        if devices.is_null() && device_count > 0 {
            return Err(Failure::invalid(format!(
                "restore: devices is null, but device_count is {device_count}"
            )));
        }
        if device_count > MAX_DEVICES {
            return Err(Failure::invalid(format!(
                "restore: device_count is {device_count}; expected at most {MAX_DEVICES}"
            )));
        }
        for at in 0..device_count as usize {
            // SAFETY: there are `device_count` pairs, as the caller guarantees.
            let DevicePair { from, to } = unsafe { *devices.add(at) };
            restore = match from {
                GPU_VMM_DEVICE_ALL => restore.all_on(DeviceId(to)),
                from => restore.device(DeviceId(from), DeviceId(to)),
            };
        }
        if options.relocate {
            restore = restore.relocate();
        }
        Ok(if options.by_uuid { restore.by_uuid() } else { restore })
    }
}

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
        let (region, path) = unsafe { (object("region", region)?, texts::path("path", path)?) };
        let ring = ring(&region.backend)?;
        region.memory.change(Operation::TakeSnapshot, true, |region| {
            Snapshot::new(&ring).region(region).compress(compress).write(path, WaitFor::all_devices())
        })?;
        Ok(())
    })
}

/// Returns the name that gpu_vmm_region_set_tag has given to the region or to the one in the file from which it was restored; an empty
/// string if there is none. Free the text with gpu_vmm_string_free.
///
/// Returns GPU_VMM_INVALID_ARGUMENT for a name with a zero byte, which a file can have.
///
/// # Safety
///
/// `region` is null or a region. `tag` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_tag(region: *const Region, tag: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(tag) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let found = unsafe { object("region", region) }?.memory.with(|region| region.tag().to_owned())?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_text("tag", tag, found) }
    })
}

/// Names a region for the program's own use. Files of regions have the name: it can say what the contents are.
///
/// # Safety
///
/// `region` is null or a region. `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_set_tag(region: *const Region, tag: *const c_char) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, tag) = unsafe { (object("region", region)?, texts::required("tag", tag)?) };
        region.memory.change(Operation::LockRegion, true, |region| {
            region.set_tag(tag);
            Ok(())
        })?;
        Ok(())
    })
}

/// Recreates a region from a file with exactly one, with its contents. Null options mean the default: at its address, and on the device
/// with the same number. The file may come from another process, device or vendor.
///
/// Returns GPU_VMM_ADDRESS_TAKEN without `relocate`, GPU_VMM_FILE for a file that cannot be read or is no snapshot,
/// GPU_VMM_OUT_OF_MEMORY, GPU_VMM_NO_SUCH_DEVICE, also for a UUID that no device has, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_UNSUPPORTED for
/// memory that the driver lacks, and GPU_VMM_INVALID_ARGUMENT for a file with several regions or none.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to options whose `devices` is null or
/// points to `device_count` pairs. `region` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_restore(
    backend: *const Backend,
    path: *const c_char,
    options: *const RestoreOptions,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        check_place("region", region)?;
        // SAFETY: guaranteed by the caller.
        let (backend, path, options) = unsafe {
            (&object("backend", backend)?.0, texts::path("path", path)?, RestoreOptions::read(options)?)
        };
        let file = SnapshotFile::open(path)?;
        let count = file.description().regions.len();
        if count != 1 {
            return Err(Failure::invalid(format!(
                "restore: {} has {count} regions; expected one",
                path.display()
            )));
        }
        let restored = options.regions(&file, &ring(backend)?)?;
        let restored = restored.into_iter().next().map(|restored| restored.region);
        let restored = restored.ok_or_else(|| Failure::invalid("restore: there is no region"))?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_box("region", region, || Ok(Region::of(backend, restored))) }
    })
}

/// The largest number of pairs in one call: devices have lower numbers.
const MAX_DEVICES: u64 = 1024;

/// The largest number of regions in one call: each is locked within the call for the one before.
const MAX_REGIONS: u64 = 1024;

/// Locks all regions in the order of their addresses, as the functions with two regions do, and calls `work` with them in their own
/// order.
fn with_all<'a>(
    rest: &[(usize, &Region)],
    mut locked: Vec<(usize, &'a Memory<AnyBackend>)>,
    work: &mut dyn FnMut(&[&Memory<AnyBackend>]) -> gpu_vmm::Result<()>,
) -> gpu_vmm::Result<()> {
    let Some(((number, first), rest)) = rest.split_first() else {
        locked.sort_by_key(|(number, _)| *number);
        return work(&locked.iter().map(|(_, region)| *region).collect::<Vec<_>>());
    };
    first.memory.change(Operation::TakeSnapshot, true, |region| {
        let mut locked: Vec<(usize, &Memory<AnyBackend>)> = locked;
        locked.push((*number, region));
        with_all(rest, locked, work)
    })
}

/// Writes several regions to one file, as gpu_vmm_region_snapshot writes one, at one point of time. Memory that is mapped in several of
/// them is written once. All regions must be of one backend.
///
/// Returns the statuses of gpu_vmm_region_snapshot, and GPU_VMM_INVALID_ARGUMENT for no region, more than 1024, the same region twice, or
/// regions of several backends.
///
/// # Safety
///
/// `regions` is null or points to `count` pointers, each null or a region. `path` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_regions_snapshot(
    regions: *const *const Region,
    count: u64,
    path: *const c_char,
    compress: bool,
) -> Status {
    status(|| {
        let operation = Operation::TakeSnapshot;
        check_count(operation, regions.is_null(), count)?;
        // SAFETY: guaranteed by the caller.
        let path = unsafe { texts::path("path", path)? };
        let mut named = Vec::new();
        for at in 0..count as usize {
            // SAFETY: there are `count` pointers, as the caller guarantees.
            named.push((at, unsafe { object("one of regions", *regions.add(at)) }?));
        }
        named.sort_by_key(|(_, region)| std::ptr::from_ref(*region));
        if named.windows(2).any(|pair| std::ptr::eq(pair[0].1, pair[1].1)) {
            return Err(Failure::invalid(format!(
                "{operation}: one region is there twice; expected it once"
            )));
        }
        let backend = &named[0].1.backend;
        for (_, region) in &named {
            check_same(operation, &region.backend, backend)?;
        }
        let ring = ring(backend)?;
        Ok(with_all(&named, Vec::new(), &mut |regions| {
            let snapshot = Snapshot::new(&ring).regions(regions.iter().copied()).compress(compress);
            snapshot.write(path, WaitFor::all_devices()).map(drop)
        })?)
    })
}

/// Returns the number of regions in a file.
///
/// Returns GPU_VMM_FILE for a file that cannot be read or is no snapshot.
///
/// # Safety
///
/// `path` is null or a string. `count` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_snapshot_count(path: *const c_char, count: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(count) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let file = SnapshotFile::open(texts::path("path", path)?)?;
            give("count", count, file.description().regions.len() as u64)
        }
    })
}

/// Recreates all regions of a file in the order in which they were written, as gpu_vmm_region_restore recreates one. Each must be freed
/// on its own. After an error none exists.
///
/// Returns the statuses of gpu_vmm_region_restore, and GPU_VMM_INVALID_ARGUMENT if `count` is not the number of regions in the file, which
/// gpu_vmm_snapshot_count returns.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to options whose `devices` is null or
/// points to `device_count` pairs. `regions` is null or points to `count` writable pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_regions_restore(
    backend: *const Backend,
    path: *const c_char,
    options: *const RestoreOptions,
    regions: *mut *mut Region,
    count: u64,
) -> Status {
    let places = if regions.is_null() { 0 } else { count.min(MAX_REGIONS) };
    for at in 0..places as usize {
        // SAFETY: there are `count` writable pointers, as the caller guarantees.
        unsafe { clear(regions.add(at)) };
    }
    status(|| {
        let operation = Operation::Restore;
        check_count(operation, regions.is_null(), count)?;
        // SAFETY: guaranteed by the caller.
        let (backend, path, options) = unsafe {
            (&object("backend", backend)?.0, texts::path("path", path)?, RestoreOptions::read(options)?)
        };
        let file = SnapshotFile::open(path)?;
        let there = file.description().regions.len() as u64;
        if there != count {
            return Err(Failure::invalid(format!(
                "{operation}: {} has {there} regions; expected {count}",
                path.display()
            )));
        }
        let restored = options.regions(&file, &ring(backend)?)?;
        for (at, restored) in restored.into_iter().enumerate() {
            // SAFETY: as above; the file has `count` regions.
            let given = unsafe {
                give_box("one of regions", regions.add(at), || Ok(Region::of(backend, restored.region)))
            };
            if let Err(failure) = given {
                for before in 0..at {
                    // SAFETY: these were given above, and the caller has not seen them yet.
                    unsafe {
                        take_box(*regions.add(before));
                        clear(regions.add(before));
                    }
                }
                return Err(failure);
            }
        }
        Ok(())
    })
}

fn check_count(operation: Operation, is_null: bool, count: u64) -> CallResult {
    if is_null {
        return Err(Failure::invalid(format!("{operation}: regions is null")));
    }
    if !(1..=MAX_REGIONS).contains(&count) {
        return Err(Failure::invalid(format!("{operation}: count is {count}; expected 1 to {MAX_REGIONS}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handles;
    use crate::status::GPU_VMM_OK;
    use crate::tests::ELSEWHERE;
    use gpu_vmm::{Bytes, Vendor};
    use std::ffi::CString;

    #[test]
    fn both_snapshots_are_compressed_on_request_alone() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut memory = Memory::builder(&host).reserve(Bytes::mib(8)).build().unwrap();
        memory.grow_to(Bytes::mib(8)).unwrap();
        memory.fill(Bytes::ZERO, Bytes::mib(8), 7).unwrap();
        let region = handles::add(Region::of(&host, memory)).unwrap();
        let file = std::env::temp_dir().join(format!("gpu-vmm-c-compressed-{}", std::process::id()));
        let path = CString::new(file.to_str().unwrap()).unwrap();
        let size = |compress, several| {
            // SAFETY: the region and the path are valid for the call.
            let status = unsafe {
                if several {
                    gpu_vmm_regions_snapshot([region.cast_const()].as_ptr(), 1, path.as_ptr(), compress)
                } else {
                    gpu_vmm_region_snapshot(region, path.as_ptr(), compress)
                }
            };
            assert_eq!(status, GPU_VMM_OK);
            let size = Bytes(std::fs::metadata(&file).unwrap().len());
            std::fs::remove_file(&file).unwrap();
            size
        };
        for several in [false, true] {
            assert!(size(false, several) >= Bytes::mib(8), "{several}");
            assert!(size(true, several) < Bytes::mib(1), "{several}");
        }
        // SAFETY: the region is not used any more.
        unsafe { crate::region::gpu_vmm_region_free(region) };
    }

    /// The regions are locked in the order of their addresses in this process, which one of the orders is not.
    #[test]
    fn regions_are_restored_in_given_order() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let backend = handles::add(Backend(host.clone())).unwrap();
        let filled = |byte: u8| {
            let mut memory = Memory::builder(&host).reserve(Bytes::mib(2)).build().unwrap();
            memory.grow_to(Bytes::mib(2)).unwrap();
            memory.fill(Bytes::ZERO, Bytes::mib(2), byte).unwrap();
            handles::add(Region::of(&host, memory)).unwrap()
        };
        let byte_of = |region: *mut Region| {
            let mut byte = 0u8;
            // SAFETY: the region exists, and the place is writable.
            let status = unsafe { crate::region::gpu_vmm_region_read(region, 0, (&raw mut byte).cast(), 1) };
            assert_eq!(status, GPU_VMM_OK);
            byte
        };
        let regions = [1, 2, 3].map(filled);
        let file = std::env::temp_dir().join(format!("gpu-vmm-c-order-{}", std::process::id()));
        let path = CString::new(file.to_str().unwrap()).unwrap();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let given = order.map(|place| regions[place].cast_const());
            let mut restored = [std::ptr::null_mut(); 3];
            // SAFETY: the regions, the path and the places are valid for the calls.
            unsafe {
                assert_eq!(gpu_vmm_regions_snapshot(given.as_ptr(), 3, path.as_ptr(), false), GPU_VMM_OK);
                let status =
                    gpu_vmm_regions_restore(backend, path.as_ptr(), &ELSEWHERE, restored.as_mut_ptr(), 3);
                assert_eq!(status, GPU_VMM_OK);
            }
            assert_eq!(restored.map(byte_of), order.map(|place| place as u8 + 1));
            // SAFETY: they are not used any more.
            restored.into_iter().for_each(|region| unsafe { crate::region::gpu_vmm_region_free(region) });
        }
        std::fs::remove_file(&file).unwrap();
        // SAFETY: they are not used any more.
        unsafe {
            regions.into_iter().for_each(|region| crate::region::gpu_vmm_region_free(region));
            crate::backend::gpu_vmm_close(backend);
        }
    }
}
