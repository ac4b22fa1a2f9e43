//! Address ranges and their mappings: `cuMemAddressReserve`, `cuMemMap`, `cuMemUnmap`.
//!
//! Calls go straight to the driver and take no lock or allocation first.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::driver::Opened;
use crate::error::answer;
use crate::ffi::CuResult;
use crate::handle::CudaHandle;
use crate::host::HostMappings;
use crate::memory_types::owner;
use crate::quirks;
use gpu_vmm_core::extend::out_of_addresses;
use gpu_vmm_core::{
    Access, Address, AddressRange, Alignment, Bytes, Detail, DeviceId, Error, Grant, Handle, Operation,
    Reservation, Result,
};
use std::sync::Arc;

const OPERATION: Operation = Operation::Reserve;

/// A range of addresses that all devices and the host share.
///
/// Dropping it frees the addresses. In a forked child dropping does nothing.
#[derive(Debug)]
pub struct CudaReservation {
    pub(crate) backend: Arc<Opened>,
    range: AddressRange,
    pub(crate) host: HostMappings,
}

/// The most reservations that are placed elsewhere and kept until the driver honours the hint: quirk `kept-addresses-first`.
const MOST_MISPLACED: usize = 64;

impl CudaReservation {
    /// Reserves addresses, at the hint if they are free.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::reserve`](gpu_vmm_core::MemoryCalls::reserve).
    pub(crate) unsafe fn new(
        backend: &Arc<Opened>,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<Self> {
        backend.here(OPERATION)?;
        let hint = quirks::hint(hint, cfg!(windows));
        // SAFETY: the caller upholds the same contract.
        let reserve = || unsafe { Self::reserve(backend, size, alignment, hint) };
        let mut reservation = reserve()?;
        if hint.0 == 0 || reservation.range.base == hint || !is_free(AddressRange { base: hint, size }) {
            return Ok(reservation);
        }
        let mut misplaced = Vec::new();
        while reservation.range.base != hint && misplaced.len() < MOST_MISPLACED {
            misplaced.push(reservation);
            reservation = reserve()?;
        }
        Ok(reservation)
    }

    /// Reserves addresses where the driver places them.
    ///
    /// # Safety
    ///
    /// As [`MemoryCalls::reserve`](gpu_vmm_core::MemoryCalls::reserve).
    pub(crate) unsafe fn reserve(
        backend: &Arc<Opened>,
        size: Bytes,
        alignment: Alignment,
        hint: Address,
    ) -> Result<Self> {
        let mut base = 0;
        // SAFETY: the pointer is valid for one address; the numbers are right by the caller's promise.
        let result = unsafe {
            (backend.functions().mem_address_reserve)(
                &raw mut base,
                size.0 as usize,
                alignment.bytes().0 as usize,
                hint.0,
                0,
            )
        };
        if result == CuResult::OUT_OF_MEMORY {
            let source = answer(backend.functions(), "cuMemAddressReserve", result);
            return Err(out_of_addresses(OPERATION, size, source));
        }
        backend.check(OPERATION, "cuMemAddressReserve", result, || {
            format!("{size} of addresses, aligned to {}, hint {hint}", alignment.bytes())
        })?;
        let range = AddressRange { base: Address(base), size };
        let reservation = Self { backend: Arc::clone(backend), range, host: HostMappings::default() };
        if reservation.range.base.is_aligned_to(alignment.bytes()) {
            return Ok(reservation);
        }
        let what = format!(
            "it returned the address {base:#x}, which is not aligned to the requested {}",
            alignment.bytes()
        );
        Err(Error::new(OPERATION, Detail::DriverContractViolated { what }))
    }

    pub(crate) fn part(&self, offset: Bytes, size: Bytes) -> AddressRange {
        AddressRange { base: self.range.base + offset, size }
    }
}

// SAFETY: the range is reserved and freed only by dropping; a failed call returns an error and leaves the mappings as they were.
unsafe impl Reservation for CudaReservation {
    type Handle = CudaHandle;

    fn range(&self) -> AddressRange {
        self.range
    }

    unsafe fn map(&mut self, offset: Bytes, handle: &CudaHandle) -> Result<()> {
        const OPERATION: Operation = Operation::Map;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, handle.size());
        // SAFETY: the part lies in the reservation and is free, and the handle is the driver's, by the caller's promise; the offset
        // in the handle must be zero and is.
        let result = unsafe {
            (self.backend.functions().mem_map)(part.base.0, part.size.0 as usize, 0, handle.raw, 0)
        };
        let owner = owner(&handle.properties());
        self.backend.check_memory_at(OPERATION, "cuMemMap", result, owner, part)?;
        self.host.mapped(offset, handle);
        Ok(())
    }

    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        const OPERATION: Operation = Operation::Unmap;
        self.backend.here(OPERATION)?;
        let part = self.part(offset, length);
        // SAFETY: the part is whole mappings that no work uses any more, by the caller's promise.
        let result = unsafe { (self.backend.functions().mem_unmap)(part.base.0, part.size.0 as usize) };
        self.backend.check(OPERATION, "cuMemUnmap", result, || part.to_string())?;
        self.host.unmapped(offset, length);
        Ok(())
    }

    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.grant(offset, length, grants) }
    }

    unsafe fn access(&self, offset: Bytes, device: DeviceId) -> Result<Access> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.granted(offset, device) }
    }

    unsafe fn return_memory(&mut self) -> Result<()> {
        Ok(())
    }

    fn regain(&mut self) -> Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    unsafe fn dma_buf(&self, owner: DeviceId, offset: Bytes, length: Bytes) -> Result<std::os::fd::OwnedFd> {
        self.export_dma_buf(owner, self.part(offset, length))
    }
}

impl Drop for CudaReservation {
    fn drop(&mut self) {
        if self.backend.here(Operation::FreeReservation).is_err() {
            return;
        }
        let AddressRange { base, size } = self.range;
        // SAFETY: the call that reserved had this base and size, and the range is freed only here.
        let result = unsafe { (self.backend.functions().mem_address_free)(base.0, size.0 as usize) };
        self.backend.log(Operation::FreeReservation, "cuMemAddressFree", result, || self.range.to_string());
    }
}

/// Returns true if nothing of this process is at some addresses: the driver maps inaccessible pages at all addresses that it has reserved.
#[cfg(target_os = "linux")]
fn is_free(range: AddressRange) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let size = range.size.0 as usize;
    // SAFETY: the flags forbid replacing an existing mapping, and the new one is unused. A kernel before 4.17 ignores
    // MAP_FIXED_NOREPLACE and may map elsewhere.
    unsafe {
        let at = libc::mmap(range.base.as_ptr(), size, libc::PROT_NONE, flags, -1, 0);
        if at != libc::MAP_FAILED {
            libc::munmap(at, size);
        }
        at == range.base.as_ptr()
    }
}

/// Elsewhere, the driver's answer stands.
#[cfg(not(target_os = "linux"))]
fn is_free(_: AddressRange) -> bool {
    false
}
