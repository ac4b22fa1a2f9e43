//! A range of addresses as its user sees it, with what is mapped in it.
//!
//! | file | subject |
//! |---|---|
//! | `builder` | how a region comes to be: how many addresses, where |
//! | `placement`, `reserve` | where addresses are to be, and reserving them there |
//! | `restorable` | addresses that other processes can have as well |
//! | `guard` | addresses before and behind a region that stay empty |
//! | `spans` | one reservation, or several that follow each other; the seams between them |
//! | `table` | the books: what is mapped where with which access |
//! | `index` | which granule belongs to which mapping |
//! | `late` | a region that was dropped while its devices could not be waited for |
//! | `layout` | place, remove and protect as transactions over spans and table |
//! | `map` | map, unmap, set access: a user's single operations and their checks |
//! | `grow` | growth in place, by extension, by remapping; shrinking |
//! | `arrange` | a whole set of mappings at once, as another process has them |
//! | `swap` | two regions exchange what is behind their addresses |
//! | `move_device` | another device's memory behind the same addresses |
//! | `sharing` | memory that somebody else has as well |
//! | `settings` | what a region is, and a region made again from that |
//! | `data` | reading, writing and filling through the devices |
//! | `contents` | the bytes of physical memory without a region of the caller's |
//! | `copy` | copying from region to region |
//! | `lend` | parts that another library's types point at |
//! | `dma_buf` | the descriptors that network cards are given |
//! | `suspend` | giving memory back and keeping the addresses |
//! | `suspension` | what a suspended region keeps |
//! | `evict` | what that asks of the layout |
//! | `banked` | one address range with several sets of memory, one of which is mapped |
//! | `device_vec` | a typed vector on a region |
//! | `dlpack` | parts of regions as tensors of other libraries |

mod arrange;
mod banked;
mod builder;
mod contents;
mod copy;
mod data;
mod device_vec;
#[cfg(feature = "dlpack")]
pub mod dlpack;
#[cfg(unix)]
mod dma_buf;
mod evict;
mod grow;
mod guard;
mod index;
mod late;
mod layout;
mod lend;
mod map;
mod move_device;
mod placement;
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
pub use lend::LendMemory;
#[cfg(feature = "experimental-multicast")]
pub(crate) use map::check_inside;
pub use map::check_reach;
pub use move_device::{MovePath, Moved};
pub(crate) use placement::rounded;
pub use placement::{ADDRESS_SPACE, Placement};
#[cfg(feature = "experimental-multicast")]
pub(crate) use reserve::reserve;
pub use settings::RegionSettings;
pub use suspend::{RegionState, Resumed, Suspended};

use crate::driver::{Backend, WaitFor};
use crate::memory::PhysicalMemory;
use crate::types::{
    Access, AccessMap, Address, AddressRange, Alignment, Bytes, Detail, DeviceId, Error, ErrorKind,
    Granularity, OffsetRange, Operation, Properties, Result,
};
use builder::Growing;
#[cfg(any(feature = "dlpack", feature = "testkit"))]
pub(crate) use data::By;
use layout::Layout;
use suspension::Suspension;
use table::Mapping;

/// A range of addresses with physical memory mapped in it.
///
/// A region owns its addresses and knows what is mapped where, with which access; every call is checked against that
/// before a driver hears of it, and fails without having changed anything. Offsets count from the region's
/// [address](Region::address). Memory of several devices can lie in one region, one piece can lie in several regions.
///
/// Dropping a region waits for the devices that have access to it, unmaps and gives everything back. [`Region::close`]
/// does the same and tells what went wrong. If a device cannot be waited for because a stream is being captured, the
/// backend keeps the region's memory until it can: see [`Deferred`](crate::extend::Deferred).
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
    /// What the user calls it; empty where nothing was said.
    tag: Box<str>,
    /// What it needs to come back; then nothing is mapped.
    suspended: Option<Box<Suspension<B>>>,
    layout: Layout<B>,
}

/// One mapping of a region.
#[derive(Debug)]
pub struct MappingInfo<'a, B: Backend> {
    /// Where it begins in the region.
    pub offset: Bytes,
    /// How long it is: the size of the memory, since handles are mapped whole.
    pub length: Bytes,
    /// The memory behind it.
    pub memory: &'a PhysicalMemory<B>,
    /// True where nobody can vouch for it any more: an operation failed on it, and so did undoing that. All further ones
    /// are refused ([`Detail::Poisoned`]).
    pub poisoned: bool,
}

impl<'a, B: Backend> MappingInfo<'a, B> {
    fn new(offset: Bytes, mapping: &'a Mapping<B>) -> Self {
        let (length, poisoned) = (mapping.length(), mapping.poisoned.is_some());
        Self { offset, length, memory: &mapping.memory, poisoned }
    }
}

impl<B: Backend> Region<B> {
    /// A region that is to be made on `backend`.
    pub fn builder(backend: &B) -> RegionBuilder<'_, B> {
        RegionBuilder::new(backend)
    }

    /// The backend that the region is on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The first address. It changes in [`Region::grow_or_move`] and nowhere else.
    #[must_use]
    pub fn address(&self) -> Address {
        self.layout.spans.base()
    }

    /// All addresses, mapped or not.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange { base: self.address(), size: self.reserved() }
    }

    /// What the region belongs to, by the user's own name: regions are suspended and found again in snapshots by it.
    /// Empty where nothing was said.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// How many bytes of addresses the region has.
    #[must_use]
    pub fn reserved(&self) -> Bytes {
        self.layout.spans.size()
    }

    /// True where the region is [portable](RegionBuilder::portable), or [restorable](Placement::Restorable), which is more.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        self.growing.elsewhere == Placement::Restorable
    }

    /// How many addresses before the region's first, and behind its last, are kept free of everything; zero where the
    /// region is not [guarded](RegionBuilder::guarded).
    #[must_use]
    pub fn guard(&self) -> Bytes {
        self.layout.spans.guard()
    }

    /// The reservations that the region is made of, in order; each begins where the last one ends. The guard of a region
    /// is reserved with it and not told of here.
    pub fn reservations(&self) -> impl ExactSizeIterator<Item = AddressRange> {
        self.layout.spans.ranges()
    }

    /// Where the last mapping ends; zero where nothing is mapped, as in a [suspended](Region::suspend) region. Growth goes
    /// on from here.
    #[must_use]
    pub fn end(&self) -> Bytes {
        self.layout.table.end()
    }

    /// The bytes of all mappings together: [`Region::end`] less the holes. Zero in a [suspended](Region::suspend) region.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        self.layout.table.mapped()
    }

    /// What every offset, size and address here is a multiple of: the largest granularity of the backend's devices.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// What memory growth brings.
    pub(crate) fn growing_memory(&self) -> Properties {
        self.growing.memory
    }

    /// The access that memory of a device is mapped with where the region grows with it.
    pub(crate) fn growing_access(&self, device: DeviceId) -> AccessMap {
        self.growing.access_to(device)
    }

    /// The mappings in order; a [suspended](Region::suspend) region has none.
    pub fn mappings(&self) -> impl DoubleEndedIterator<Item = MappingInfo<'_, B>> {
        self.layout.table.iter().map(|(offset, mapping)| MappingInfo::new(offset, mapping))
    }

    /// The mapping that holds an offset.
    #[inline]
    #[must_use]
    pub fn mapping_at(&self, offset: Bytes) -> Option<MappingInfo<'_, B>> {
        let table = &self.layout.table;
        let (OffsetRange { offset, length }, mapping) = table.find(offset)?;
        Some(MappingInfo { offset, length, memory: &mapping.memory, poisoned: table.is_out_of_use(mapping) })
    }

    /// What `device` may do at an offset; none where nothing is mapped. From the region's own books.
    #[must_use]
    pub fn access(&self, offset: Bytes, device: DeviceId) -> Access {
        self.layout.table.at(offset).map_or(Access::None, |(_, mapping)| mapping.access.get(device))
    }

    /// Waits, unmaps everything and gives the addresses back; what dropping does, with the errors.
    ///
    /// # Errors
    ///
    /// What waiting or unmapping answers; what could not be given back is left to the end of the process. After
    /// [`Detail::Capturing`] the backend [keeps](crate::extend::Deferred) the memory until it can be given back.
    pub fn close(mut self, done: WaitFor<'_>) -> Result<()> {
        let closed = self.empty(done);
        if closed.as_ref().is_err_and(|error| matches!(error.detail(), Detail::Capturing { .. })) {
            // The destructor would try to wait once more, which spoils captures.
            self.defer();
        }
        closed
    }

    /// Removes every mapping that can be vouched for. The first error is returned, the rest is gone on with.
    fn empty(&mut self, done: WaitFor<'_>) -> Result<()> {
        if self.layout.table.is_empty() {
            return Ok(());
        }
        self.wait(&self.layout, Bytes::ZERO, self.reserved(), done)?;
        self.layout.poison_all();
        self.layout.clear()
    }

    /// Sees to it that no device uses a part any more.
    fn wait(&self, layout: &Layout<B>, offset: Bytes, length: Bytes, done: WaitFor<'_>) -> Result<()> {
        done.wait(&self.backend, || layout.table.devices(offset, length))
    }
}

impl<B: Backend> Drop for Region<B> {
    fn drop(&mut self) {
        match self.empty(WaitFor::all_devices()) {
            // In a forked child all of it is the parent's.
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => self.defer(),
            Err(error) => self.backend.drop_log().record(error),
        }
    }
}

/// Refuses what is no multiple of the granularity.
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
