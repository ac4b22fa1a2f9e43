//! A typed vector in device memory that grows in place.

use crate::driver::{Backend, WaitFor};
use crate::memory::BackingStore;
use crate::region::{BackingObserver, ObserverId, Region, RegionBuilder, Resumed, Suspended};
use crate::types::{Address, Bytes, Detail, DeviceId, Error, Operation, Result};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;

/// The maximum size of the host buffer that fills a part with one value.
const FILL_BUFFER: usize = 4 << 20;

/// A vector of plain values in device memory. Its elements keep their addresses while it grows: pointers that kernels hold stay
/// valid, and no element is copied. Only on a device without virtual memory management it moves whenever it grows
/// ([`Region::is_plain`]).
///
/// ```
/// # use gpu_vmm_core::{Backend, DeviceId, DeviceVec, Result};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let mut numbers = DeviceVec::<u32, B>::new(backend, DeviceId(0))?;
/// numbers.extend_from_slice(&[1, 2, 3])?;
/// let pointer = numbers.as_device_ptr();
/// numbers.resize(1_000_000, 7)?;
/// assert_eq!(numbers.as_device_ptr(), pointer);
/// assert_eq!(numbers.get(999_999)?, 7);
/// # Ok(())
/// # }
/// ```
///
/// # Thread safety
///
/// As for a [`Region`]: calls that take `&self` may run at the same time, and threads that share a vector and change it have it in a
/// lock.
#[derive(Debug)]
pub struct DeviceVec<T: Pod, B: Backend> {
    region: Region<B>,
    length: usize,
    may_move: bool,
    element: PhantomData<T>,
}

impl<T: Pod, B: Backend> DeviceVec<T, B> {
    const ELEMENT: usize = {
        assert!(size_of::<T>() > 0, "an element must have a size");
        size_of::<T>()
    };

    /// Creates an empty vector on `device`, with addresses for as many bytes as the device has memory.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn new(backend: &B, device: DeviceId) -> Result<Self> {
        Self::build(Region::builder(backend).on(device))
    }

    /// Creates a vector on `device` with a copy of `values`, as [`DeviceVec::new`] and
    /// [`extend_from_slice`](DeviceVec::extend_from_slice) do.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::new`] and [`extend_from_slice`](DeviceVec::extend_from_slice).
    pub fn from_slice(backend: &B, device: DeviceId, values: &[T]) -> Result<Self> {
        let mut vec = Self::new(backend, device)?;
        vec.extend_from_slice(values)?;
        Ok(vec)
    }

    /// Creates an empty vector on a region of the builder, with its addresses, placement and access.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn build(region: RegionBuilder<'_, B>) -> Result<Self> {
        Ok(Self { region: region.build()?, length: 0, may_move: false, element: PhantomData })
    }

    /// Allows the vector to move to another address if it cannot grow in place. Every growth may then wait for the devices, and
    /// the caller must call [`DeviceVec::as_device_ptr`] again after it.
    #[must_use]
    pub fn movable(mut self) -> Self {
        self.may_move = true;
        self
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Reports whether the vector has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of elements for which memory is mapped: zero while the vector is [suspended](DeviceVec::suspend).
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.region.end().to_usize().unwrap_or(usize::MAX) / Self::ELEMENT
    }

    /// Returns the address of the elements, for kernels.
    #[must_use]
    pub fn as_device_ptr(&self) -> DevicePtr<T> {
        DevicePtr { address: self.region.address(), element: PhantomData }
    }

    /// Returns the region that holds the elements.
    #[must_use]
    pub fn region(&self) -> &Region<B> {
        &self.region
    }

    /// Adds an observer of the vector's memory as [`Region::on_backing_change`] does.
    pub fn on_backing_change(&mut self, observer: impl BackingObserver) -> ObserverId {
        self.region.on_backing_change(observer)
    }

    /// Removes an observer as [`Region::remove_observer`] does.
    pub fn remove_observer(&mut self, id: ObserverId) -> bool {
        self.region.remove_observer(id)
    }

    /// Returns the region and drops the rest of the vector.
    #[must_use]
    pub fn into_region(self) -> Region<B> {
        self.region
    }

    /// Maps memory for at least `additional` more elements.
    ///
    /// # Errors
    ///
    /// [`Detail::TooManyElements`], and the errors of [`Region::grow_to`]. The vector is as before.
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let operation = Operation::Grow;
        let count =
            self.length.checked_add(additional).ok_or_else(|| too_many::<T>(operation, usize::MAX))?;
        self.grow_to(Self::bytes(operation, count)?)
    }

    /// Appends one element.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::extend_from_slice`].
    pub fn push(&mut self, value: T) -> Result<()> {
        self.extend_from_slice(std::slice::from_ref(&value))
    }

    /// Appends elements from the host and waits until they are there.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::reserve`] and [`Region::write`]. The vector has the same length as before.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        self.reserve(values.len())?;
        self.region.write(Self::bytes(Operation::Extend, self.length)?, bytemuck::cast_slice(values))?;
        self.length += values.len();
        Ok(())
    }

    /// Changes the length of the vector: truncates it, or appends elements of this value.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::extend_from_slice`].
    pub fn resize(&mut self, length: usize, value: T) -> Result<()> {
        if length <= self.length {
            self.truncate(length);
            return Ok(());
        }
        self.reserve(length - self.length)?;
        let from = Self::bytes(Operation::Resize, self.length)?;
        let bytes = bytemuck::bytes_of(&value);
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            self.region.fill(from, Self::bytes(Operation::Resize, length)? - from, bytes[0])?;
        } else {
            let buffer = vec![value; (FILL_BUFFER / Self::ELEMENT).clamp(1, length - self.length)];
            let mut done = self.length;
            while done < length {
                let count = buffer.len().min(length - done);
                self.region
                    .write(Self::bytes(Operation::Resize, done)?, bytemuck::cast_slice(&buffer[..count]))?;
                done += count;
            }
        }
        self.length = length;
        Ok(())
    }

    /// Drops the elements from `length` on and keeps the memory. Does nothing to a shorter vector.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Releases memory that no element needs, in whole handles, after waiting as `done` says.
    ///
    /// # Errors
    ///
    /// Those of [`Region::shrink_to`]. The vector is as before.
    pub fn shrink_to_fit(&mut self, done: WaitFor<'_>) -> Result<()> {
        let needed = Self::bytes(Operation::Shrink, self.length)?;
        self.region.shrink_to(needed, done).map(drop)
    }

    /// Releases the vector's memory and keeps its address and its length, as [`Region::suspend`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`]. The vector is as before.
    pub fn suspend(&mut self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.region.suspend(store, done)
    }

    /// Restores the vector's memory and elements at the same address, as [`Region::resume`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]. The vector is still suspended.
    pub fn resume(&mut self) -> Result<Resumed> {
        self.region.resume()
    }

    /// Reads one element.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`], and the errors of [`Region::read`].
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.read(index, &mut value)?;
        Ok(value[0])
    }

    /// Reads `values.len()` elements, beginning with element `first`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`] for an element behind the last, and the errors of [`Region::read`].
    pub fn read(&self, first: usize, values: &mut [T]) -> Result<()> {
        let offset = self.place(Operation::Read, first, values.len())?;
        self.region.read(offset, bytemuck::cast_slice_mut(values))
    }

    /// Overwrites `values.len()` elements, beginning with element `first`.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`] for an element behind the last, and the errors of [`Region::write`].
    pub fn write(&mut self, first: usize, values: &[T]) -> Result<()> {
        let offset = self.place(Operation::Write, first, values.len())?;
        self.region.write(offset, bytemuck::cast_slice(values))
    }

    /// Copies all elements to the host and returns them.
    ///
    /// # Errors
    ///
    /// Those of [`Region::read`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.length];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// The offset of `count` existing elements, beginning with element `first`.
    fn place(&self, operation: Operation, first: usize, count: usize) -> Result<Bytes> {
        let end = first.checked_add(count).ok_or_else(|| too_many::<T>(operation, count))?;
        if end > self.length {
            return Err(Error::new(operation, Detail::NoSuchElement { index: end - 1, length: self.length }));
        }
        Self::bytes(operation, first)
    }

    fn bytes(operation: Operation, count: usize) -> Result<Bytes> {
        Bytes::of::<T>(count).ok_or_else(|| too_many::<T>(operation, count))
    }

    /// Grows by at least an eighth, so that many small additions take few steps, or by half if each step copies all elements. If that
    /// fails, grows only to the needed size.
    fn grow_to(&mut self, needed: Bytes) -> Result<()> {
        let end = self.region.end();
        if needed <= end {
            return Ok(());
        }
        let generous = needed.max(Bytes(end.0 + end.0 / if self.region.is_plain() { 2 } else { 8 }));
        let mut grow = |size| match self.may_move {
            true => self.region.grow_or_move(size, WaitFor::all_devices()),
            false => self.region.grow_to(size),
        };
        match grow(generous) {
            // An observer that refuses the move is not called a second time.
            Err(error)
                if generous > needed
                    && !matches!(error.detail(), Detail::RollbackFailed { .. } | Detail::Vetoed { .. }) =>
            {
                grow(needed).map(drop)
            }
            answer => answer.map(drop),
        }
    }
}

fn too_many<T>(operation: Operation, count: usize) -> Error {
    Error::new(operation, Detail::TooManyElements { count, element: size_of::<T>() })
}

/// The device address of values of type `T`, for kernels. The host cannot dereference it.
#[repr(transparent)]
pub struct DevicePtr<T> {
    address: Address,
    element: PhantomData<*mut T>,
}

impl<T> DevicePtr<T> {
    /// Returns the address.
    #[must_use]
    pub const fn address(self) -> Address {
        self.address
    }

    /// Returns the address as a raw pointer, for HIP and C interfaces.
    #[must_use]
    pub fn as_raw(self) -> *mut T {
        self.address.as_ptr()
    }
}

impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> PartialEq for DevicePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePtr<T> {}

impl<T> fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr<{}>({})", std::any::type_name::<T>(), self.address)
    }
}
