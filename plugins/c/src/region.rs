//! Memory that grows in place.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::status::{Failure, Status};
use crate::stores::Stores;
use crate::texts::{bytes, clear, give, give_box, give_if_wanted, object, optional, room, take_box};
use gpu_vmm::dlpack::SharedRegion;
use gpu_vmm::{AnyBackend, Bytes, Detail, DeviceId, Error, Region as Memory, WaitFor};
use std::ffi::{c_char, c_void};

/// An address range of a device that grows in place.
#[derive(Debug)]
pub struct Region {
    pub(crate) backend: AnyBackend,
    pub(crate) memory: SharedRegion<AnyBackend>,
    stores: Stores,
}

/// Reserves addresses for memory of a device; there is none yet behind them. `reserve` is how many bytes it can grow to, 0 for
/// as much as the device has.
///
/// # Safety
///
/// `backend` is null or an open one; `region` is null or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_new(
    backend: *const Backend,
    device: u32,
    reserve: u64,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(region) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_box("region", region, || {
                let mut builder = Memory::builder(backend).on(DeviceId(device));
                if reserve > 0 {
                    builder = builder.reserve(Bytes(reserve));
                }
                let memory = SharedRegion::new(builder.build()?);
                Ok(Region { backend: backend.clone(), memory, stores: Stores::default() })
            })
        }
    })
}

/// Lets a region go. Its memory stays as long as a tensor of it does. Null is nothing.
///
/// # Safety
///
/// `region` is null or one that gpu_vmm_region_new gave and that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_free(region: *mut Region) {
    // SAFETY: as the caller says.
    unsafe { take_box(region) }
}

/// Grows a region to `size` bytes at least, where it lies: pointers stay good, and no byte is copied.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_grow(region: *const Region, size: u64) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let region = unsafe { object("region", region) }?;
        region.memory.grow_to(Bytes(size))?;
        Ok(())
    })
}

/// The failure of a call that takes memory away, with the way to insist.
fn taken_away(error: Error) -> Failure {
    let is_exported = matches!(error.detail(), Detail::Exported { .. });
    let mut failure = Failure::from(error);
    if is_exported {
        failure.text = format!("{}, or insist with force", failure.text).into();
    }
    failure
}

/// Gives memory back behind the first `size` bytes, in whole handles; waits for the devices. GPU_VMM_BUSY while a tensor of
/// the region exists, unless `force` is true: then nothing may use elements of a tensor behind the new end.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_shrink(region: *const Region, size: u64, force: bool) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let region = unsafe { object("region", region) }?;
        let (size, done) = (Bytes(size), WaitFor::all_devices());
        let shrunk = if force {
            region.memory.shrink_exported_to(size, done)
        } else {
            region.memory.shrink_to(size, done)
        };
        let _ = shrunk.map_err(taken_away)?;
        Ok(())
    })
}

/// The first address.
///
/// # Safety
///
/// `region` is null or a region, `address` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_address(region: *const Region, address: *mut u64) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            give("address", address, object("region", region)?.memory.with(|region| region.address().0)?)
        }
    })
}

/// How many bytes have memory behind them; 0 while the region is suspended.
///
/// # Safety
///
/// `region` is null or a region, `size` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_size(region: *const Region, size: *mut u64) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(size) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe { give("size", size, object("region", region)?.memory.with(|region| region.end().0)?) }
    })
}

/// Copies bytes from `offset` on to the host and waits for the copy. Work of streams is not waited for. `to` must not overlap
/// the region.
///
/// # Safety
///
/// `region` is null or a region, `to` null or room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_read(
    region: *const Region,
    offset: u64,
    to: *mut c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let (region, to) = unsafe { (object("region", region)?, room("to", to, size)?) };
        if size > 0 {
            region.memory.read(Bytes(offset), to)?;
        }
        Ok(())
    })
}

/// Copies bytes of the host to `offset` and waits until they are there. Work of streams is not waited for. `from` must not
/// overlap the region.
///
/// # Safety
///
/// `region` is null or a region, `from` null or `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_write(
    region: *const Region,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let (region, from) = unsafe { (object("region", region)?, bytes("from", from, size)?) };
        if size > 0 {
            region.memory.write(Bytes(offset), from)?;
        }
        Ok(())
    })
}

/// Gives the region's memory back and keeps its addresses; waits for the devices. `keep` is as for gpu_vmm_suspend. `bytes`, how
/// much memory went, may be null. GPU_VMM_BUSY while a tensor of the region exists, unless `force` is true: then nothing may use
/// the memory of a tensor before gpu_vmm_region_resume.
///
/// # Safety
///
/// `region` is null or a region, `keep` null or a string, `bytes` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_suspend(
    region: *const Region,
    keep: *const c_char,
    force: bool,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: as the caller says.
        let (region, keep) = unsafe { (object("region", region)?, optional("keep", keep)?) };
        let contents = || Ok(region.memory.with(Memory::mapped)?);
        let mut stores = region.stores.lock();
        let store = stores.store(&region.backend, keep, contents)?;
        let done = WaitFor::all_devices();
        let suspended = if force {
            region.memory.suspend_exported(&store, done)
        } else {
            region.memory.suspend(&store, done)
        };
        let suspended = suspended.map_err(taken_away)?;
        // SAFETY: as the caller says.
        unsafe { give_if_wanted(bytes, suspended.memory.0) };
        Ok(())
    })
}

/// Brings a region's memory back, with its contents, at the same addresses. `bytes`, how much memory came, may be null.
///
/// # Safety
///
/// `region` is null or a region, `bytes` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_resume(region: *const Region, bytes: *mut u64) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: as the caller says.
        let region = unsafe { object("region", region) }?;
        let resumed = region.memory.resume()?;
        // SAFETY: as the caller says.
        unsafe { give_if_wanted(bytes, resumed.memory.0) };
        Ok(())
    })
}
