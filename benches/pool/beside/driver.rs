//! The CUDA driver's own pool, on a stream.

use crate::measure::check;
use crate::patterns::{Allocator, Failed};
use cudarc::driver::sys;
use gpu_vmm::{Bytes, DeviceId, Stream};

/// The device's default pool, told to keep all memory that it ever had, as a warm program would.
pub(crate) struct Driver {
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: contexts and streams are names that the driver takes from any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Neither the context nor the stream is given back: the benchmark ends soon.
    pub(crate) fn new(device: DeviceId) -> Self {
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut pool, mut keep) = (std::ptr::null_mut(), u64::MAX);
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: each pointer is good for what is read or written there: the threshold is a 64-bit number.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device.0 as i32));
            check(sys::cuCtxSetCurrent(context));
            check(sys::cuStreamCreate(&raw mut stream, 1));
            check(sys::cuDeviceGetDefaultMemPool(&raw mut pool, device.0 as i32));
            check(sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()));
        }
        Self { context, stream }
    }

    /// The stream on which it allocates.
    pub(crate) fn stream(&self) -> Stream<'static> {
        // SAFETY: the driver's own stream, which is never destroyed.
        unsafe { Stream::from_raw(self.stream.cast()) }
    }
}

impl Allocator for Driver {
    type Block = sys::CUdeviceptr;

    const NAME: &'static str = "cuMemAllocAsync";

    fn alloc(&self, size: Bytes) -> Result<sys::CUdeviceptr, Failed> {
        let mut block = 0;
        // SAFETY: the pointer is good for one address, the stream is live, and its context current.
        check(unsafe { sys::cuMemAllocAsync(&raw mut block, size.0 as usize, self.stream) });
        Ok(block)
    }

    fn free(&self, block: sys::CUdeviceptr) -> Result<(), Failed> {
        // SAFETY: each block is freed once, on the stream that it was allocated on.
        check(unsafe { sys::cuMemFreeAsync(block, self.stream) });
        Ok(())
    }

    fn enter(&self) {
        // SAFETY: the context is never given back.
        check(unsafe { sys::cuCtxSetCurrent(self.context) });
    }
}
