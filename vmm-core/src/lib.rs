//! The vendor-neutral core of [gpu-vmm](https://docs.rs/gpu-vmm): what all drivers have in common, written once.
//!
//! # The seam
//!
//! [`Backend`] is a loaded driver, [`Handle`] a piece of its physical memory, [`Reservation`] a range of its addresses. A
//! backend implements these three with what its vendor does differently and no more. Their calls are unsafe, since a
//! wrong argument is undefined in some driver; nobody but this crate has to make them.
//!
//! # What a user holds
//!
//! | type | what it is |
//! |---|---|
//! | [`PhysicalMemory`] | physical memory without an address, shared by its clones |
//! | [`Region`] | a range of addresses with what is mapped in it: map, set access, grow, shrink, read, write |
//! | [`DeviceVec`] | a typed vector on a region |
//! | [`BankedRegion`] | one address for several sets of memory, of which one is shown at a time |
//! | [`BackingStore`] | where the contents of suspended regions are kept |
//! | [`StagingRing`] | page-locked buffers through which contents go, made ahead |
//! | [`Event`] | a place in the work of a stream, and whether a device has come to it |
//! | [`WaitFor`] | how it is known that no device uses memory any more that is about to be taken away |
//! | [`Error`] | what went wrong, with the numbers and the driver's own words |
//!
//! # The same address
//!
//! What is behind an address can be changed, and the address stays: [`Region::swap`], [`BankedRegion::select`],
//! [`Region::move_to_device`] ([`MovePath`]), [`Region::suspend`] and [`Region::resume`] ([`RegionState`] tells which).
//! [`Placement::Restorable`] chooses addresses that another process can have too, and [`RegionBuilder::guarded`] keeps
//! addresses free around a region and fills memory that is freed with [`POISON`].
//!
//! # The rules
//!
//! - **The books are kept here.** No decision rests on a driver's record. A wrong call never reaches a driver: it is an
//!   error, and nothing has changed.
//! - **The strictest rule that all drivers keep.** Handles are mapped whole; mappings are removed and protected whole; no
//!   call crosses the border of two reservations; no access is set over a hole.
//! - **Each operation is a transaction.** Where a driver call fails, everything is as before. Where undoing fails as
//!   well, the part is out of use, and says so.
//! - **A hint is a wish.** The answer is compared with what was asked, and given back where it had to be exact.
//! - **Taking away waits.** No driver's unmap can be relied on to wait for work that still uses the memory.
//! - **A forked child touches nothing**: every call is an error there, and dropping does nothing.
//!
//! Parts of a region go to other libraries as tensors by `dlpack`, with the feature of that name.
//!
//! [`extend`] has what authors of backends and of extensions need besides.
//!
//! What one vendor alone has is an extension beside the seam: `multicast`, with the feature `experimental-multicast`.
//!
//! `testkit`, with the feature of that name, is what tests and benchmarks need beside virtual memory.

mod driver;
pub mod extend;
mod memory;
#[cfg(feature = "experimental-multicast")]
pub mod multicast;
mod region;
#[cfg(feature = "testkit")]
pub mod testkit;
mod types;

pub use driver::{
    Backend, CopyCalls, CopyStream, Event, Handle, MemoryCalls, Pinned, Reservation, Stream, SyncCalls,
    WaitFor,
};
pub use memory::{BackingKind, BackingStore, POISON, PhysicalMemory, StagingRing};
#[cfg(unix)]
pub use region::DmaBuf;
#[cfg(feature = "dlpack")]
pub use region::dlpack;
pub use region::{
    BankedRegion, DevicePtr, DeviceVec, Growth, GrowthKind, MappingInfo, MovePath, Moved, Placement, Region,
    RegionBuilder, RegionState, Resumed, Shrunk, Suspended,
};
pub use types::{
    Access, AccessMap, Address, AddressRange, Alignment, BankId, Bytes, Capability, Detail, Device, DeviceId,
    DeviceUuid, DriverError, DriverInfo, Error, ErrorKind, Evidence, FabricHandle, Feature, Grant,
    Granularity, HandleTypes, LoadAttempt, Location, MemoryInfo, MemoryKind, OffsetRange, Operation,
    ParseBytesError, Properties, Quirk, Result, Vendor,
};
