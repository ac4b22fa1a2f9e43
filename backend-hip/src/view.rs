//! gpu-vmm's memory for work on a program's own HIP streams: arguments of kernels, and addresses of copies.

use crate::backend::HipBackend;
use bytemuck::Pod;
use gpu_vmm_core::extend::{LendMemory, lend_elements};
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Detail, DeviceId, DeviceVec, Error, Grant, Operation, Result, Stream,
};
use std::any::type_name;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::from_ref;

const OPERATION: Operation = Operation::ViewMemory;

/// A backend that can be AMD's runtime: [`HipBackend`], or an enum of backends with it as a variant.
pub trait MaybeHip: Backend {
    /// Returns AMD's runtime, or `None` if this is another vendor's driver.
    fn as_hip(&self) -> Option<&HipBackend>;
}

impl MaybeHip for HipBackend {
    fn as_hip(&self) -> Option<&HipBackend> {
        Some(self)
    }
}

/// Elements of a region, a [`DeviceVec`] or a pool's block that work on a HIP stream reads: an argument of a kernel, or the source
/// of a copy.
///
/// A view borrows its owner: the memory cannot be unmapped, suspended or dropped while the view lives.
///
/// ```
/// # mod gpu_vmm { pub use gpu_vmm_core::*; pub use gpu_vmm_hip as hip; }
/// use gpu_vmm::{DeviceId, DeviceVec, Result, Stream};
/// use gpu_vmm::hip::{HipBackend, MemoryView, MemoryViewMut};
/// use std::ffi::c_void;
///
/// /// Launches a kernel with these arguments, for example with `hipModuleLaunchKernel`.
/// type Launch = unsafe fn(arguments: &mut [*mut c_void], stream: *mut c_void);
///
/// fn double(backend: &HipBackend, stream: Stream<'_>, launch: Launch) -> Result<()> {
///     let input = DeviceVec::from_slice(backend, DeviceId(0), &[1.0f32, 2.0, 3.0])?;
///     let mut output = DeviceVec::from_slice(backend, DeviceId(0), &[0.0f32; 3])?;
///     let from = MemoryView::of_vec(DeviceId(0), stream, &input)?;
///     let to = MemoryViewMut::of_vec(DeviceId(0), stream, &mut output)?;
///     // SAFETY: the kernel reads three numbers from the first argument, and writes three to the second.
///     unsafe { launch(&mut [from.argument(), to.argument()], stream.as_raw()) };
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0502
/// # use gpu_vmm_core::{Bytes, DeviceId, Region, Result, Stream, WaitFor};
/// # use gpu_vmm_hip::{HipBackend, MemoryView};
/// # fn example(stream: Stream<'_>, region: &mut Region<HipBackend>) -> Result<()> {
/// let view = MemoryView::<u32>::new(DeviceId(0), stream, region, Bytes(0), 1_000)?;
/// region.unmap(Bytes(0), Bytes::mib(2), WaitFor::all_devices())?; // the view borrows the region
/// println!("{:?}", view.as_ptr());
/// # Ok(())
/// # }
/// ```
///
/// # Order
///
/// Launches and copies return before the device has finished, so work can outlive its view.
///
/// - **Memory stays mapped as long as work uses it.** Calls that unmap memory of a region wait for all devices, unless the caller
///   promises otherwise (`unsafe` [`WaitFor::streams`](gpu_vmm_core::WaitFor::streams)). A block is reused in the order of its stream;
///   a view of a block is accepted only for that stream or for a stream whose use is recorded.
/// - **The caller orders work on several streams** (`hipStreamWaitEvent`), and [`Region::read`](gpu_vmm_core::Region::read), `write`
///   and `fill`, which do not wait for streams (`hipStreamSynchronize`). A pool's tag must not be suspended while its blocks have
///   views.
pub struct MemoryView<'a, T> {
    address: Address,
    count: usize,
    stream: Stream<'a>,
    owner: PhantomData<&'a [T]>,
}

/// Elements of a region, a [`DeviceVec`] or a pool's block that work on a HIP stream writes: an argument of a kernel, or the
/// destination of a copy.
///
/// It borrows its owner mutably and derefs to a [`MemoryView`], which documents the order of work.
#[derive(Debug)]
pub struct MemoryViewMut<'a, T>(MemoryView<'a, T>);

impl<'a, T: Pod> MemoryView<'a, T> {
    /// Creates a view of `count` elements from `offset` on, of a [`Region`](gpu_vmm_core::Region) or a pool's block, for work of
    /// `device` on `stream`. A null `stream` means `device`'s null stream.
    ///
    /// # Errors
    ///
    /// - [`Detail::Unsupported`] if the first element is not aligned, the element type has size zero, the memory is another
    ///   vendor's, the stream belongs to another device, or no wait of the owner covers the stream.
    /// - [`Detail::TooManyElements`] if the length overflows.
    /// - [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`] and [`Detail::Poisoned`] if the device cannot read all
    ///   elements.
    /// - [`Detail::NoSuchDevice`], and the error of a suspended owner.
    pub fn new<M>(
        device: DeviceId,
        stream: Stream<'a>,
        memory: &'a M,
        offset: Bytes,
        count: usize,
    ) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeHip>,
    {
        Self::with_access(Grant { device, access: Access::Read }, stream, memory, offset, count)
    }

    /// Creates a view of all elements of a vector, for work of `device` on `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryView::new`].
    pub fn of_vec<B>(device: DeviceId, stream: Stream<'a>, vec: &'a DeviceVec<T, B>) -> Result<Self>
    where
        B: MaybeHip,
    {
        Self::new(device, stream, vec.region(), Bytes::ZERO, vec.len())
    }

    /// Creates a view. The caller borrows the memory for `'a`, mutably if the access is to write.
    fn with_access<M>(
        grant: Grant,
        stream: Stream<'a>,
        memory: &M,
        offset: Bytes,
        count: usize,
    ) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeHip>,
    {
        let unsupported = |reason| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        let lender = memory.lender(OPERATION)?;
        let Some(backend) = lender.as_hip() else {
            return unsupported(format!(
                "the memory is of the {} backend, and the stream of hip's",
                lender.vendor()
            ));
        };
        backend.device(OPERATION, grant.device)?;
        let _current = backend.driver.on(OPERATION, grant.device)?;
        match backend.driver.device_of(OPERATION, stream)? {
            Some(device) if device != grant.device => {
                return unsupported(format!(
                    "the stream belongs to {device}, not to {}; pass {device}",
                    grant.device
                ));
            }
            _ => {}
        }
        let address = lend_elements::<T>(memory, OPERATION, offset, count, grant, stream)?;
        Ok(Self { address, count, stream, owner: PhantomData })
    }
}

impl<'a, T> MemoryView<'a, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the stream of the work.
    #[must_use]
    pub fn stream(&self) -> Stream<'a> {
        self.stream
    }

    /// Returns the address of the first element on the device.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        self.address.as_ptr()
    }

    /// Returns a pointer to the address, as `hipModuleLaunchKernel` and `hipLaunchKernel` take arguments. It is valid until the
    /// view is moved or dropped; HIP reads it before the launch returns.
    #[must_use]
    pub fn argument(&self) -> *mut c_void {
        from_ref(&self.address).cast_mut().cast()
    }
}

impl<'a, T: Pod> MemoryViewMut<'a, T> {
    /// Creates a view of `count` elements from `offset` on, of a [`Region`](gpu_vmm_core::Region) or a pool's block, for work of
    /// `device` on `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryView::new`], and [`Detail::NoAccess`] if the device cannot write all elements.
    pub fn new<M>(
        device: DeviceId,
        stream: Stream<'a>,
        memory: &'a mut M,
        offset: Bytes,
        count: usize,
    ) -> Result<Self>
    where
        M: LendMemory<Backend: MaybeHip>,
    {
        let grant = Grant { device, access: Access::ReadWrite };
        MemoryView::with_access(grant, stream, memory, offset, count).map(Self)
    }

    /// Creates a view of all elements of a vector, for work of `device` on `stream`.
    ///
    /// # Errors
    ///
    /// Those of [`MemoryViewMut::new`].
    pub fn of_vec<B>(device: DeviceId, stream: Stream<'a>, vec: &'a mut DeviceVec<T, B>) -> Result<Self>
    where
        B: MaybeHip,
    {
        let grant = Grant { device, access: Access::ReadWrite };
        MemoryView::with_access(grant, stream, vec.region(), Bytes::ZERO, vec.len()).map(Self)
    }
}

impl<T> MemoryViewMut<'_, T> {
    /// Returns the address of the first element on the device, for writing.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.0.address.as_ptr()
    }
}

impl<'a, T> Deref for MemoryViewMut<'a, T> {
    type Target = MemoryView<'a, T>;

    fn deref(&self) -> &MemoryView<'a, T> {
        &self.0
    }
}

impl<T> fmt::Debug for MemoryView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryView of {} x {} at {}", self.count, type_name::<T>(), self.address)
    }
}
