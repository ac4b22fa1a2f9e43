//! The driver's own calls for virtual memory by cudarc's bindings, with nothing between, at addresses that the library has
//! reserved and where it has nothing mapped meanwhile. Memory is device 0's.

use crate::measure::check;
use cudarc::driver::sys;
use gpu_vmm::{Address, Bytes};

fn location() -> sys::CUmemLocation {
    // SAFETY: zero is a value of every field of this C structure: device 0's number is.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location
}

fn number(size: Bytes) -> usize {
    size.to_usize().unwrap_or(0)
}

/// Memory.
pub(crate) fn create(size: Bytes) -> u64 {
    // SAFETY: zero is a value of every field of this C structure.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    let mut handle = 0;
    // SAFETY: both pointers are good for their types, and the size is a multiple of the granularity.
    check(unsafe { sys::cuMemCreate(&raw mut handle, number(size), &raw const properties, 0) });
    handle
}

/// Maps a whole handle where nothing is.
pub(crate) fn map(at: Address, size: Bytes, handle: u64) {
    // SAFETY: the handle is alive and of this size, and the addresses are reserved and free.
    check(unsafe { sys::cuMemMap(at.0, number(size), 0, handle, 0) });
}

/// Lets device 0 read and write mappings that follow each other.
pub(crate) fn open(at: Address, size: Bytes) {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(), flags };
    // SAFETY: whole mappings, and the pointer is good for one description.
    check(unsafe { sys::cuMemSetAccess(at.0, number(size), &raw const access, 1) });
}

/// Removes mappings that follow each other.
pub(crate) fn unmap(at: Address, size: Bytes) {
    // SAFETY: whole mappings that nothing uses.
    check(unsafe { sys::cuMemUnmap(at.0, number(size)) });
}

/// Gives memory back.
pub(crate) fn release(handle: u64) {
    // SAFETY: the handle is released once.
    check(unsafe { sys::cuMemRelease(handle) });
}
