//! The structures and numbers of both drivers, which are the same because HIP copied CUDA's.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// `CUmemLocation`, `hipMemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The type of location: [`DEVICE`], [`HOST`] and so on.
    pub kind: i32,
    /// The device's ordinal, or the NUMA node's number.
    pub id: i32,
}

/// `CUmemAllocationProp`, `hipMemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Prop {
    /// [`PINNED`].
    pub kind: i32,
    /// The types that it can be exported as: [`NO_HANDLE`], [`DESCRIPTOR`] and so on, or several combined.
    pub handle_types: i32,
    /// Where the memory is.
    pub location: Location,
    /// Attributes of a Win32 handle, or null.
    pub win32: *mut c_void,
    /// Whether compressible memory is requested.
    pub compression: u8,
    /// Whether memory for GPUDirect RDMA is requested.
    pub rdma: u8,
    /// Usage bits.
    pub usage: u16,
    /// Must be zero.
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`, `hipMemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// The device or host that gets the access.
    pub location: Location,
    /// [`NONE`], [`READ`] or [`RW`].
    pub flags: i32,
}

/// `CUipcMemHandle`, `hipIpcMemHandle_t`.
#[repr(C)]
#[derive(Debug)]
pub struct IpcHandle(
    /// Opaque bytes, which only a driver can read.
    pub [u8; 64],
);

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
pub const PINNED: i32 = 1;
/// `…_LOCATION_TYPE_INVALID`.
pub const NOWHERE: i32 = 0;
/// `…_LOCATION_TYPE_DEVICE`.
pub const DEVICE: i32 = 1;
/// `…_LOCATION_TYPE_HOST`.
pub const HOST: i32 = 2;
/// `…_LOCATION_TYPE_HOST_NUMA`.
pub const HOST_NUMA: i32 = 3;
/// `…_LOCATION_TYPE_HOST_NUMA_CURRENT`.
pub const HOST_NUMA_CURRENT: i32 = 4;
/// `…_HANDLE_TYPE_NONE`.
pub const NO_HANDLE: i32 = 0;
/// `…_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const DESCRIPTOR: i32 = 1;
/// `…_HANDLE_TYPE_WIN32`.
pub const WIN32: i32 = 2;
/// `…_HANDLE_TYPE_FABRIC`.
pub const FABRIC: i32 = 8;
/// `…_ACCESS_FLAGS_PROT_NONE`.
pub const NONE: i32 = 0;
/// `…_ACCESS_FLAGS_PROT_READ`.
pub const READ: i32 = 1;
/// `…_ACCESS_FLAGS_PROT_READWRITE`.
pub const RW: i32 = 3;
/// `…_GRANULARITY_MINIMUM`.
pub const MINIMUM: i32 = 0;
/// `…_GRANULARITY_RECOMMENDED`.
pub const RECOMMENDED: i32 = 1;
/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`.
pub const NON_BLOCKING: u32 = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`, `hipMemRangeHandleTypeDmaBufFd`.
pub const DMA_BUF: i32 = 1;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, `hipMemPoolAttrReleaseThreshold`: the number of bytes that a pool keeps when it
/// is synchronized, a `u64`, initially 0.
pub const RELEASE_THRESHOLD: i32 = 4;
/// `CU_MEMHOSTALLOC_PORTABLE`, `hipHostMallocPortable`: page-locked for every device, not only for the current one.
pub const PORTABLE: u32 = 1;

/// The result of a call. It is a number, because a newer driver may return codes that are unknown today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(
    /// `CUresult`, `hipError_t`.
    pub i32,
);

/// The codes with the same meaning in both drivers.
impl Code {
    /// `CUDA_SUCCESS`, `hipSuccess`.
    pub const SUCCESS: Self = Self(0);
    /// `CUDA_ERROR_INVALID_VALUE`, `hipErrorInvalidValue`.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`, `hipErrorOutOfMemory`.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_INITIALIZED`, `hipErrorNotInitialized`.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `CUDA_ERROR_INVALID_DEVICE`, `hipErrorInvalidDevice`.
    pub const INVALID_DEVICE: Self = Self(101);
    /// `CUDA_ERROR_NOT_FOUND`, `hipErrorNotFound`.
    pub const NOT_FOUND: Self = Self(500);
    /// `CUDA_ERROR_NOT_READY`, `hipErrorNotReady`.
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`, `hipErrorPeerAccessAlreadyEnabled`.
    pub const PEER_ALREADY_ENABLED: Self = Self(704);
    /// `CUDA_ERROR_NOT_PERMITTED`.
    pub const NOT_PERMITTED: Self = Self(800);
    /// `CUDA_ERROR_NOT_SUPPORTED`, `hipErrorNotSupported`.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, `hipErrorStreamCaptureUnsupported`.
    pub const CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`, `hipErrorStreamCaptureInvalidated`.
    pub const CAPTURE_INVALIDATED: Self = Self(901);
    /// `CUDA_ERROR_UNKNOWN`, `hipErrorUnknown`.
    pub const UNKNOWN: Self = Self(999);

    /// True for the codes of calls that fail because a stream captures.
    pub const fn is_of_capture(self) -> bool {
        matches!(self.0, 900..910)
    }
}
