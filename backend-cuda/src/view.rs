//! gpu-vmm's memory as arguments of cudarc's kernel launches and copies.
//!
//! A view holds a [`CudaSlice`] that is never freed, so that cudarc orders its streams as for memory of its own: `LaunchArgs` takes
//! events only from cudarc's own types.
#![allow(unsafe_code)] // makes a slice of an address

use crate::backend::CudaBackend;
use crate::ffi::{CuContext, CuResult};
use bytemuck::Pod;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop, sys,
};
use gpu_vmm_core::extend::{DriverProcess, LendMemory, Process, lend_elements};
use gpu_vmm_core::{Access, Backend, Bytes, Detail, DeviceId, DeviceVec, Error, Grant, Operation, Result};
use std::any::type_name;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

const OPERATION: Operation = Operation::ViewMemory;

/// A backend that can be NVIDIA's driver: [`CudaBackend`], or an enum of backends with it as a variant.
pub trait MaybeCuda: Backend {
    /// Returns NVIDIA's driver, or `None` if this is another vendor's.
    fn as_cuda(&self) -> Option<&CudaBackend>;
}

impl MaybeCuda for CudaBackend {
    fn as_cuda(&self) -> Option<&CudaBackend> {
        Some(self)
    }
}

/// Elements of a region, a [`DeviceVec`] or a pool's block that cudarc reads: an argument of a kernel (`launch.arg(&view)`), or the
/// source of a copy (`stream.clone_dtoh(&view)`).
///
/// A view borrows its owner: the memory cannot be unmapped, suspended or dropped while the view lives. It derefs to a
/// [`CudaSlice`], which has the length and can be sliced (`view.slice(..10)`).
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_core::*; pub use gpu_vmm_cuda as cuda; }
/// use gpu_vmm::{DeviceId, DeviceVec};
/// use gpu_vmm::cuda::cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
/// use gpu_vmm::cuda::{CudaBackend, MemoryView, MemoryViewMut};
///
/// fn double(kernel: &CudaFunction) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
///     let context = CudaContext::new(0)?;
///     let stream = context.new_stream()?;
///     let backend = CudaBackend::with_cudarc(&context)?;
///     let mut numbers = DeviceVec::from_slice(&backend, DeviceId(0), &[1.0f32, 2.0, 3.0])?;
///     let mut view = MemoryViewMut::of_vec(&stream, &mut numbers)?;
///     let mut launch = stream.launch_builder(kernel);
///     launch.arg(&mut view);
///     // SAFETY: the kernel doubles three numbers.
///     unsafe { launch.launch(LaunchConfig::for_num_elems(3)) }?;
///     drop(view);
///     Ok(stream.clone_dtoh(&MemoryView::of_vec(&stream, &numbers)?)?)
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use gpu_vmm_core::{Bytes, Region, Result, WaitFor};
/// # use gpu_vmm_cuda::{CudaBackend, MemoryView, cudarc::driver::CudaStream};
/// # fn example(stream: &std::sync::Arc<CudaStream>, region: &mut Region<CudaBackend>) -> Result<()> {
/// let view = MemoryView::<u32>::new(stream, region, Bytes(0), 1_000)?;
/// region.shrink_to(Bytes(0), WaitFor::all_devices())?; // the view borrows the region
/// drop(view);
/// # Ok(())
/// # }
/// ```
///
/// # Order
///
/// Launches and copies return before the device has finished, so work can outlive its view.
///
/// - **Memory stays mapped as long as work uses it.** Calls that unmap memory of a region wait for all devices, the stream's
///   context included, unless the caller promises otherwise (`unsafe` [`WaitFor::streams`](gpu_vmm_core::WaitFor::streams)). A
///   block is reused in the order of its stream; a view of a block is accepted only for that stream or for a stream whose use is
///   recorded.
/// - **Between cudarc's streams** one view keeps the order as a `CudaSlice` does: a read waits for writes, a write for reads and
///   writes. When the view is dropped, its own stream waits for the work of other streams on it. So two successive views on one
///   stream are in order. cudarc does this if the context has created a stream and `disable_event_tracking` was not called.
/// - **The caller orders the rest**: the next view on another stream (`CudaStream::join`), and
///   [`Region::read`](gpu_vmm_core::Region::read), `write` and `fill`, which do not wait for streams (`CudaStream::synchronize`). A
///   view that is forgotten instead of dropped orders nothing. A pool's tag must not be suspended while its blocks have views.
pub struct MemoryView<'a, T> {
    /// Leaked when the view is dropped, so that cudarc never frees the address.
    slice: ManuallyDrop<CudaSlice<T>>,
    process: DriverProcess,
    owner: PhantomData<&'a [T]>,
}

/// Elements of a region, a [`DeviceVec`] or a pool's block that cudarc writes: an argument of a kernel (`launch.arg(&mut view)`),
/// or the destination of a copy (`stream.memcpy_htod(&values, &mut view)`).
///
/// It borrows its owner mutably and derefs to a [`MemoryView`], which documents the order of work.
#[derive(Debug)]
pub struct MemoryViewMut<'a, T>(MemoryView<'a, T>);

impl<'a, T: Pod> MemoryView<'a, T> {
    /// Creates a view of `count` elements from `offset` on, of a [`Region`](gpu_vmm_core::Region) or a pool's block, for work on
    /// `stream`.
    ///
    /// # Errors
    ///
    /// - [`Detail::Unsupported`] if the first element is not aligned, the element type has size zero, the memory is another
    ///   vendor's, or no wait of the owner covers the stream.
    /// - [`Detail::TooManyElements`] if the length overflows.
    /// - [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`] and [`Detail::Poisoned`] if the stream's device cannot
    ///   read all elements.
    /// - The error of a suspended owner.
    /// - [`Detail::Driver`] if cudarc cannot create events.
    pub fn new<M>(stream: &Arc<CudaStream>, memory: &'a M, offset: Bytes, count: usize) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeCuda>,
    {
        Self::with_access(stream, memory, offset, count, Access::Read)
    }

    /// Creates a view of all elements of a vector, for work on `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryView::new`].
    pub fn of_vec<B: MaybeCuda>(stream: &Arc<CudaStream>, vec: &'a DeviceVec<T, B>) -> Result<Self> {
        Self::new(stream, vec.region(), Bytes::ZERO, vec.len())
    }

    /// Creates a view. The caller borrows the memory for `'a`, mutably if `access` is to write.
    fn with_access<M>(
        stream: &Arc<CudaStream>,
        memory: &M,
        offset: Bytes,
        count: usize,
        access: Access,
    ) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeCuda>,
    {
        let lender = memory.lender(OPERATION)?;
        let Some(backend) = lender.as_cuda() else {
            return unsupported(format!(
                "the memory is of the {} backend; cudarc uses cuda's",
                lender.vendor()
            ));
        };
        let grant = Grant { device: backend.device_of_stream(stream)?, access };
        let on = backend.stream(stream)?;
        let address = lend_elements::<T>(memory, OPERATION, offset, count, grant, on)?;
        // cudarc panics if it cannot create the events of the slice; earlier errors of the context are reported here.
        if let Err(error) = stream.context().new_event(None) {
            backend
                .opened
                .check(OPERATION, "cuEventCreate", CuResult(error.0 as u32), || grant.device.to_string())?;
        }
        // SAFETY: the elements are mapped for the stream's device as long as the owner is borrowed, any bytes are valid elements of
        // the type, and the slice is never dropped, which would free the address.
        let slice = ManuallyDrop::new(unsafe { stream.upgrade_device_ptr(address.0, count) });
        Ok(Self { slice, process: DriverProcess::new(Process::current()), owner: PhantomData })
    }
}

impl<'a, T: Pod> MemoryViewMut<'a, T> {
    /// Creates a view of `count` elements from `offset` on, of a [`Region`](gpu_vmm_core::Region) or a pool's block, for work on
    /// `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryView::new`], and [`Detail::NoAccess`] if the stream's device cannot write all elements.
    pub fn new<M>(stream: &Arc<CudaStream>, memory: &'a mut M, offset: Bytes, count: usize) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeCuda>,
    {
        MemoryView::with_access(stream, memory, offset, count, Access::ReadWrite).map(Self)
    }

    /// Creates a view of all elements of a vector, for work on `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryViewMut::new`].
    pub fn of_vec<B: MaybeCuda>(stream: &Arc<CudaStream>, vec: &'a mut DeviceVec<T, B>) -> Result<Self> {
        MemoryView::with_access(stream, vec.region(), Bytes::ZERO, vec.len(), Access::ReadWrite).map(Self)
    }
}

impl<T> MemoryViewMut<'_, T> {
    /// Returns cudarc's type for the elements, which can be split for writing: `view.as_view_mut().split_at_mut(10)`.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.0.slice.as_view_mut()
    }
}

impl CudaBackend {
    /// Returns the device of a stream, if this backend waits for the stream's context as long as it lives.
    fn device_of_stream(&self, stream: &CudaStream) -> Result<DeviceId> {
        let context = stream.context();
        let (device, raw) = (DeviceId(context.ordinal() as u32), CuContext(context.cu_ctx().cast()));
        let primary = self.opened.existing_primary(OPERATION, device)?;
        if self.opened.context(OPERATION, device)?.raw != raw
            && primary.is_none_or(|primary| primary.raw != raw)
        {
            return unsupported(format!(
                "the stream is of context {raw:?} of {device}, whose work this backend does not wait for; open the backend with \
                 that context, or use the primary one"
            ));
        }
        Ok(device)
    }
}

fn unsupported<T>(reason: String) -> Result<T> {
    Err(Error::new(OPERATION, Detail::Unsupported { reason }))
}

impl<T> Drop for MemoryView<'_, T> {
    /// Makes the view's stream wait for the work of other streams on it. In a forked child the events are the parent's, and while
    /// the process exits the driver must not be called.
    fn drop(&mut self) {
        if self.process.is_usable() {
            // SAFETY: the slice is taken once, and the view is not used afterwards.
            unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        }
    }
}

impl<T> std::fmt::Debug for MemoryView<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryView of {} x {}", self.slice.len(), type_name::<T>())
    }
}

impl<T> Deref for MemoryView<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<'a, T> Deref for MemoryViewMut<'a, T> {
    type Target = MemoryView<'a, T>;

    fn deref(&self) -> &MemoryView<'a, T> {
        &self.0
    }
}

impl<T> DeviceSlice<T> for MemoryView<'_, T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DeviceSlice<T> for MemoryViewMut<'_, T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for MemoryView<'_, T> {
    fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'b>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for MemoryViewMut<'_, T> {
    fn device_ptr_mut<'b>(&'b mut self, stream: &'b CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'b>) {
        self.0.slice.device_ptr_mut(stream)
    }
}

// SAFETY: the pushed argument is cudarc's own slice, borrowed as long as the view.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b MemoryView<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b MemoryView<'_, T>) -> &mut Self {
        self.arg(&*arg.slice)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut MemoryViewMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut MemoryViewMut<'_, T>) -> &mut Self {
        self.arg(&mut *arg.0.slice)
    }
}
