//! A typed vector in a device's memory that grows in place.

use crate::driver::{Backend, WaitFor};
use crate::memory::BackingStore;
use crate::region::{Region, RegionBuilder, Resumed, Suspended};
use crate::types::{Address, Bytes, Detail, DeviceId, Error, Operation, Result};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;

/// How much of a host buffer is used at a time to fill a part with one value.
const FILL_BUFFER: usize = 4 << 20;

/// A vector of plain values in a device's memory. Its elements stay where they are while it grows: pointers that a
/// kernel holds stay good, and no element is copied.
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

    /// An empty vector of `device`, with addresses for as much as the device has memory.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn new(backend: &B, device: DeviceId) -> Result<Self> {
        Self::build(Region::builder(backend).on(device))
    }

    /// Creates a vector of `device` with a copy of `values`, as [`DeviceVec::new`] and
    /// [`extend_from_slice`](DeviceVec::extend_from_slice) do.
    ///
    /// # Errors
    ///
    /// Those of the two.
    pub fn from_slice(backend: &B, device: DeviceId, values: &[T]) -> Result<Self> {
        let mut vec = Self::new(backend, device)?;
        vec.extend_from_slice(values)?;
        Ok(vec)
    }

    /// An empty vector on a region of the caller's making: so many addresses, at this place, with access for others.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn build(region: RegionBuilder<'_, B>) -> Result<Self> {
        Ok(Self { region: region.build()?, length: 0, may_move: false, element: PhantomData })
    }

    /// Lets the vector go to another address where it cannot grow at its own; every growth may then wait for the
    /// devices, and [`DeviceVec::as_device_ptr`] has to be asked again after it.
    #[must_use]
    pub fn movable(mut self) -> Self {
        self.may_move = true;
        self
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// True where there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many elements there is memory for: none while it is [suspended](DeviceVec::suspend).
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.region.end().to_usize().unwrap_or(usize::MAX) / Self::ELEMENT
    }

    /// Where the elements are, for kernels.
    #[must_use]
    pub fn as_device_ptr(&self) -> DevicePtr<T> {
        DevicePtr { address: self.region.address(), element: PhantomData }
    }

    /// The memory behind the vector.
    #[must_use]
    pub fn region(&self) -> &Region<B> {
        &self.region
    }

    /// Takes the memory out of the vector.
    #[must_use]
    pub fn into_region(self) -> Region<B> {
        self.region
    }

    /// Sees to memory for `additional` more elements.
    ///
    /// # Errors
    ///
    /// [`Detail::TooManyElements`], and those of [`Region::grow_to`]; the vector is as before.
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let operation = Operation::Grow;
        let count =
            self.length.checked_add(additional).ok_or_else(|| too_many::<T>(operation, usize::MAX))?;
        self.grow_to(Self::bytes(operation, count)?)
    }

    /// Adds one element at the end.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::extend_from_slice`].
    pub fn push(&mut self, value: T) -> Result<()> {
        self.extend_from_slice(std::slice::from_ref(&value))
    }

    /// Adds elements from the host at the end and waits until they are there.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceVec::reserve`] and [`Region::write`]; the vector is as long as before.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        self.reserve(values.len())?;
        self.region.write(Self::bytes(Operation::Extend, self.length)?, bytemuck::cast_slice(values))?;
        self.length += values.len();
        Ok(())
    }

    /// Makes the vector `length` elements long: cuts it, or adds elements of this value.
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

    /// Forgets the elements from `length` on; the memory stays. Does nothing to a shorter vector.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Gives the memory back that no element needs, in whole handles, after waiting as `done` says.
    ///
    /// # Errors
    ///
    /// Those of [`Region::shrink_to`]; the vector is as before.
    pub fn shrink_to_fit(&mut self, done: WaitFor<'_>) -> Result<()> {
        let needed = Self::bytes(Operation::Shrink, self.length)?;
        self.region.shrink_to(needed, done).map(drop)
    }

    /// Gives the vector's memory back and keeps its address: [`Region::suspend`]. It keeps its length.
    ///
    /// # Errors
    ///
    /// Those of [`Region::suspend`]; the vector is as before.
    pub fn suspend(&mut self, store: &BackingStore<B>, done: WaitFor<'_>) -> Result<Suspended> {
        self.region.suspend(store, done)
    }

    /// Brings the vector's memory and elements back, where its pointers say: [`Region::resume`].
    ///
    /// # Errors
    ///
    /// Those of [`Region::resume`]; the vector is still suspended.
    pub fn resume(&mut self) -> Result<Resumed> {
        self.region.resume()
    }

    /// Reads one element.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`], and those of [`Region::read`].
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.read(index, &mut value)?;
        Ok(value[0])
    }

    /// Reads as many elements as `values` has room for, from number `first` on.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`] beyond the last element, and those of [`Region::read`].
    pub fn read(&self, first: usize, values: &mut [T]) -> Result<()> {
        let offset = self.place(Operation::Read, first, values.len())?;
        self.region.read(offset, bytemuck::cast_slice_mut(values))
    }

    /// Overwrites elements from number `first` on.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchElement`] beyond the last element, and those of [`Region::write`].
    pub fn write(&mut self, first: usize, values: &[T]) -> Result<()> {
        let offset = self.place(Operation::Write, first, values.len())?;
        self.region.write(offset, bytemuck::cast_slice(values))
    }

    /// Reads all elements.
    ///
    /// # Errors
    ///
    /// Those of [`Region::read`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.length];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// Where `count` elements from number `first` on begin, if the vector has them.
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

    /// Grows by an eighth at least, so that many small additions take few steps; by just what is needed where that
    /// much is not to be had.
    fn grow_to(&mut self, needed: Bytes) -> Result<()> {
        let end = self.region.end();
        if needed <= end {
            return Ok(());
        }
        let generous = needed.max(Bytes(end.0 + end.0 / 8));
        let mut grow = |size| match self.may_move {
            true => self.region.grow_or_move(size, WaitFor::all_devices()),
            false => self.region.grow_to(size),
        };
        match grow(generous) {
            Err(error) if generous > needed && !matches!(error.detail(), Detail::RollbackFailed { .. }) => {
                grow(needed).map(drop)
            }
            answer => answer.map(drop),
        }
    }
}

fn too_many<T>(operation: Operation, count: usize) -> Error {
    Error::new(operation, Detail::TooManyElements { count, element: size_of::<T>() })
}

/// The address of values of type `T` in a device's memory, to be given to kernels. The host does not dereference it.
#[repr(transparent)]
pub struct DevicePtr<T> {
    address: Address,
    element: PhantomData<*mut T>,
}

impl<T> DevicePtr<T> {
    /// The address.
    #[must_use]
    pub const fn address(self) -> Address {
        self.address
    }

    /// The address as the pointer that HIP and C interfaces want.
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
