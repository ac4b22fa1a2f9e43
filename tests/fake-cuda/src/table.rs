//! All implemented functions of the driver, each with the version of CUDA that introduced its symbol.

/// A function by its symbol.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// As `cuDriverGetVersion` returns it; older drivers lack the symbol.
    pub(crate) since: u32,
    pub(crate) address: *const (),
}

macro_rules! functions {
    ($($module:ident: $($name:ident $since:literal),*;)*) => {
        /// The table. A function that is missing here does not compile.
        pub(crate) const FUNCTIONS: &[Function] = &[$($(Function {
            name: stringify!($name),
            since: $since,
            address: crate::$module::$name as *const (),
        },)*)*];
    };
}

functions! {
    device: cuInit 2000, cuDriverGetVersion 2020, cuGetErrorName 6000, cuGetErrorString 6000,
        cuDeviceGetCount 2000, cuDeviceGet 2000, cuDeviceGetName 2000, cuDeviceGetUuid_v2 11040, cuDeviceTotalMem_v2 3020,
        cuDeviceGetAttribute 2000, cuDeviceCanAccessPeer 4000;
    entry: cuGetProcAddress_v2 12000;
    context: cuCtxCreate_v2 3020, cuCtxDestroy_v2 4000, cuCtxPushCurrent_v2 4000, cuCtxPopCurrent_v2 4000,
        cuCtxSetCurrent 4000, cuCtxGetCurrent 4000, cuCtxGetDevice 2000, cuCtxSynchronize 2000;
    primary: cuDevicePrimaryCtxRetain 7000, cuDevicePrimaryCtxRelease_v2 11000, cuDevicePrimaryCtxGetState 7000,
        cuDevicePrimaryCtxReset_v2 11000;
    stream: cuStreamCreate 2000, cuStreamCreateWithPriority 5050, cuStreamDestroy_v2 4000, cuStreamQuery 2000,
        cuStreamSynchronize 2000, cuStreamGetCtx 9020, cuStreamWaitEvent 3020;
    event: cuEventCreate 2000, cuEventDestroy_v2 4000, cuEventRecord 2000, cuEventQuery 2000,
        cuEventSynchronize 2000, cuEventElapsedTime 2000;
    capture: cuStreamBeginCapture_v2 10010, cuStreamEndCapture 10000, cuStreamIsCapturing 10000,
        cuThreadExchangeStreamCaptureMode 10010;
    graph: cuGraphInstantiateWithFlags 11040, cuGraphLaunch 10000, cuGraphDestroy 10000, cuGraphExecDestroy 10000;
    reserve: cuMemAddressReserve 10020, cuMemAddressFree 10020;
    physical: cuMemCreate 10020, cuMemRelease 10020, cuMemRetainAllocationHandle 11000,
        cuMemGetAllocationGranularity 10020, cuMemGetAllocationPropertiesFromHandle 10020;
    map: cuMemMap 10020, cuMemUnmap 10020;
    access: cuMemSetAccess 10020, cuMemGetAccess 10020;
    share: cuMemExportToShareableHandle 10020, cuMemImportFromShareableHandle 10020;
    range: cuMemGetAddressRange_v2 3020, cuMemGetHandleForAddressRange 11070, cuPointerGetAttribute 4000,
        cuPointerGetAttributes 7000;
    multicast: cuMulticastCreate 12010, cuMulticastAddDevice 12010, cuMulticastBindMem 12010,
        cuMulticastUnbind 12010, cuMulticastGetGranularity 12010;
    plain: cuMemGetInfo_v2 3020, cuMemAlloc_v2 3020, cuMemAllocManaged 6000, cuMemFree_v2 3020;
    pinned: cuMemHostAlloc 2020, cuMemFreeHost 2000, cuMemHostRegister_v2 6050, cuMemHostUnregister 4000,
        cuMemHostGetDevicePointer_v2 3020;
    copy: cuMemcpyHtoD_v2 3020, cuMemcpyDtoH_v2 3020, cuMemcpyDtoD_v2 3020, cuMemcpyHtoDAsync_v2 3020,
        cuMemcpyDtoHAsync_v2 3020, cuMemcpyDtoDAsync_v2 3020, cuMemsetD8_v2 3020, cuMemsetD8Async 3020;
    module: cuModuleLoadData 2000, cuModuleLoadDataEx 2010, cuModuleUnload 2000, cuModuleGetFunction 2000,
        cuLaunchKernel 4000;
}

/// Returns the index of a function in the table, at compile time.
pub(crate) const fn index(name: &str) -> usize {
    let mut at = 0;
    while at < FUNCTIONS.len() {
        if same(FUNCTIONS[at].name.as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    assert!(at < FUNCTIONS.len(), "list the function in the table");
    at
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}
