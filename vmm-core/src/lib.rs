//! The vendor-neutral core of [gpu-vmm](https://docs.rs/gpu-vmm): regions, physical memory, errors, and the traits that a backend
//! implements.
//!
//! # Backends
//!
//! [`Backend`] is a loaded driver, [`Handle`] a piece of its physical memory, [`Reservation`] a range of its addresses. A backend
//! implements these three traits and contains only its vendor's differences. Their methods are unsafe because a wrong
//! argument is undefined behavior in some driver. Only this crate calls them.
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`PhysicalMemory`] | physical memory without an address; its clones share it |
//! | [`PageList`] | free physical memory in pages of one size, with a budget |
//! | [`Region`] | a contiguous range of device addresses and the memory mapped into it |
//! | [`DeviceVec`] | a typed vector on a region |
//! | [`BankedRegion`] | one address range and several banks of memory, of which one is mapped at a time |
//! | [`BackingObserver`] | code that is called before and after the memory behind an address changes |
//! | [`BackingStore`] | the store for the contents of suspended regions |
//! | [`StagingRing`] | page-locked buffers for copies through host memory, allocated in advance |
//! | [`Event`] | a point in the work of a stream, and whether the device has reached it |
//! | [`WaitFor`] | the work that must finish before memory is unmapped |
//! | [`Error`] | a failed operation, with the numbers and the driver's own message |
//!
//! # The same address
//!
//! The memory behind an address can be exchanged while the address stays the same: [`Region::swap`], [`BankedRegion::select`],
//! [`Region::move_to_device`] ([`MovePath`]), [`Region::suspend`] and [`Region::resume`] ([`RegionState`] reports which of the
//! two came last). [`Placement::Restorable`] chooses addresses that another process can reserve too. [`RegionBuilder::guarded`]
//! keeps addresses free around a region and fills its memory with [`POISON`] before it is freed.
//!
//! # Rules
//!
//! - **gpu-vmm keeps its own records.** No decision depends on a driver's record. A wrong call never reaches a driver: it returns
//!   an error and changes nothing.
//! - **The strictest rule of all drivers applies.** A handle is mapped as a whole. Mappings are unmapped and protected as wholes.
//!   No driver call crosses the border of two reservations or sets access over a hole.
//! - **Each operation is a transaction.** If a driver call fails, everything is as before. If the rollback fails too, the part is
//!   poisoned: every later operation on it returns [`Detail::Poisoned`].
//! - **Address hints are advisory.** For exact placement, gpu-vmm compares the returned address, releases a mismatch and reports
//!   it.
//! - **Unmapping waits first.** A driver's unmap does not reliably wait for work that still uses the memory.
//! - **A forked child makes no driver call.** Every call returns an error there, and dropping a value does nothing.
//!
//! # Features
//!
//! - `dlpack`: the module `dlpack` exports parts of a region as tensors for other libraries.
//! - `experimental-multicast`: the module `multicast`, an extension for what only one vendor has.
//! - `testkit`: the module `testkit`, for tests and benchmarks.
//! - `tracing`: spans for the crate of that name.
//! - `profiler`: ranges for NVIDIA's profilers by NVTX and AMD's by rocTX, and the blocks of pools of plain allocations
//!   for compute-sanitizer.
//!
//! # Tracing
//!
//! With the feature `tracing`, every operation that changes mappings or creates, exports or imports memory opens a span for the
//! crate `tracing`, at the level `DEBUG` and under the target `gpu_vmm_core`. The span has the name of the [`Operation`], such as
//! `grow` or `suspend`, and the sizes and addresses as fields. It begins when the arguments have been checked, so a refused call
//! and a call that has nothing to do open none. With the feature `profiler`, the same operations are ranges for profilers.
//!
//! [`extend`] has the further types that authors of backends and of extensions need.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod driver;
pub mod extend;
mod memory;
#[cfg(feature = "experimental-multicast")]
pub mod multicast;
mod region;
#[cfg(feature = "testkit")]
pub mod testkit;
mod trace;
mod types;

pub use driver::{
    Backend, CopyCalls, CopyStream, Event, Handle, MemoryCalls, Pinned, Reservation, Stream, SyncCalls,
    WaitFor,
};
pub use memory::{
    AddressInfo, BackingKind, BackingStore, BlockAt, MappingAt, MemoryId, POISON, PageList, PageListStats,
    PhysicalMemory, StagingRing, SupportedMemory, at, first_supported,
};
#[cfg(unix)]
pub use region::DmaBuf;
#[cfg(feature = "dlpack")]
pub use region::dlpack;
pub use region::{
    BackingChange, BackingEffect, BackingObserver, BackingOutcome, BankedRegion, DevicePtr, DeviceVec,
    Growth, GrowthKind, MappingInfo, MovePath, Moved, ObserverId, Placement, Region, RegionBuilder,
    RegionState, Resumed, Shrunk, Suspended,
};
pub use types::{
    Access, AccessMap, Address, AddressRange, Alignment, BankId, Bytes, Capability, ComputeMode, Detail,
    Device, DeviceId, DeviceUuid, DriverError, DriverInfo, Error, ErrorKind, Evidence, FabricHandle, Feature,
    Grant, Granularity, HandleTypes, LoadAttempt, Location, MemoryInfo, MemoryKind, OffsetRange, Operation,
    ParseBytesError, Properties, Quirk, Result, Vendor,
};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
