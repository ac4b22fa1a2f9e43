//! A program's own contexts and streams, from cudarc or as the driver's raw handles.
//!
//! Unsafe, since the caller guarantees that raw contexts are valid.
#![allow(unsafe_code)]

use crate::backend::CudaBackend;
use crate::device_state::Context;
use crate::driver::Driver;
use crate::ffi::CuContext;
use crate::lease::Attached;
use cudarc::driver::{CudaContext, CudaStream};
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Stream};
use std::ffi::c_void;
use std::sync::Arc;

impl CudaBackend {
    /// Opens the driver with cudarc's context for that context's device, and primary contexts for the others.
    ///
    /// The backend and all objects made with it keep the context alive. cudarc searches its own list of library names for the
    /// driver; if `GPU_VMM_CUDA_LIBRARY` is set, it must name the library that cudarc has loaded.
    ///
    /// # Errors
    ///
    /// As for [`open`](CudaBackend::open), or the driver's error for the context.
    pub fn with_cudarc(context: &Arc<CudaContext>) -> Result<Self> {
        let (device, raw) = (DeviceId(context.ordinal() as u32), CuContext(context.cu_ctx().cast()));
        // SAFETY: the context is alive, and the stored `Arc` keeps it so.
        unsafe { Self::attach(device, raw, Some(Arc::clone(context))) }
    }

    /// Opens the driver with the program's own context for one device, and primary contexts for the others. CUDA: `CUcontext`.
    ///
    /// # Safety
    ///
    /// `context` is a live context of the driver that this crate has loaded, and stays alive as long as the backend and all objects
    /// made with it. That includes memory that [`Backend::deferred`](gpu_vmm_core::Backend::deferred) keeps until
    /// [`collect`](gpu_vmm_core::extend::Deferred::collect) releases it.
    ///
    /// # Errors
    ///
    /// As for [`open`](CudaBackend::open); [`Detail::Unsupported`] if the context belongs to another device; the driver's error for
    /// the context.
    pub unsafe fn with_context(device: DeviceId, context: *mut c_void) -> Result<Self> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Self::attach(device, CuContext(context), None) }
    }

    /// Opens the driver with a context.
    ///
    /// # Safety
    ///
    /// As for [`with_context`](CudaBackend::with_context), or `keep` keeps the context alive.
    unsafe fn attach(device: DeviceId, raw: CuContext, keep: Option<Arc<CudaContext>>) -> Result<Self> {
        const OPERATION: Operation = Operation::Open;
        let plain = Self::open()?;
        plain.opened.state(OPERATION, device)?;
        let owner = plain.opened.device_of(OPERATION, raw)?;
        if owner != device {
            let reason = format!("the context belongs to {owner}, not to {device}");
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        let driver = Driver::get()?;
        let lease = driver.leases.add(device, raw);
        let attached = Attached { device, context: Context::new(raw), lease, _keep: keep };
        Ok(Self::new(driver, Some(attached)))
    }

    /// Wraps a cudarc stream, so that gpu-vmm can wait for it.
    ///
    /// # Errors
    ///
    /// - [`Detail::Unsupported`] for the [per-thread default stream](Stream::is_per_thread), which is another stream in each
    ///   thread.
    /// - [`Detail::Unsupported`] for the default stream of a context that this backend does not use. Default streams share one
    ///   handle, so gpu-vmm would wait for another context's.
    /// - [`Detail::NoSuchDevice`] only if cudarc and this backend use different drivers.
    pub fn stream<'a>(&self, stream: &'a CudaStream) -> Result<Stream<'a>> {
        const OPERATION: Operation = Operation::UseStream;
        // SAFETY: the stream lives as long as it is borrowed.
        let named = unsafe { Stream::from_raw(stream.cu_stream().cast()) };
        named.check_shared(OPERATION)?;
        let context = stream.context();
        if named.is_default() {
            let device = DeviceId(context.ordinal() as u32);
            if self.opened.context(OPERATION, device)?.raw != CuContext(context.cu_ctx().cast()) {
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
