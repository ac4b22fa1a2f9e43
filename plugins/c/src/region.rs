//! Memory that grows in place.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::status::{Failure, Status};
use crate::stores::Stores;
use crate::texts::{bytes, clear, give, give_box, give_if_wanted, object, optional_os, room, take_box};
use gpu_vmm::dlpack::TensorRegion;
use gpu_vmm::{AnyBackend, Bytes, Detail, DeviceId, Error, Region as Memory, RegionState, WaitFor};
use std::ffi::{c_char, c_void};

/// A contiguous range of device addresses whose memory grows in place. Calls of several threads take turns.
#[derive(Debug)]
pub struct Region {
    pub(crate) backend: AnyBackend,
    pub(crate) memory: TensorRegion<AnyBackend>,
    pub(crate) stores: Stores,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Region {
    const KIND: Kind = Kind::Region;
}

impl Region {
    pub(crate) fn of(backend: &AnyBackend, region: Memory<AnyBackend>) -> Self {
        Self::of_tensors(backend, TensorRegion::new(region))
    }

    pub(crate) fn of_tensors(backend: &AnyBackend, memory: TensorRegion<AnyBackend>) -> Self {
        Self { backend: backend.clone(), memory, stores: Stores::of_region() }
    }
}

/// Creates a region: reserves device addresses, without memory. `reserve` is the size that the region can grow to, in bytes; 0 for
/// the size of the device's memory. Free the region with gpu_vmm_region_free.
///
/// # Safety
///
/// `backend` is null or an open backend. `region` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_new(
    backend: *const Backend,
    device: u32,
    reserve: u64,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_box("region", region, || {
                let mut builder = Memory::builder(backend).on(DeviceId(device));
                if reserve > 0 {
                    builder = builder.reserve(Bytes(reserve));
                }
                Ok(Region::of(backend, builder.build()?))
            })
        }
    })
}

/// Frees a region. Its memory stays as long as a tensor of it exists. Null does nothing.
///
/// # Safety
///
/// `region` is null or comes from a function of this library, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_free(region: *mut Region) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(region) }
}

/// Grows a region in place to at least `size` bytes. Pointers into it stay valid, and no byte is copied.
///
/// A plain region (gpu_vmm_region_is_plain) waits for the devices and is copied to another address, which gpu_vmm_region_address
/// returns. The call then returns GPU_VMM_BUSY while a tensor of the region exists.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_grow(region: *const Region, size: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        region.memory.grow_to(Bytes(size))?;
        Ok(())
    })
}

/// Converts the error of a call that takes memory away. If tensors prevent it, the text mentions `force`.
pub(crate) fn taken_away(error: Error) -> Failure {
    let is_exported = matches!(error.detail(), Detail::Exported { .. });
    let mut failure = Failure::from(error);
    if is_exported {
        failure.text = format!("{}, or set force", failure.text).into();
    }
    failure
}

/// Shrinks a region from its end to `size` bytes and waits for the devices first. The region releases whole memory handles, so it
/// may stay larger than `size`. `bytes` receives the number of bytes that were removed; it may be null. Returns GPU_VMM_BUSY while a
/// tensor of the region exists, unless `force` is true. With `force`, nothing may use the elements of a tensor beyond the new end. A
/// plain region (gpu_vmm_region_is_plain) is copied to another address, and `force` has no effect.
///
/// # Safety
///
/// `region` is null or a region. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_shrink(
    region: *const Region,
    size: u64,
    force: bool,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let (size, done) = (Bytes(size), WaitFor::all_devices());
        let shrunk = if force {
            region.memory.shrink_exported_to(size, done)
        } else {
            region.memory.shrink_to(size, done)
        };
        let shrunk = shrunk.map_err(taken_away)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, shrunk.removed.0) };
        Ok(())
    })
}

/// Returns the region's first address, which never changes, except if the region is plain: see gpu_vmm_region_is_plain.
///
/// # Safety
///
/// `region` is null or a region. `address` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_address(region: *const Region, address: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            give("address", address, object("region", region)?.memory.with(|region| region.address().0)?)
        }
    })
}

/// Returns whether the region is one plain allocation (cuMemAlloc, hipMalloc), because its device has no virtual memory management. The
/// region then has another address after it grows or shrinks, 0 while it is empty. Calls that keep an address while memory changes, map
/// memory or share it return GPU_VMM_UNSUPPORTED.
///
/// # Safety
///
/// `region` is null or a region. `plain` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_is_plain(region: *const Region, plain: *mut bool) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(plain) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("plain", plain, object("region", region)?.memory.with(|region| region.is_plain())?) }
    })
}

/// Returns the number of bytes that have memory; 0 while the region is suspended.
///
/// # Safety
///
/// `region` is null or a region. `size` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_size(region: *const Region, size: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(size) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("size", size, object("region", region)?.memory.with(|region| region.end().0)?) }
    })
}

/// Returns whether a region is suspended. While it is, every call that needs its memory returns GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region. `suspended` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_is_suspended(region: *const Region, suspended: *mut bool) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(suspended) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let is_suspended = |region: &Memory<_>| matches!(region.state(), RegionState::Suspended { .. });
            give("suspended", suspended, object("region", region)?.memory.with(is_suspended)?)
        }
    })
}

/// Copies `size` bytes at `offset` to the host and waits for the copy. It does not wait for work on streams. `to` must not
/// overlap the region.
///
/// # Safety
///
/// `region` is null or a region. `to` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_read(
    region: *const Region,
    offset: u64,
    to: *mut c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, to) = unsafe { (object("region", region)?, room("to", to, size)?) };
        if size > 0 {
            region.memory.read(Bytes(offset), to)?;
        }
        Ok(())
    })
}

/// Copies `size` bytes of the host to `offset` and waits for the copy. It does not wait for work on streams. `from` must not
/// overlap the region.
///
/// # Safety
///
/// `region` is null or a region. `from` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_write(
    region: *const Region,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, from) = unsafe { (object("region", region)?, bytes("from", from, size)?) };
        if size > 0 {
            region.memory.write(Bytes(offset), from)?;
        }
        Ok(())
    })
}

/// Suspends a region: waits for the devices, returns the region's memory to the driver and keeps its addresses. `keep` is as for
/// gpu_vmm_suspend. `bytes` receives the number of bytes that were returned, 0 if the region was suspended already; it may be null.
/// Returns GPU_VMM_BUSY while a tensor of the region exists, unless `force` is true. With `force`, nothing may use the tensors before
/// gpu_vmm_region_resume.
///
/// # Safety
///
/// `region` is null or a region. `keep` is null or a string. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_suspend(
    region: *const Region,
    keep: *const c_char,
    force: bool,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, keep) = unsafe { (object("region", region)?, optional_os("keep", keep)?) };
        let contents = || Ok(region.memory.with(Memory::mapped)?);
        let done = WaitFor::all_devices();
        let suspend = |store: &_| match force {
            true => region.memory.suspend_exported(store, done),
            false => region.memory.suspend(store, done),
        };
        let suspended = region.stores.lock()?.save(&region.backend, keep, contents, suspend)?;
        let suspended = suspended.map_err(taken_away)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, if suspended.already { 0 } else { suspended.memory.0 }) };
        Ok(())
    })
}

/// Resumes a region: maps memory at the same addresses and restores the contents. `bytes` receives the number of bytes that were
/// mapped, 0 if the region was not suspended; it may be null.
///
/// # Safety
///
/// `region` is null or a region. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_resume(region: *const Region, bytes: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let resumed = region.memory.resume()?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(bytes, resumed.memory.0) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handles;
    use crate::status::GPU_VMM_OK;
    use gpu_vmm::Vendor;

    #[test]
    fn discarding_suspension_reports_released_memory() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let memory = Memory::builder(&host).reserve(Bytes::mib(8)).build().unwrap();
        let region = handles::add(Region::of(&host, memory)).unwrap();
        let (mut released, mut received) = (0, 0);
        // SAFETY: the region is not freed before the last call, and the places are writable.
        unsafe {
            assert_eq!(gpu_vmm_region_grow(region, Bytes::mib(8).0), GPU_VMM_OK);
            let nowhere = std::ptr::null();
            assert_eq!(gpu_vmm_region_suspend(region, nowhere, false, &raw mut released), GPU_VMM_OK);
            assert_eq!(gpu_vmm_region_resume(region, &raw mut received), GPU_VMM_OK);
            gpu_vmm_region_free(region);
        }
        assert_eq!([released, received], [Bytes::mib(8).0; 2]);
    }

    #[test]
    fn pinned_size_is_that_of_region() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        for size in [Bytes::mib(4), Bytes::ZERO] {
            let memory = Memory::builder(&host).reserve(Bytes::mib(64)).build().unwrap();
            let region = handles::add(Region::of(&host, memory)).unwrap();
            // SAFETY: the region is not freed before the last call, the text is a string, and no number is wanted.
            unsafe {
                if !size.is_zero() {
                    assert_eq!(gpu_vmm_region_grow(region, size.0), GPU_VMM_OK);
                }
                let suspended =
                    gpu_vmm_region_suspend(region, c"pinned".as_ptr(), false, std::ptr::null_mut());
                assert_eq!(suspended, GPU_VMM_OK, "{}", crate::tests::last_error());
                let pinned = handles::find(region).unwrap().stores.lock().unwrap().host_memory();
                assert!(size <= pinned && pinned <= size.max(Bytes::mib(2)), "{pinned} for {size}");
                assert_eq!(gpu_vmm_region_resume(region, std::ptr::null_mut()), GPU_VMM_OK);
                gpu_vmm_region_free(region);
            }
        }
    }
}
