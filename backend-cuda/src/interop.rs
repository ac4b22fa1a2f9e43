//! A program's own contexts and streams: cudarc's, or the driver's as they are.
//!
//! Unsafe, since raw contexts are taken at their owner's word.
#![allow(unsafe_code)]

use crate::CudaBackend;
use crate::context::{Attached, Context};
use crate::driver::Driver;
use crate::ffi::CuContext;
use cudarc::driver::{CudaContext, CudaStream};
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Stream};
use std::ffi::c_void;
use std::sync::Arc;

impl CudaBackend {
    /// Opens the driver, to use cudarc's context for that context's device and primary contexts for the others.
    ///
    /// The context is kept alive by the backend and by all that is made with it. cudarc looks for the driver under its
    /// own list of names; where `GPU_VMM_CUDA_LIBRARY` is set, it must name the library that cudarc has loaded.
    ///
    /// # Errors
    ///
    /// As for [`open`](CudaBackend::open), or what the driver answers about the context.
    pub fn with_cudarc(context: &Arc<CudaContext>) -> Result<Self> {
        let (device, raw) = (DeviceId(context.ordinal() as u32), CuContext(context.cu_ctx().cast()));
        // SAFETY: the context is alive, and the `Arc` that is kept keeps it so.
        unsafe { Self::attach(device, raw, Some(Arc::clone(context))) }
    }

    /// Opens the driver, to use a context of the program for one device and primary contexts for the others. CUDA:
    /// `CUcontext`.
    ///
    /// # Safety
    ///
    /// `context` is a live context of the driver that is loaded here, and stays alive as long as the backend and all
    /// that is made with it. Memory that [`Backend::deferred`](gpu_vmm_core::Backend::deferred) keeps is part of that:
    /// [`collect`](gpu_vmm_core::extend::Deferred::collect) gives it back.
    ///
    /// # Errors
    ///
    /// As for [`open`](CudaBackend::open); [`Detail::Unsupported`] where the context is another device's; what the
    /// driver answers about the context.
    pub unsafe fn with_context(device: DeviceId, context: *mut c_void) -> Result<Self> {
        // SAFETY: the promise is the same.
        unsafe { Self::attach(device, CuContext(context), None) }
    }

    /// Opens with a context.
    ///
    /// # Safety
    ///
    /// As for [`with_context`](CudaBackend::with_context), or `keep` keeps the context alive.
    unsafe fn attach(device: DeviceId, raw: CuContext, keep: Option<Arc<CudaContext>>) -> Result<Self> {
        const OPERATION: Operation = Operation::Open;
        let plain = Self::open()?;
        plain.slot(OPERATION, device)?;
        let owner = plain.device_of(OPERATION, raw)?;
        if owner != device {
            let reason = format!("the context is of {owner} and not of {device}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let driver = Driver::get()?;
        let lease = driver.leases.add(device, raw);
        let attached = Attached { device, context: Context::new(raw), lease, _keep: keep };
        Ok(Self::new(driver, Some(attached)))
    }

    /// Names a stream of cudarc, so that it can be waited for.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for the [per-thread default stream](Stream::is_per_thread), which is another stream in each
    /// thread; and for the default stream of a context that this backend does not use: such a stream has
    /// no name of its own, so waiting for it would be waiting for another one. [`Detail::NoSuchDevice`] cannot
    /// happen while both use one driver.
    pub fn stream<'a>(&self, stream: &'a CudaStream) -> Result<Stream<'a>> {
        const OPERATION: Operation = Operation::UseStream;
        // SAFETY: the stream lives as long as it is borrowed.
        let named = unsafe { Stream::from_raw(stream.cu_stream().cast()) };
        named.check_shared(OPERATION)?;
        let context = stream.context();
        if named.is_default() {
            let device = DeviceId(context.ordinal() as u32);
            if self.context(OPERATION, device)?.raw != CuContext(context.cu_ctx().cast()) {
                let reason = format!(
                    "it is the default stream of a context for {device} that this backend does not use; open the \
                     backend with that context, or make a stream"
                );
                return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
            }
        }
        Ok(named)
    }
}
