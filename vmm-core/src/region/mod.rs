//! Regions: ranges of device addresses, the memory mapped into them, and every operation on them.

mod arrange;
mod banked;
mod below;
mod builder;
mod common;
mod contents;
mod copy;
mod data;
mod device_vec;
#[cfg(feature = "dlpack")]
pub mod dlpack;
#[cfg(unix)]
mod dma_buf;
mod evict;
mod fork;
mod grow;
mod guard;
mod index;
mod late;
mod layout;
mod lend;
mod map;
mod move_device;
mod observer;
mod placement;
mod plain;
mod reserve;
mod restorable;
mod settings;
mod sharing;
mod spans;
mod suspend;
mod suspension;
mod swap;
mod table;

pub use arrange::MappedMemory;
pub use banked::BankedRegion;
pub use builder::RegionBuilder;
pub use device_vec::{DevicePtr, DeviceVec};
#[cfg(unix)]
pub use dma_buf::DmaBuf;
pub use grow::{Growth, GrowthKind, Shrunk};
pub use lend::{LendMemory, lend_elements};
#[cfg(feature = "experimental-multicast")]
pub(crate) use map::check_inside;
pub use map::check_reach;
pub use move_device::{MovePath, Moved};
pub use observer::{BackingChange, BackingEffect, BackingObserver, BackingOutcome, ObserverId};
pub(crate) use placement::rounded;
pub use placement::{ADDRESS_SPACE, Placement};
#[cfg(feature = "experimental-multicast")]
pub(crate) use reserve::reserve;
pub use restorable::PORTABLE_UNIT;
pub use settings::RegionSettings;
pub use suspend::{RegionState, Resumed, Suspended};

use crate::driver::{Backend, WaitFor};
use crate::memory::{BlockOwner, PhysicalMemory};
use crate::types::{
    Access, AccessMap, Address, AddressRange, Alignment, Bytes, Detail, DeviceId, Error, ErrorKind,
    Granularity, OffsetRange, Operation, Properties, Result,
};
use builder::Growing;
#[cfg(any(feature = "dlpack", feature = "testkit"))]
pub(crate) use data::Accessor;
use layout::Layout;
use observer::Observers;
use std::sync::Weak;
use suspension::Suspension;
use table::Mapping;

/// A contiguous range of device addresses and the memory mapped into it.
///
/// A region owns its addresses and records each mapping with its access. Every call is checked against these records before it
/// reaches a driver; a call that fails has changed nothing. Offsets count from the region's [address](Region::address). One
/// region can hold memory of several devices, and one piece of memory can be mapped in several regions.
///
/// Dropping a region waits for the devices that have access to it, unmaps its memory and releases its addresses.
/// [`Region::close`] does the same and returns the error. If a device cannot be waited for because a stream is being captured,
/// the backend keeps the region's memory until the device can be waited for: see [`Deferred`](crate::extend::Deferred).
///
/// # Thread safety
///
/// Calls that take `&self` may run on several threads at the same time. A call that takes `&mut self` needs the region alone: threads
/// that share a region and change it have it in a lock, such as `Arc<Mutex<Region>>`. The lock is then held while the call waits for
/// devices, copies contents, and calls the region's [observers](Region::on_backing_change), which must not take the same lock.
///
/// Rust's borrows say nothing about the work of devices: every call that takes memory away takes a [`WaitFor`].
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, Region, Result};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let mut region = Region::builder(backend).reserve(Bytes::gib(1)).build()?;
/// let address = region.address();
/// region.grow_to(Bytes::mib(2))?;
/// region.write(Bytes(0), b"kept")?;
/// region.grow_to(Bytes::mib(64))?;
/// assert_eq!(region.address(), address);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Region<B: Backend> {
    backend: B,
    granularity: Granularity,
    alignment: Alignment,
    growing: Growing,
    /// The caller's name for the region; empty if none was set.
    tag: Box<str>,
    /// The data for the resume, in a suspended region. Nothing is mapped then.
    suspended: Option<Box<Suspension<B>>>,
    layout: Layout<B>,
    observers: Observers<B>,
}

/// One mapping of a region.
#[derive(Debug)]
pub struct MappingInfo<'a, B: Backend> {
    /// The offset in the region at which the mapping begins.
    pub offset: Bytes,
    /// The length of the mapping: the size of the memory, since handles are mapped whole.
    pub length: Bytes,
    /// The mapped memory.
    pub memory: &'a PhysicalMemory<B>,
    /// True if the state of the mapping is unknown, because an operation on it failed and so did the rollback. All further
    /// operations on it return [`Detail::Poisoned`].
    pub poisoned: bool,
}

impl<'a, B: Backend> MappingInfo<'a, B> {
    fn new(offset: Bytes, mapping: &'a Mapping<B>) -> Self {
        let (length, poisoned) = (mapping.length(), mapping.poisoned.is_some());
        Self { offset, length, memory: &mapping.memory, poisoned }
    }
}

impl<B: Backend> Region<B> {
    /// Returns the builder of a region on `backend`.
    pub fn builder(backend: &B) -> RegionBuilder<'_, B> {
        RegionBuilder::new(backend)
    }

    /// Returns the backend of the region.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the first address. Only a move to other addresses changes it: [`Region::grow_or_move`]. A [plain](Region::is_plain)
    /// region moves whenever it grows or shrinks, and has the address zero while it is empty.
    #[must_use]
    pub fn address(&self) -> Address {
        self.layout.spans.base()
    }

    /// Returns all addresses of the region, mapped or not.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange { base: self.address(), size: self.reserved() }
    }

    /// Returns the caller's name for the region, which selects regions to suspend and finds regions in snapshots. Empty if none
    /// was set.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Changes the caller's name for the region, for example to what the program needs to know about the contents of a snapshot.
    pub fn set_tag(&mut self, tag: impl Into<Box<str>>) {
        self.tag = tag.into();
        self.layout.record().set_tag(&self.tag);
    }

    /// Names the owner of the blocks in the region, which [`at`](crate::at) asks for the block at an address. For authors of
    /// allocators. The reference keeps nothing alive.
    pub fn set_block_owner(&mut self, owner: Weak<dyn BlockOwner>) {
        self.layout.record().set_owner(owner);
    }

    /// Returns the size of the region's address range.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        self.layout.spans.size()
    }

    /// Reports whether the region is [portable](RegionBuilder::portable). Every [restorable](Placement::Restorable) region is.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        self.growing.portable
    }

    /// Returns the number of bytes of addresses that are kept free before the region, and as many behind it. Zero if the region
    /// is not [guarded](RegionBuilder::guarded).
    #[must_use]
    pub fn guard(&self) -> Bytes {
        self.layout.spans.guard()
    }

    /// Returns the reservations of the region in order; each begins where the previous one ends. They do not include the guard,
    /// which is reserved with the region.
    pub fn reservations(&self) -> impl ExactSizeIterator<Item = AddressRange> {
        self.layout.spans.ranges()
    }

    /// Returns the offset at which the last mapping ends. Growth continues from there. Zero if nothing is mapped, as in a
    /// [suspended](Region::suspend) region.
    #[must_use]
    pub fn end(&self) -> Bytes {
        self.layout.table.end()
    }

    /// Returns the total length of all mappings: [`Region::end`] less the holes. Zero in a [suspended](Region::suspend) region.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        self.layout.table.mapped()
    }

    /// Returns the unit of every offset, size and address of the region: the largest granularity of the backend's devices.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The properties of the memory that growth creates.
    pub(crate) fn growing_memory(&self) -> Properties {
        self.growing.memory
    }

    /// The access of new mappings of a device's memory.
    pub(crate) fn growing_access(&self, device: DeviceId) -> AccessMap {
        self.growing.access_to(device)
    }

    /// Returns the mappings in order of their offsets. A [suspended](Region::suspend) region has none.
    pub fn mappings(&self) -> impl DoubleEndedIterator<Item = MappingInfo<'_, B>> {
        self.layout.table.iter().map(|(offset, mapping)| MappingInfo::new(offset, mapping))
    }

    /// Returns the mapping that contains an offset.
    #[inline]
    #[must_use]
    pub fn mapping_at(&self, offset: Bytes) -> Option<MappingInfo<'_, B>> {
        let table = &self.layout.table;
        let (OffsetRange { offset, length }, mapping) = table.find(offset)?;
        Some(MappingInfo { offset, length, memory: &mapping.memory, poisoned: table.is_out_of_use(mapping) })
    }

    /// Returns the access of `device` at an offset, from the region's own records. None if nothing is mapped there.
    #[must_use]
    pub fn access(&self, offset: Bytes, device: DeviceId) -> Access {
        self.layout.table.at(offset).map_or(Access::None, |(_, mapping)| mapping.access.get(device))
    }

    /// Waits, unmaps everything and releases the addresses, as dropping does, and returns the error.
    ///
    /// # Errors
    ///
    /// Those of waiting and of the driver. What could not be released stays until the process ends. After [`Detail::Capturing`]
    /// the backend [keeps](crate::extend::Deferred) the memory until it can be released.
    pub fn close(mut self, done: WaitFor<'_>) -> Result<()> {
        let closed = self.empty(done);
        if closed.as_ref().is_err_and(|error| matches!(error.detail(), Detail::Capturing { .. })) {
            // The destructor would wait again, which invalidates captures.
            self.defer();
        }
        closed
    }

    /// Removes every mapping that is not poisoned. Continues after an error and returns the first one.
    fn empty(&mut self, done: WaitFor<'_>) -> Result<()> {
        if self.layout.table.is_empty() {
            return Ok(());
        }
        self.announce_end();
        self.wait(&self.layout, Bytes::ZERO, self.reserved(), done)?;
        self.layout.poison_all();
        self.layout.clear()
    }

    /// Waits until no device uses a part any more.
    fn wait(&self, layout: &Layout<B>, offset: Bytes, length: Bytes, done: WaitFor<'_>) -> Result<()> {
        done.wait(&self.backend, || layout.table.devices(offset, length))
    }
}

impl<B: Backend> Drop for Region<B> {
    fn drop(&mut self) {
        match self.empty(WaitFor::all_devices()) {
            // In a forked child the mappings belong to the parent.
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => self.defer(),
            Err(error) => self.backend.drop_log().record(error),
        }
        self.observers.ended(&self.layout);
    }
}

/// Refuses a value that is not a multiple of the granularity.
pub(crate) fn check_aligned(
    operation: Operation,
    what: &'static str,
    value: u64,
    granularity: Granularity,
) -> Result<()> {
    if granularity.divides(Bytes(value)) {
        Ok(())
    } else {
        Err(Error::new(operation, Detail::Unaligned { what, value, granularity }))
    }
}
