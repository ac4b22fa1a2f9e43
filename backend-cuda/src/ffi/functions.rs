//! The tables of the driver's functions: those that `cuda.h` has from CUDA 11.4 on, and those for multicast.

use super::{
    CuContext, CuEvent, CuFunction, CuGraph, CuGraphExec, CuModule, CuResult, CuStream, MemAccessDesc,
    MemAllocationProp, MemLocation, MulticastObjectProp,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// Declares a table: for each function its field name, its symbol in the library, and its arguments.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($field:ident = $symbol:literal($($argument:ident: $type:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "system" fn($($argument: $type),*) -> CuResult,)*
        }

        impl $table {
            /// Fills the table; `symbol` returns a function's address.
            ///
            /// # Safety
            ///
            /// The address that `symbol` returns is the CUDA driver's function of that name, valid as long as the table is used.
            ///
            /// # Errors
            ///
            /// The first error that `symbol` returns.
            #[allow(unsafe_code)]
            pub(crate) unsafe fn load<E>(
                mut symbol: impl FnMut(&'static str) -> Result<*mut c_void, E>,
            ) -> Result<Self, E> {
                Ok(Self {$(
                    // SAFETY: the symbol is the driver's by the caller's promise and not null by `symbol`'s, and its arguments are
                    // declared so by every `cuda.h` that has it; pointers and functions have the same size.
                    $field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "system" fn($($type),*) -> CuResult,
                        >(symbol($symbol)?)
                    },
                )*})
            }
        }
    };
}

functions! {
    /// The driver's functions. A driver that lacks one of them is refused.
    Functions:
    init = "cuInit"(flags: c_uint);
    get_error_name = "cuGetErrorName"(error: CuResult, name: *mut *const c_char);
    get_error_string = "cuGetErrorString"(error: CuResult, text: *mut *const c_char);
    device_get_count = "cuDeviceGetCount"(count: *mut c_int);
    device_get = "cuDeviceGet"(device: *mut c_int, ordinal: c_int);
    device_get_name = "cuDeviceGetName"(name: *mut c_char, length: c_int, device: c_int);
    device_total_mem = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    device_get_uuid = "cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: c_int);
    device_get_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: u32, device: c_int);
    device_can_access_peer = "cuDeviceCanAccessPeer"(can: *mut c_int, device: c_int, peer: c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain"(context: *mut CuContext, device: c_int);
    primary_ctx_get_state = "cuDevicePrimaryCtxGetState"(device: c_int, flags: *mut c_uint, active: *mut c_int);
    ctx_push_current = "cuCtxPushCurrent_v2"(context: CuContext);
    ctx_pop_current = "cuCtxPopCurrent_v2"(context: *mut CuContext);
    ctx_get_current = "cuCtxGetCurrent"(context: *mut CuContext);
    ctx_get_device = "cuCtxGetDevice"(device: *mut c_int);
    ctx_synchronize = "cuCtxSynchronize"();
    stream_get_ctx = "cuStreamGetCtx"(stream: CuStream, context: *mut CuContext);
    stream_synchronize = "cuStreamSynchronize"(stream: CuStream);
    stream_create = "cuStreamCreate"(stream: *mut CuStream, flags: c_uint);
    stream_query = "cuStreamQuery"(stream: CuStream);
    stream_destroy = "cuStreamDestroy_v2"(stream: CuStream);
    stream_wait_event = "cuStreamWaitEvent"(stream: CuStream, event: CuEvent, flags: c_uint);
    stream_is_capturing = "cuStreamIsCapturing"(stream: CuStream, status: *mut c_uint);
    thread_exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint);
    event_create = "cuEventCreate"(event: *mut CuEvent, flags: c_uint);
    event_record = "cuEventRecord"(event: CuEvent, stream: CuStream);
    event_query = "cuEventQuery"(event: CuEvent);
    event_synchronize = "cuEventSynchronize"(event: CuEvent);
    event_destroy = "cuEventDestroy_v2"(event: CuEvent);
    mem_get_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    mem_get_allocation_granularity = "cuMemGetAllocationGranularity"(
        granularity: *mut usize, prop: *const MemAllocationProp, option: u32
    );
    mem_create = "cuMemCreate"(handle: *mut u64, size: usize, prop: *const MemAllocationProp, flags: u64);
    mem_release = "cuMemRelease"(handle: u64);
    mem_retain_allocation_handle = "cuMemRetainAllocationHandle"(handle: *mut u64, address: u64);
    mem_get_allocation_properties = "cuMemGetAllocationPropertiesFromHandle"(
        prop: *mut MemAllocationProp, handle: u64
    );
    mem_export = "cuMemExportToShareableHandle"(
        shareable: *mut c_void, handle: u64, handle_type: u32, flags: u64
    );
    mem_import = "cuMemImportFromShareableHandle"(handle: *mut u64, shareable: *mut c_void, handle_type: u32);
    mem_address_reserve = "cuMemAddressReserve"(
        address: *mut u64, size: usize, alignment: usize, hint: u64, flags: u64
    );
    mem_address_free = "cuMemAddressFree"(address: u64, size: usize);
    mem_map = "cuMemMap"(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    mem_unmap = "cuMemUnmap"(address: u64, size: usize);
    mem_set_access = "cuMemSetAccess"(address: u64, size: usize, descs: *const MemAccessDesc, count: usize);
    mem_get_access = "cuMemGetAccess"(flags: *mut u64, location: *const MemLocation, address: u64);
    mem_get_address_range = "cuMemGetAddressRange_v2"(base: *mut u64, size: *mut usize, address: u64);
    mem_alloc = "cuMemAlloc_v2"(address: *mut u64, size: usize);
    mem_free = "cuMemFree_v2"(address: u64);
    memcpy_to_device = "cuMemcpyHtoD_v2"(to: u64, from: *const c_void, length: usize);
    memcpy_to_host = "cuMemcpyDtoH_v2"(to: *mut c_void, from: u64, length: usize);
    mem_host_alloc = "cuMemHostAlloc"(start: *mut *mut c_void, size: usize, flags: c_uint);
    mem_free_host = "cuMemFreeHost"(start: *mut c_void);
    mem_host_register = "cuMemHostRegister_v2"(start: *mut c_void, size: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister"(start: *mut c_void);
    memcpy_to_device_async = "cuMemcpyHtoDAsync_v2"(
        to: u64, from: *const c_void, length: usize, stream: CuStream
    );
    memcpy_to_host_async = "cuMemcpyDtoHAsync_v2"(
        to: *mut c_void, from: u64, length: usize, stream: CuStream
    );
    memcpy_on_device = "cuMemcpyDtoD_v2"(to: u64, from: u64, length: usize);
    memset = "cuMemsetD8_v2"(at: u64, value: u8, length: usize);
    module_load = "cuModuleLoadDataEx"(
        module: *mut CuModule, image: *const c_void, count: c_uint, options: *mut u32, values: *mut *mut c_void
    );
    module_unload = "cuModuleUnload"(module: CuModule);
    module_get_function = "cuModuleGetFunction"(
        function: *mut CuFunction, module: CuModule, name: *const c_char
    );
    launch_kernel = "cuLaunchKernel"(
        function: CuFunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

functions! {
    /// The multicast functions, which came with CUDA 12.1. A driver that lacks one of them has no multicast.
    MulticastFunctions:
    create = "cuMulticastCreate"(object: *mut u64, prop: *const MulticastObjectProp);
    add_device = "cuMulticastAddDevice"(object: u64, device: c_int);
    bind_mem = "cuMulticastBindMem"(
        object: u64, offset: usize, memory: u64, memory_offset: usize, size: usize, flags: u64
    );
    unbind = "cuMulticastUnbind"(object: u64, device: c_int, offset: usize, size: usize);
    get_granularity = "cuMulticastGetGranularity"(
        granularity: *mut usize, prop: *const MulticastObjectProp, option: u32
    );
}

functions! {
    /// The functions that only the test kit uses. If the driver lacks one of them, the test kit has no captures and no contexts of
    /// its own.
    GraphFunctions:
    ctx_create = "cuCtxCreate_v2"(context: *mut CuContext, flags: c_uint, device: c_int);
    ctx_destroy = "cuCtxDestroy_v2"(context: CuContext);
    stream_begin_capture = "cuStreamBeginCapture_v2"(stream: CuStream, mode: c_uint);
    stream_end_capture = "cuStreamEndCapture"(stream: CuStream, graph: *mut CuGraph);
    graph_instantiate = "cuGraphInstantiateWithFlags"(exec: *mut CuGraphExec, graph: CuGraph, flags: c_ulonglong);
    graph_launch = "cuGraphLaunch"(exec: CuGraphExec, stream: CuStream);
    graph_destroy = "cuGraphDestroy"(graph: CuGraph);
    graph_exec_destroy = "cuGraphExecDestroy"(exec: CuGraphExec);
}

/// `cuMemGetHandleForAddressRange`, which came with CUDA 11.7: older drivers lack it.
#[cfg(unix)]
pub(crate) type MemGetHandleForAddressRange = unsafe extern "system" fn(
    handle: *mut c_void,
    address: u64,
    size: usize,
    handle_type: u32,
    flags: u64,
) -> CuResult;

/// `cuDriverGetVersion`, which is called before the table is filled: an old driver lacks functions of the table.
pub(crate) type DriverGetVersion = unsafe extern "system" fn(version: *mut c_int) -> CuResult;
