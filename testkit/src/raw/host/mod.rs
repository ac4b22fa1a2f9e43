//! The raw calls on host memory: each becomes the corresponding method of the backend's traits. The host backend checks
//! its arguments and returns errors; for another backend on host memory, no call accesses memory that its device may not access.
//! Calls that the traits leave undefined or cannot express are not made: they end as
//! [`Missing`](crate::raw::Missing), with the reason.
//!
//! Errors become the codes that both vendors use for them.

mod calls;

use crate::raw::abi::{self, Code, Location};
use crate::raw::{Driver, ImportBy, missing};
use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{Access, Address, Bytes, Detail, DeviceId, Error, Pinned, Reservation, Vendor};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) struct Host<B: TestKit> {
    backend: B,
    /// The current device.
    current: AtomicU32,
    books: Mutex<Books<B>>,
}

/// The objects behind the numbers that were returned.
struct Books<B: TestKit> {
    reservations: BTreeMap<u64, B::Reservation>,
    handles: BTreeMap<u64, B::Handle>,
    /// The mappings: base address and length.
    mappings: BTreeMap<u64, usize>,
    plain: BTreeMap<u64, Bytes>,
    pinned: BTreeMap<usize, Box<dyn Pinned>>,
    last_handle: u64,
}

/// Returns the code for an error.
fn code(error: &Error) -> Code {
    const REFUSED: [i32; 3] = [libc::EINVAL, libc::EFAULT, libc::EACCES];
    match error.detail() {
        Detail::OutOfMemory { .. } | Detail::OutOfAddresses { .. } => Code::OUT_OF_MEMORY,
        Detail::NoSuchDevice { .. } => Code::INVALID_DEVICE,
        Detail::Unsupported { .. } => Code::NOT_SUPPORTED,
        Detail::Forked => Code::NOT_INITIALIZED,
        Detail::Driver { source, .. } if source.code == i64::from(libc::ENOMEM) => Code::OUT_OF_MEMORY,
        Detail::Driver { source, .. } if REFUSED.iter().any(|errno| source.code == i64::from(*errno)) => {
            Code::INVALID_VALUE
        }
        _ => Code::UNKNOWN,
    }
}

/// Ends a call that the traits do not have, or leave undefined.
fn excluded(why: &str) -> ! {
    missing(format!("the backend's traits exclude it: {why}"))
}

/// Ends a call of the device on memory that it may not access, unless the backend reports such calls.
fn check_access<B: TestKit>(host: &Host<B>, at: u64, length: usize, need: Access) {
    if host.backend.reports_faults() || host.can_access_all(at, length as u64, need) {
        return;
    }
    excluded("a device accesses only memory that it may access")
}

fn device(location: Location) -> DeviceId {
    match (location.kind, u32::try_from(location.id)) {
        (abi::DEVICE, Ok(ordinal)) => DeviceId(ordinal),
        (abi::DEVICE, Err(_)) => excluded("a device's number is not negative"),
        _ => excluded("a place is a device"),
    }
}

impl<B: TestKit> Host<B> {
    pub(crate) fn new(backend: B, device: DeviceId) -> Self {
        let books = Books {
            reservations: BTreeMap::new(),
            handles: BTreeMap::new(),
            mappings: BTreeMap::new(),
            plain: BTreeMap::new(),
            pinned: BTreeMap::new(),
            last_handle: 0,
        };
        Self { backend, current: AtomicU32::new(device.0), books: Mutex::new(books) }
    }

    fn books(&self) -> MutexGuard<'_, Books<B>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> DeviceId {
        DeviceId(self.current.load(Ordering::Relaxed))
    }

    /// Returns true if mappings or a plain allocation cover the range, and the current device has `need` access to all of it.
    fn can_access_all(&self, at: u64, length: u64, need: Access) -> bool {
        let mut books = self.books();
        let books = &mut *books;
        let Some(end) = at.checked_add(length) else { return false };
        let mut next = at;
        while next < end {
            if let Some((base, size)) = books.plain.range(..=next).next_back()
                && next < base + size.0
            {
                next = base + size.0;
                continue;
            }
            let Some((base, size)) = books.mappings.range(..=next).next_back() else { return false };
            let behind = base + *size as u64;
            if next >= behind {
                return false;
            }
            let (reservation, offset) = self::at::<B>(&mut books.reservations, *base);
            // SAFETY: memory is mapped there, and the current device exists.
            match unsafe { reservation.access(offset, self.current()) } {
                Ok(Access::ReadWrite) => next = behind,
                Ok(Access::Read) if need == Access::Read => next = behind,
                _ => return false,
            }
        }
        true
    }

    /// Returns a size that the traits allow.
    fn whole(&self, size: u64) -> Bytes {
        if size == 0 || !self.backend.granularity().divides(Bytes(size)) {
            excluded("sizes are multiples of the granularity and not zero");
        }
        Bytes(size)
    }

    fn known(&self, location: Location) -> DeviceId {
        let device = device(location);
        if device.0 as usize >= self.backend.devices().len() {
            excluded("every device that is named exists");
        }
        device
    }
}

/// Returns the reservation of an address, and the offset in it.
fn at<B: TestKit>(
    reservations: &mut BTreeMap<u64, B::Reservation>,
    address: u64,
) -> (&mut B::Reservation, Bytes) {
    match reservations.range_mut(..=address).next_back() {
        Some((base, reservation)) if reservation.range().contains(Address(address)) => {
            (reservation, Bytes(address - base))
        }
        _ => excluded("mapping is a reservation's own method"),
    }
}

impl<B: TestKit> Books<B> {
    fn handle(&self, handle: u64) -> &B::Handle {
        self.handles.get(&handle).unwrap_or_else(|| excluded("a handle is a value, and released once"))
    }

    /// Returns the base addresses of the mappings that begin in a range.
    fn mapped(&self, address: u64, size: usize) -> impl Iterator<Item = u64> {
        self.mappings.range(address..address.saturating_add(size as u64)).map(|(base, _)| *base)
    }

    /// Returns true if nothing is mapped in a range of one reservation.
    fn is_free(&self, address: u64, size: usize) -> bool {
        let before = self.mappings.range(..=address).next_back();
        let overlaps = before.is_some_and(|(base, length)| base + *length as u64 > address);
        !overlaps && self.mapped(address, size).next().is_none() && self.is_inside(address, size)
    }

    /// Returns true if the range is one or several adjacent whole mappings of one reservation.
    fn is_whole(&self, address: u64, size: usize) -> bool {
        let end = address.saturating_add(size as u64);
        let mut next = address;
        while next < end
            && let Some(length) = self.mappings.get(&next)
        {
            next += *length as u64;
        }
        next == end && size > 0 && self.is_inside(address, size)
    }

    fn is_inside(&self, address: u64, size: usize) -> bool {
        let found = self.reservations.range(..=address).next_back();
        found.is_some_and(|(_, reservation)| {
            reservation.range().end().0 >= address.saturating_add(size as u64)
        })
    }

    fn keep(&mut self, handle: B::Handle) -> u64 {
        self.last_handle += 1;
        self.handles.insert(self.last_handle, handle);
        self.last_handle
    }
}

impl<B: TestKit> Driver for Host<B> {
    fn vendor(&self) -> Vendor {
        Vendor::Host
    }

    fn make_current(&self, device: i32) -> Code {
        match u32::try_from(device) {
            Ok(device) if (device as usize) < self.backend.devices().len() => {
                self.current.store(device, Ordering::Relaxed);
                Code::SUCCESS
            }
            _ => Code::INVALID_DEVICE,
        }
    }

    fn import_by(&self) -> ImportBy {
        ImportBy::Value
    }

    fn enable_peer(&self, _: i32) -> Code {
        excluded("a plain allocation is its own device's")
    }

    unsafe fn copy_peer(&self, _: u64, _: i32, _: u64, _: i32, _: usize) -> Code {
        excluded("a plain allocation is its own device's")
    }

    fn name(&self, code: Code) -> String {
        let name = match code {
            Code::INVALID_VALUE => "an invalid value",
            Code::OUT_OF_MEMORY => "out of memory",
            Code::NOT_INITIALIZED => "a forked process",
            Code::INVALID_DEVICE => "no such device",
            Code::NOT_SUPPORTED => "not supported",
            _ => "another error",
        };
        name.to_owned()
    }
}
