//! The structures and numbers of both drivers, which are the same: HIP took CUDA's.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// `CUmemLocation`, `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prop {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: Location,
    pub(crate) win32: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: i32,
}

/// `CUipcMemHandle`, `hipIpcMemHandle_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

const _: () = {
    assert!(size_of::<Location>() == 8 && offset_of!(Location, id) == 4);
    assert!(size_of::<Prop>() == 32);
    assert!(offset_of!(Prop, handle_types) == 4 && offset_of!(Prop, location) == 8);
    assert!(offset_of!(Prop, win32) == 16 && offset_of!(Prop, compression) == 24);
    assert!(offset_of!(Prop, rdma) == 25 && offset_of!(Prop, usage) == 26);
    assert!(size_of::<AccessDesc>() == 12 && offset_of!(AccessDesc, flags) == 8);
    assert!(size_of::<IpcHandle>() == 64);
};

/// `…_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: i32 = 1;
/// `…_LOCATION_TYPE_INVALID`, `_DEVICE`, `_HOST`, `_HOST_NUMA` and `_HOST_NUMA_CURRENT`.
pub(crate) const NOWHERE: i32 = 0;
pub(crate) const DEVICE: i32 = 1;
pub(crate) const HOST: i32 = 2;
pub(crate) const HOST_NUMA: i32 = 3;
pub(crate) const HOST_NUMA_CURRENT: i32 = 4;
/// `…_HANDLE_TYPE_NONE`, `_POSIX_FILE_DESCRIPTOR`, `_WIN32` and `_FABRIC`.
pub(crate) const NO_HANDLE: i32 = 0;
pub(crate) const DESCRIPTOR: i32 = 1;
pub(crate) const WIN32: i32 = 2;
pub(crate) const FABRIC: i32 = 8;
/// `…_ACCESS_FLAGS_PROT_NONE`, `_READ` and `_READWRITE`.
pub(crate) const NONE: i32 = 0;
pub(crate) const READ: i32 = 1;
pub(crate) const RW: i32 = 3;
/// `…_GRANULARITY_MINIMUM` and `_RECOMMENDED`.
pub(crate) const MINIMUM: i32 = 0;
pub(crate) const RECOMMENDED: i32 = 1;
/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`, `hipMemRangeHandleTypeDmaBufFd`.
pub(crate) const DMA_BUF: i32 = 1;

/// What a call answered: a number, since a newer driver answers some that nobody knows today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

/// Numbers that mean the same in both.
impl Code {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const NOT_PERMITTED: Self = Self(800);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const UNKNOWN: Self = Self(999);

    /// True for what is answered because a stream captures.
    pub(crate) const fn is_of_capture(self) -> bool {
        matches!(self.0, 900..910)
    }
}
