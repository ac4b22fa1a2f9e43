//! The functions that both vendors have, under both names. Their arguments are the same.

use crate::raw::abi::{AccessDesc, Code, IpcHandle, Location, Prop};
use crate::raw::library::Library;
use crate::raw::{Gpu, missing};
use std::ffi::{c_char, c_void};

/// The vendor's names to look up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    Cuda,
    Hip,
}

/// A function, if this version has it.
pub(crate) struct Symbol<F> {
    name: &'static str,
    function: Option<F>,
}

impl<F: Copy> Symbol<F> {
    pub(crate) fn find(library: &Library, name: &'static str) -> Self {
        // SAFETY: the caller names the function's type as in `cuda.h` and `hip_runtime_api.h`.
        let function = unsafe { library.get::<F>(name) }.ok().map(|found| *found);
        Self { name, function }
    }

    /// Returns the function, or ends as [`Missing`](crate::raw::Missing).
    pub(crate) fn get(&self) -> F {
        self.function.unwrap_or_else(|| missing(format!("this version has no {}", self.name)))
    }
}

macro_rules! calls {
    ($($(#[$meta:meta])* $call:ident = $cuda:literal | $hip:literal($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The calls. A call that this version or backend lacks ends as [`Missing`](crate::raw::Missing).
        ///
        /// # Safety
        ///
        /// For each call: pointers are null, or valid for the function's reads and writes. The driver checks everything
        /// else.
        #[allow(clippy::missing_safety_doc)] // stated above for all
        pub trait Calls: Send + Sync {
            $(
                #[doc = concat!("`", $cuda, "`, `", $hip, "`.")]
                $(#[$meta])*
                unsafe fn $call(&self, $($argument: $type),*) -> Code {
                    let _ = ($($argument,)*);
                    missing(concat!("there is no counterpart of ", $cuda, " and ", $hip))
                }
            )*
        }

        pub(crate) struct Table {
            $($call: Symbol<unsafe extern "C" fn($($type),*) -> i32>,)*
        }

        impl Table {
            /// Looks up all functions in a library that is never closed.
            pub(crate) fn find(library: &Library, column: Column) -> Self {
                let pick = |cuda, hip| match column {
                    Column::Cuda => cuda,
                    Column::Hip => hip,
                };
                Self { $($call: Symbol::find(library, pick($cuda, $hip)),)* }
            }
        }

        impl Calls for Gpu {
            $(unsafe fn $call(&self, $($argument: $type),*) -> Code {
                let function = self.table.$call.get();
                if let Some(tell) = self.tell {
                    tell(self.table.$call.name);
                }
                // SAFETY: the caller's promise.
                Code(unsafe { function($($argument),*) })
            })*
        }
    };
}

calls! {
    error_name = "cuGetErrorName" | "hipDrvGetErrorName"(code: i32, name: *mut *const c_char);
    address_reserve = "cuMemAddressReserve" | "hipMemAddressReserve"(
        address: *mut u64, size: usize, alignment: usize, hint: u64, flags: u64
    );
    address_free = "cuMemAddressFree" | "hipMemAddressFree"(address: u64, size: usize);
    create = "cuMemCreate" | "hipMemCreate"(handle: *mut u64, size: usize, prop: *const Prop, flags: u64);
    release = "cuMemRelease" | "hipMemRelease"(handle: u64);
    map = "cuMemMap" | "hipMemMap"(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    unmap = "cuMemUnmap" | "hipMemUnmap"(address: u64, size: usize);
    set_access = "cuMemSetAccess" | "hipMemSetAccess"(
        address: u64, size: usize, descs: *const AccessDesc, count: usize
    );
    get_access = "cuMemGetAccess" | "hipMemGetAccess"(flags: *mut u64, location: *const Location, address: u64);
    granularity = "cuMemGetAllocationGranularity" | "hipMemGetAllocationGranularity"(
        granularity: *mut usize, prop: *const Prop, option: i32
    );
    properties = "cuMemGetAllocationPropertiesFromHandle" | "hipMemGetAllocationPropertiesFromHandle"(
        prop: *mut Prop, handle: u64
    );
    retain = "cuMemRetainAllocationHandle" | "hipMemRetainAllocationHandle"(handle: *mut u64, address: u64);
    export = "cuMemExportToShareableHandle" | "hipMemExportToShareableHandle"(
        shareable: *mut c_void, handle: u64, kind: i32, flags: u64
    );
    import = "cuMemImportFromShareableHandle" | "hipMemImportFromShareableHandle"(
        handle: *mut u64, shareable: *mut c_void, kind: i32
    );
    address_range = "cuMemGetAddressRange_v2" | "hipMemGetAddressRange"(
        base: *mut u64, size: *mut usize, address: u64
    );
    handle_for_range = "cuMemGetHandleForAddressRange" | "hipMemGetHandleForAddressRange"(
        handle: *mut c_void, address: u64, size: usize, kind: i32, flags: u64
    );
    memory_info = "cuMemGetInfo_v2" | "hipMemGetInfo"(free: *mut usize, total: *mut usize);
    allocate = "cuMemAlloc_v2" | "hipMalloc"(address: *mut u64, size: usize);
    free = "cuMemFree_v2" | "hipFree"(address: u64);
    allocate_async = "cuMemAllocAsync" | "hipMallocAsync"(address: *mut u64, size: usize, stream: *mut c_void);
    free_async = "cuMemFreeAsync" | "hipFreeAsync"(address: u64, stream: *mut c_void);
    /// The pool of `allocate_async`, unless the device was given another one.
    default_pool = "cuDeviceGetDefaultMemPool" | "hipDeviceGetDefaultMemPool"(pool: *mut *mut c_void, device: i32);
    pool_set = "cuMemPoolSetAttribute" | "hipMemPoolSetAttribute"(
        pool: *mut c_void, attribute: i32, value: *mut c_void
    );
    /// Page-locked memory.
    host_allocate = "cuMemHostAlloc" | "hipHostMalloc"(pointer: *mut *mut c_void, size: usize, flags: u32);
    host_free = "cuMemFreeHost" | "hipHostFree"(pointer: *mut c_void);
    ipc_handle = "cuIpcGetMemHandle" | "hipIpcGetMemHandle"(handle: *mut IpcHandle, address: u64);
    copy_from_host = "cuMemcpyHtoD_v2" | "hipMemcpyHtoD"(to: u64, from: *const c_void, length: usize);
    copy_to_host = "cuMemcpyDtoH_v2" | "hipMemcpyDtoH"(to: *mut c_void, from: u64, length: usize);
    /// The call may return before the copy has finished.
    copy_on_device = "cuMemcpyDtoD_v2" | "hipMemcpyDtoD"(to: u64, from: u64, length: usize);
    copy_from_host_later = "cuMemcpyHtoDAsync_v2" | "hipMemcpyHtoDAsync"(
        to: u64, from: *const c_void, length: usize, stream: *mut c_void
    );
    copy_to_host_later = "cuMemcpyDtoHAsync_v2" | "hipMemcpyDtoHAsync"(
        to: *mut c_void, from: u64, length: usize, stream: *mut c_void
    );
    set = "cuMemsetD8_v2" | "hipMemsetD8"(at: u64, value: u8, length: usize);
    set_later = "cuMemsetD8Async" | "hipMemsetD8Async"(at: u64, value: u8, length: usize, stream: *mut c_void);
    synchronize = "cuCtxSynchronize" | "hipDeviceSynchronize"();
    stream_create = "cuStreamCreate" | "hipStreamCreateWithFlags"(stream: *mut *mut c_void, flags: u32);
    stream_destroy = "cuStreamDestroy_v2" | "hipStreamDestroy"(stream: *mut c_void);
    stream_query = "cuStreamQuery" | "hipStreamQuery"(stream: *mut c_void);
    stream_synchronize = "cuStreamSynchronize" | "hipStreamSynchronize"(stream: *mut c_void);
    begin_capture = "cuStreamBeginCapture_v2" | "hipStreamBeginCapture"(stream: *mut c_void, mode: i32);
    end_capture = "cuStreamEndCapture" | "hipStreamEndCapture"(stream: *mut c_void, graph: *mut *mut c_void);
    graph_destroy = "cuGraphDestroy" | "hipGraphDestroy"(graph: *mut c_void);
    device_count = "cuDeviceGetCount" | "hipGetDeviceCount"(count: *mut i32);
    /// Devices are ordinals: a `CUdevice` is one too.
    device_attribute = "cuDeviceGetAttribute" | "hipDeviceGetAttribute"(value: *mut i32, attribute: i32, device: i32);
    can_access = "cuDeviceCanAccessPeer" | "hipDeviceCanAccessPeer"(can: *mut i32, device: i32, peer: i32);
}
