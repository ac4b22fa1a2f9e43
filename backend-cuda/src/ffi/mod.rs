//! The part of `cuda.h` that this crate uses: structures and constants, and in `functions` the tables of functions.
//!
//! Every value that the driver fills in is an integer, since a driver newer than any header returns numbers that no header has.
//! When this crate is compiled, `check` compares structures and numbers with the version of the bindings that the application has
//! chosen.

mod check;
mod functions;

#[cfg(unix)]
pub(crate) use functions::MemGetHandleForAddressRange;
pub(crate) use functions::{DriverGetVersion, Functions, GraphFunctions, MulticastFunctions};

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fmt;

/// `CUresult`: the status that a function of the driver returns.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) struct CuResult(pub(crate) u32);

impl CuResult {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const DEINITIALIZED: Self = Self(4);
    pub(crate) const STUB_LIBRARY: Self = Self(34);
    pub(crate) const DEVICE_UNAVAILABLE: Self = Self(46);
    pub(crate) const MULTICAST_RESOURCE_FULL: Self = Self(47);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const ILLEGAL_STATE: Self = Self(401);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const NOT_PERMITTED: Self = Self(800);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const SYSTEM_NOT_READY: Self = Self(802);
    pub(crate) const SYSTEM_DRIVER_MISMATCH: Self = Self(803);
    pub(crate) const COMPAT_NOT_SUPPORTED_ON_DEVICE: Self = Self(804);
    #[cfg(unix)]
    pub(crate) const UNKNOWN: Self = Self(999);

    /// The codes that the driver returns because a stream captures.
    pub(crate) const CAPTURING: [Self; 3] = [
        Self(900), // STREAM_CAPTURE_UNSUPPORTED
        Self(901), // STREAM_CAPTURE_INVALIDATED
        Self(906), // STREAM_CAPTURE_IMPLICIT
    ];

    /// The codes after which, according to `cuda.h`, the context or the whole process is unusable.
    pub(crate) const LOST: [Self; 16] = [
        Self(214), // ECC_UNCORRECTABLE
        Self(220), // NVLINK_UNCORRECTABLE
        Self(226), // CONTAINED
        Self(700), // ILLEGAL_ADDRESS
        Self(702), // LAUNCH_TIMEOUT
        Self::CONTEXT_IS_DESTROYED,
        Self(710), // ASSERT
        Self(714), // HARDWARE_STACK_ERROR
        Self(715), // ILLEGAL_INSTRUCTION
        Self(716), // MISALIGNED_ADDRESS
        Self(717), // INVALID_ADDRESS_SPACE
        Self(718), // INVALID_PC
        Self(719), // LAUNCH_FAILED
        Self(721), // TENSOR_MEMORY_LEAK
        Self(810), // MPS_CLIENT_TERMINATED
        Self(911), // EXTERNAL_DEVICE
    ];
}

/// Declares handle types of the driver's objects, which any thread may use.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        // SAFETY: the pointer is an opaque handle for the driver, which is thread-safe; this crate never dereferences it.
        #[allow(unsafe_code)]
        unsafe impl Send for $name {}
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe impl Sync for $name {}

        impl $name {
            /// The value that no object has.
            pub(crate) const NULL: Self = Self(std::ptr::null_mut());
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:p}", self.0)
            }
        }
    )*};
}

objects! {
    /// `CUcontext`.
    CuContext;
    /// `CUmodule`.
    CuModule;
    /// `CUfunction`.
    CuFunction;
    /// `CUstream`.
    CuStream;
    /// `CUevent`.
    CuEvent;
    /// `CUgraph`.
    CuGraph;
    /// `CUgraphExec`.
    CuGraphExec;
}

impl CuStream {
    /// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`. Like null, they mean the default stream of the current context.
    const LEGACY: usize = 1;
    const PER_THREAD: usize = 2;

    /// Returns whether this is a default stream, in any of its spellings.
    pub(crate) fn is_default(self) -> bool {
        matches!(self.0.addr(), 0 | Self::LEGACY | Self::PER_THREAD)
    }
}

/// `CUmemLocation`. From 13.2 on, `id` is one side of a union in `cuda.h`, at the same place.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp::allocFlags`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemAllocationFlags {
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAllocationProp {
    pub(crate) kind: u32,
    pub(crate) requested_handle_types: u32,
    pub(crate) location: MemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) flags: MemAllocationFlags,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemAccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: u32,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastObjectProp {
    pub(crate) num_devices: c_uint,
    pub(crate) size: usize,
    pub(crate) handle_types: c_ulonglong,
    pub(crate) flags: c_ulonglong,
}

/// `CU_MULTICAST_GRANULARITY_MINIMUM` and `_RECOMMENDED`.
pub(crate) const MULTICAST_MINIMUM: u32 = 0;
pub(crate) const MULTICAST_RECOMMENDED: u32 = 1;

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `_HOST` and `_HOST_NUMA`; the two for the host came with 12.2.
pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const LOCATION_HOST: u32 = 2;
pub(crate) const LOCATION_HOST_NUMA: u32 = 3;
/// `CU_MEM_LOCATION_TYPE_INVISIBLE`: memory of a device that this process does not see. It came with 13.2.
pub(crate) const LOCATION_INVISIBLE: u32 = 5;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_ALLOCATION_COMP_GENERIC`.
pub(crate) const COMPRESSION_GENERIC: u8 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(crate) const GRANULARITY_MINIMUM: u32 = 0;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`.
pub(crate) const GRANULARITY_RECOMMENDED: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`, `_READ` and `_READWRITE`.
pub(crate) const ACCESS_NONE: u32 = 0;
pub(crate) const ACCESS_READ: u32 = 1;
pub(crate) const ACCESS_READ_WRITE: u32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `_FABRIC`.
#[cfg(unix)]
pub(crate) const HANDLE_FILE_DESCRIPTOR: u32 = 1;
pub(crate) const HANDLE_FABRIC: u32 = 8;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
#[cfg(unix)]
pub(crate) const RANGE_HANDLE_DMA_BUF: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: no call of this thread invalidates the capture of another stream.
pub(crate) const CAPTURE_RELAXED: u32 = 2;
/// `CU_STREAM_DEFAULT`: the stream and the default one wait for each other.
pub(crate) const STREAM_BLOCKING: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`: the stream and the default one do not wait for each other.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: an event without timing costs less.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`; the other values mean an active capture and an invalidated one.
pub(crate) const CAPTURE_NONE: u32 = 0;
/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for every context, not only for the one that allocates.
pub(crate) const HOST_ALLOC_PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `_DEVICEMAP`: the same, and kernels can use it.
pub(crate) const HOST_REGISTER_PORTABLE: u32 = 1;
pub(crate) const HOST_REGISTER_DEVICEMAP: u32 = 2;
/// `CU_JIT_ERROR_LOG_BUFFER` and `_SIZE_BYTES`.
pub(crate) const JIT_ERROR_LOG: u32 = 5;
pub(crate) const JIT_ERROR_LOG_SIZE: u32 = 6;

/// `CU_DEVICE_ATTRIBUTE_…`.
pub(crate) mod attribute {
    pub(crate) const COMPUTE_MODE: u32 = 20;
    pub(crate) const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: u32 = 91;
    pub(crate) const VIRTUAL_MEMORY_MANAGEMENT: u32 = 102;
    pub(crate) const HANDLE_TYPE_FILE_DESCRIPTOR: u32 = 103;
    #[cfg(windows)]
    pub(crate) const HANDLE_TYPE_WIN32: u32 = 104;
    pub(crate) const GENERIC_COMPRESSION: u32 = 107;
    pub(crate) const GPU_DIRECT_RDMA_WITH_CUDA_VMM: u32 = 110;
    #[cfg(unix)]
    pub(crate) const DMA_BUF: u32 = 124;
    pub(crate) const HANDLE_TYPE_FABRIC: u32 = 128;
    pub(crate) const MULTICAST: u32 = 132;
    pub(crate) const HOST_NUMA_ID: u32 = 134;
    pub(crate) const HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT: u32 = 141;
    pub(crate) const HOST_VIRTUAL_MEMORY_MANAGEMENT: u32 = 145;
}
