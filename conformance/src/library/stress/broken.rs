//! A host backend with one fault, to show that the model detects it.
#![allow(unsafe_code)] // passes a backend's calls on

use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, CopyCalls, DeviceId, Grant, Handle,
    MemoryCalls, Reservation, Result, Stream, SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostHandle, HostReservation};
use gpu_vmm_testkit::{TestKit, Walked, WorkStream};
use std::os::fd::OwnedFd;

/// The fault of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No fault.
    None,
    /// A call that sets read-only access returns success without doing it.
    ReadOnlyForgotten,
    /// Memory is mapped one granule behind its offset, unless it is at the region's start.
    MappedTooFar,
    /// A fill omits the first byte.
    FillTooShort,
    /// A pattern continues with another seed's pattern from the second granule on.
    PatternGoesWrong,
    /// An unmap of more than one granule returns success without doing it.
    LargeUnmapForgotten,
}

#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) host: HostBackend,
    pub(super) fault: Fault,
}

#[derive(Debug)]
pub(super) struct BrokenReservation {
    host: HostReservation,
    granule: Bytes,
    fault: Fault,
}

// SAFETY: every call is passed to the host backend; only deliberate faults differ.
unsafe impl Backend for Broken {
    forward!(host: Backend);
}

// SAFETY: as above.
unsafe impl MemoryCalls for Broken {
    type Handle = HostHandle;

    type Reservation = BrokenReservation;

    forward!(host: create, import, import_fabric, adopt, allocate_plain, free_plain);

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<BrokenReservation> {
        // SAFETY: the caller's guarantees are passed on, as in every function below.
        let host = unsafe { self.host.reserve(size, alignment, hint) }?;
        Ok(BrokenReservation { host, granule: self.granularity().bytes(), fault: self.fault })
    }
}

// SAFETY: as above.
unsafe impl CopyCalls for Broken {
    forward!(host: copy_from_host, copy_to_host, copy, pin, copy_stream);

    unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        let short = if self.fault == Fault::FillTooShort { Bytes(1) } else { Bytes(0) };
        // SAFETY: as in `reserve`; the range is inside of the requested one.
        unsafe { self.host.fill(device, at + short, length - short, value) }
    }
}

// SAFETY: as above.
unsafe impl SyncCalls for Broken {
    forward!(host: SyncCalls);
}

impl TestKit for Broken {
    fn pattern_by(&self) -> &'static str {
        self.host.pattern_by()
    }

    fn reports_faults(&self) -> bool {
        self.host.reports_faults()
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        let right = if self.fault == Fault::PatternGoesWrong { self.granularity().bytes() } else { length };
        let right = right.min(length);
        // SAFETY: as in `reserve`; both parts together are the requested range.
        unsafe {
            self.host.write_pattern(device, at, right, seed)?;
            self.host.write_pattern(device, at + right, length - right, seed)
        }
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.count_wrong(device, at, length, seed) }
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.walk_list(device, head, most) }
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        self.host.own_stream(device)
    }

    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.start_pattern_on(device, stream, at, length, seed, rounds) }
    }
}

// SAFETY: every call is passed to the host backend; only deliberate faults differ.
unsafe impl Reservation for BrokenReservation {
    type Handle = HostHandle;

    fn range(&self) -> AddressRange {
        self.host.range()
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &HostHandle) -> Result<()> {
        let room = offset + self.granule + handle.size() <= self.range().size;
        let wrong = self.fault == Fault::MappedTooFar && offset.0 > 0 && room;
        let offset = if wrong { offset + self.granule } else { offset };
        // SAFETY: as in `reserve`; the host backend refuses a range that is already mapped.
        unsafe { self.host.map(offset, handle) }
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        if self.fault == Fault::LargeUnmapForgotten && length > self.granule {
            return Ok(());
        }
        // SAFETY: as in `reserve`.
        unsafe { self.host.unmap(offset, length) }
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        if self.fault == Fault::ReadOnlyForgotten && grants.iter().all(|grant| grant.access == Access::Read) {
            return Ok(());
        }
        // SAFETY: as in `reserve`.
        unsafe { self.host.set_access(offset, length, grants) }
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.access(offset, device) }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.return_memory() }
    }

    fn regain(&mut self) -> Result<()> {
        self.host.regain()
    }

    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<OwnedFd> {
        // SAFETY: as in `reserve`.
        unsafe { self.host.dma_buf(owner, offset, length) }
    }
}
