//! The structures and numbers of `cuda.h` that are needed here, written from its documentation.

use crate::code::{Answer, Code};
use crate::violation::refuse;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};

/// The granularity of device memory, and of reservations.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The minimum and the recommended granularity of multicast objects. They differ from memory's on purpose.
pub(crate) const MULTICAST_MINIMUM: u64 = 4 << 20;
pub(crate) const MULTICAST_RECOMMENDED: u64 = 64 << 20;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemLocationType`.
pub(crate) mod location {
    pub(crate) const DEVICE: u32 = 1;
    pub(crate) const HOST: u32 = 2;
    pub(crate) const HOST_NUMA: u32 = 3;
    pub(crate) const INVISIBLE: u32 = 5;
}

/// `CU_DEVICE_INVALID`.
pub(crate) const DEVICE_INVALID: i32 = -2;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32_metadata: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: u32 = 1;
/// `CU_MEM_ALLOCATION_COMP_GENERIC`.
pub(crate) const COMPRESSION_GENERIC: u8 = 1;

/// `CUmemAllocationHandleType`, as bits.
pub(crate) mod handle_type {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const FILE_DESCRIPTOR: u32 = 1;
    pub(crate) const FABRIC: u32 = 8;
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUmemAccess_flags`, whose bits are read (1) and write (2).
pub(crate) mod access {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const READ: u32 = 1;
    pub(crate) const READ_WRITE: u32 = 3;
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastProperties {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

// As in `cuda.h`.
const _: () = {
    assert!(size_of::<AccessDescription>() == 12 && offset_of!(AccessDescription, flags) == 8);
    assert!(size_of::<Properties>() == 32 && offset_of!(Properties, location) == 8);
    assert!(offset_of!(Properties, compression) == 24 && offset_of!(Properties, usage) == 26);
    assert!(size_of::<MulticastProperties>() == 32 && offset_of!(MulticastProperties, size) == 8);
};

/// An output parameter; null is refused.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Returns the pointer's target, or an error if it is null.
pub(crate) fn given<T>(pointer: Option<T>, name: &str) -> Answer<T> {
    pointer.ok_or_else(|| refuse(Code::INVALID_VALUE, format_args!("{name} is a null pointer")))
}

/// Returns a C array as a slice.
///
/// # Safety
///
/// The pointer is null or has `count` items that do not change while the slice is used.
#[allow(unsafe_code)]
pub(crate) unsafe fn list<'a, T>(items: *const T, count: usize) -> Answer<&'a [T]> {
    if items.is_null() || count == 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("an array of {count} items at {items:?}")));
    }
    // SAFETY: not null, and the caller guarantees `count` items.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}
