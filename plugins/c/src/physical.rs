//! Physical memory, which has no address until a region maps it.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::properties::Properties;
use crate::status::Status;
use crate::texts::{bytes, clear, give, give_box, object, room, take_box};
use gpu_vmm::{Address, AnyBackend, Bytes, PhysicalMemory};
use std::ffi::c_void;

/// Physical memory of one device. Several objects can share one memory: the device gets it back when all are released and no region
/// maps it. Calls of several threads run at the same time.
#[derive(Clone, Debug)]
pub struct Physical(pub(crate) PhysicalMemory<AnyBackend>);

// SAFETY: no other type has the kind.
unsafe impl Object for Physical {
    const KIND: Kind = Kind::Physical;
}

/// Creates physical memory of at least `size` bytes, rounded up to the granularity. Null properties mean the default. Release it
/// with gpu_vmm_physical_release. CUDA: cuMemCreate; HIP: hipMemCreate.
///
/// Returns GPU_VMM_OUT_OF_MEMORY, GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `properties` is null or points to properties. `physical` is null or points to a writable
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_create(
    backend: *const Backend,
    properties: *const Properties,
    size: u64,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let properties = Properties::read("create memory", properties.as_ref())?;
            let create = || Ok(Physical(PhysicalMemory::create(backend, Bytes(size), properties)?));
            give_box("physical", physical, create)
        }
    })
}

/// Takes a reference to the memory that other code of this process has mapped at an address: PyTorch's expandable segments, NCCL's
/// buffers, or memory of the driver's own calls. It lives after the other code has released it. No other thread may unmap it during the
/// call. Release the object with gpu_vmm_physical_release. CUDA: cuMemRetainAllocationHandle; HIP, from 7.15 on:
/// hipMemRetainAllocationHandle.
///
/// Returns GPU_VMM_NOT_MAPPED for a plain allocation and where nothing is mapped; GPU_VMM_UNSUPPORTED for an address in a region of this
/// backend and on HIP before 7.15.
///
/// # Safety
///
/// `backend` is null or an open backend. `physical` is null or points to a writable pointer. No other thread unmaps the memory at the
/// address during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_adopt(
    backend: *const Backend,
    address: u64,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let adopt = || Ok(Physical(PhysicalMemory::adopt(backend, Address(address))?));
            give_box("physical", physical, adopt)
        }
    })
}

/// Returns another object for the same memory. Each is released on its own.
///
/// # Safety
///
/// `physical` is null or physical memory. `retained` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_retain(
    physical: *const Physical,
    retained: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(retained) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let physical = object("physical", physical)?;
            give_box("retained", retained, || Ok(physical.clone()))
        }
    })
}

/// Releases an object. Mappings of the memory stay valid. Null does nothing.
///
/// # Safety
///
/// `physical` is null or comes from a function of this library, and was not released yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_release(physical: *mut Physical) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(physical) }
}

/// Returns the size, which is a multiple of the granularity.
///
/// # Safety
///
/// `physical` is null or physical memory. `size` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_size(physical: *const Physical, size: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(size) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("size", size, object("physical", physical)?.0.size().0) }
    })
}

/// Returns the properties that the memory has.
///
/// # Safety
///
/// `physical` is null or physical memory. `properties` is null or points to writable properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_properties(
    physical: *const Physical,
    properties: *mut Properties,
) -> Status {
    // SAFETY: null or writable for properties, as the caller guarantees.
    unsafe { clear(properties) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            give("properties", properties, Properties::of(&object("physical", physical)?.0.properties()))
        }
    })
}

/// Returns whether two objects share one memory.
///
/// # Safety
///
/// `physical` and `other` are null or physical memory. `same` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_same(
    physical: *const Physical,
    other: *const Physical,
    same: *mut bool,
) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(same) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (physical, other) = (object("physical", physical)?, object("other", other)?);
            give("same", same, physical.0.is_same_as(&other.0))
        }
    })
}

/// Copies `size` bytes at `offset` to the host, whether or not the memory is mapped, and waits for the copy. Each call maps the
/// memory at addresses of its own: for many copies, map it in a region.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE.
///
/// # Safety
///
/// `physical` is null or physical memory. `to` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_read(
    physical: *const Physical,
    offset: u64,
    to: *mut c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (physical, to) = unsafe { (object("physical", physical)?, room("to", to, size)?) };
        Ok(physical.0.read(Bytes(offset), to)?)
    })
}

/// Copies `size` bytes of the host to `offset`, as gpu_vmm_physical_read does in the other direction.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE.
///
/// # Safety
///
/// `physical` is null or physical memory. `from` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_write(
    physical: *const Physical,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (physical, from) = unsafe { (object("physical", physical)?, bytes("from", from, size)?) };
        Ok(physical.0.write(Bytes(offset), from)?)
    })
}

/// Copies `size` bytes at `from_offset` of the memory `from` to `offset` of the memory `to`, whether or not they are mapped, and waits for
/// the copy, which the device that owns `to` makes. Each call maps both at addresses of its own. Two ranges of one memory must not
/// overlap: the bytes are undefined then. CUDA: cuMemcpyDtoD; HIP: hipMemcpyDtoD.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_PEER_UNREACHABLE, and GPU_VMM_INVALID_ARGUMENT for memory of two
/// backends.
///
/// # Safety
///
/// `to` and `from` are null or physical memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_copy(
    to: *const Physical,
    offset: u64,
    from: *const Physical,
    from_offset: u64,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (to, from) = unsafe { (object("to", to)?, object("from", from)?) };
        Ok(to.0.copy_from(Bytes(offset), &from.0, Bytes(from_offset), Bytes(size))?)
    })
}
