//! The raw calls, on the backend's traits.

use super::{Host, at, check_access, code, device, excluded};
use crate::raw::abi::{self, AccessDesc, Code, Location, Prop};
use crate::raw::{Calls, missing};
use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{
    Access, Address, Alignment, Bytes, Detail, DeviceId, Error, Grant, Granularity, Handle, Operation,
    Properties, Reservation,
};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};

fn answer(result: gpu_vmm_core::Result<()>) -> Code {
    result.map_or_else(|error| code(&error), |()| Code::SUCCESS)
}

/// Ends a call of a feature that the backend does not have, and returns the code of any other error.
fn code_or_missing(error: &Error) -> Code {
    match error.detail() {
        Detail::Unsupported { reason } => missing(reason),
        _ => code(error),
    }
}

const WHOLE: &str = "a range is one or several adjacent whole mappings in one reservation";

/// # Safety
///
/// `pointer` is null, or valid for a write of `T`.
unsafe fn writable<'a, T>(pointer: *mut T) -> &'a mut T {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.unwrap_or_else(|| excluded("no argument is a pointer that can be null"))
}

/// # Safety
///
/// `pointer` is null, or valid for a read of `T`.
unsafe fn readable<'a, T>(pointer: *const T) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.unwrap_or_else(|| excluded("no argument is a pointer that can be null"))
}

fn no_flags(flags: u64) {
    if flags != 0 {
        excluded("there are no flags");
    }
}

// In the SAFETY comments below, "checked" refers to the checks just before the call, and "refused" to what the host
// backend documents that it refuses, whatever its caller promises.
impl<B: TestKit> Calls for Host<B> {
    unsafe fn address_reserve(
        &self,
        address: *mut u64,
        size: usize,
        alignment: usize,
        hint: u64,
        flags: u64,
    ) -> Code {
        no_flags(flags);
        // SAFETY: the promise of `Calls`.
        let address = unsafe { writable(address) };
        let unit = self.backend.granularity();
        let alignment = match alignment as u64 {
            0 => Alignment::from(unit),
            alignment => Alignment::new(Bytes(alignment))
                .unwrap_or_else(|| excluded("an alignment is a power of two by its type")),
        };
        let alignment = if alignment.bytes() < unit.bytes() { Alignment::from(unit) } else { alignment };
        if !unit.divides(Bytes(hint)) {
            excluded("a hint is a multiple of the granularity");
        }
        let hint = (hint != 0).then_some(Address(hint));
        // SAFETY: checked.
        match unsafe { self.backend.reserve(self.whole(size as u64), alignment, hint) } {
            Ok(reservation) => {
                *address = reservation.range().base.0;
                self.books().reservations.insert(*address, reservation);
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn address_free(&self, address: u64, size: usize) -> Code {
        let mut books = self.books();
        let Some(reservation) = books.reservations.get(&address) else {
            excluded("a reservation is a value, dropped once")
        };
        if reservation.range().size.0 != size as u64 {
            excluded("a reservation is freed as a whole, by being dropped");
        }
        if books.mapped(address, size).next().is_some() {
            excluded("a reservation with something mapped is not dropped");
        }
        let reservation = books.reservations.remove(&address);
        drop((reservation, books));
        self.backend.drop_log().take_last().map_or(Code::SUCCESS, |error| code(&error))
    }

    unsafe fn create(&self, handle: *mut u64, size: usize, prop: *const Prop, flags: u64) -> Code {
        no_flags(flags);
        // SAFETY: the promise of `Calls`.
        let (handle, prop) = (unsafe { writable(handle) }, unsafe { readable(prop) });
        let properties = Properties::on(device(prop.location));
        let properties = match (prop.kind, prop.handle_types) {
            (abi::PINNED, abi::NO_HANDLE) => properties,
            (abi::PINNED, abi::DESCRIPTOR) => properties.shareable(),
            _ => excluded("memory is pinned, and shared by a descriptor or not at all"),
        };
        // SAFETY: checked; a device that does not exist is refused.
        match unsafe { self.backend.create(self.whole(size as u64), &properties) } {
            Ok(created) => {
                *handle = self.books().keep(created);
                Code::SUCCESS
            }
            Err(error) => code_or_missing(&error),
        }
    }

    unsafe fn release(&self, handle: u64) -> Code {
        match self.books().handles.remove(&handle) {
            Some(_released) => Code::SUCCESS,
            None => excluded("a handle is a value, and released once"),
        }
    }

    unsafe fn map(&self, address: u64, size: usize, offset: usize, handle: u64, flags: u64) -> Code {
        no_flags(flags);
        let books = &mut *self.books();
        let number = handle;
        let Some(handle) = books.handles.get(&number) else { excluded("a handle is a value") };
        if handle.size().0 != size as u64 || offset != 0 {
            excluded("whole handles are mapped");
        }
        if !self.backend.reports_faults()
            && (!self.backend.granularity().divides(Bytes(address)) || !books.is_free(address, size))
        {
            excluded("memory is mapped where the granularity allows it, and nothing else is mapped");
        }
        let handle = &books.handles[&number];
        let (reservation, into) = at::<B>(&mut books.reservations, address);
        // SAFETY: the handle is this backend's; a range that does not fit or is already mapped is refused.
        let mapped = unsafe { reservation.map(into, handle) };
        if mapped.is_ok() {
            books.mappings.insert(address, size);
        }
        answer(mapped)
    }

    unsafe fn unmap(&self, address: u64, size: usize) -> Code {
        let books = &mut *self.books();
        let inside: Vec<u64> = books.mapped(address, size).collect();
        if inside.len() > 1 && !self.backend.unmaps_runs() {
            excluded("this backend unmaps one mapping a call");
        }
        if !self.backend.reports_faults() && !books.is_whole(address, size) {
            excluded(WHOLE);
        }
        let (reservation, offset) = at::<B>(&mut books.reservations, address);
        // SAFETY: no work uses the memory, because calls finish their work before they return; partial mappings are
        // refused.
        let unmapped = unsafe { reservation.unmap(offset, Bytes(size as u64)) };
        if unmapped.is_ok() {
            for base in &inside {
                books.mappings.remove(base);
            }
        }
        answer(unmapped)
    }

    unsafe fn set_access(&self, address: u64, size: usize, descs: *const AccessDesc, count: usize) -> Code {
        if count == 0 || descs.is_null() {
            excluded("a list of grants is a slice; an empty one changes nothing");
        }
        // SAFETY: the promise of `Calls`.
        let descs = unsafe { std::slice::from_raw_parts(descs, count) };
        let grant = |desc: &AccessDesc| {
            let access = match desc.flags {
                abi::NONE => Access::None,
                abi::READ => Access::Read,
                abi::RW => Access::ReadWrite,
                _ => excluded("an access is none, read, or read and write by its type"),
            };
            Grant { device: self.known(desc.location), access }
        };
        let grants: Vec<Grant> = descs.iter().map(grant).collect();
        let mut books = self.books();
        if !self.backend.reports_faults() && !books.is_whole(address, size) {
            excluded(WHOLE);
        }
        let (reservation, offset) = at::<B>(&mut books.reservations, address);
        // SAFETY: the devices exist and can access each other's memory; partial mappings are refused.
        answer(unsafe { reservation.set_access(offset, Bytes(size as u64), &grants) })
    }

    unsafe fn get_access(&self, flags: *mut u64, location: *const Location, address: u64) -> Code {
        // SAFETY: the promise of `Calls`.
        let (flags, location) = (unsafe { writable(flags) }, unsafe { readable(location) });
        let device = self.known(*location);
        let mut books = self.books();
        let (reservation, offset) = at::<B>(&mut books.reservations, address);
        // SAFETY: the device exists; an unmapped address is refused.
        match unsafe { reservation.access(offset, device) } {
            Ok(access) => {
                *flags = match access {
                    Access::None => abi::NONE,
                    Access::Read => abi::READ,
                    Access::ReadWrite => abi::RW,
                } as u64;
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn granularity(&self, granularity: *mut usize, prop: *const Prop, option: i32) -> Code {
        // SAFETY: the promise of `Calls`.
        let (granularity, prop) = (unsafe { writable(granularity) }, unsafe { readable(prop) });
        if ![abi::MINIMUM, abi::RECOMMENDED].contains(&option) || prop.kind != abi::PINNED {
            excluded("a device has one granularity");
        }
        match self.backend.device(Operation::QueryGranularity, device(prop.location)) {
            Ok(found) => {
                *granularity = Granularity::bytes(found.granularity).0 as usize;
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn properties(&self, prop: *mut Prop, handle: u64) -> Code {
        // SAFETY: the promise of `Calls`.
        let (prop, books) = (unsafe { writable(prop) }, self.books());
        let found = books.handle(handle).properties();
        prop.kind = abi::PINNED;
        prop.handle_types = if found.is_shareable() { abi::DESCRIPTOR } else { abi::NO_HANDLE };
        prop.location = Location { kind: abi::DEVICE, id: found.device.0 as i32 };
        Code::SUCCESS
    }

    unsafe fn export(&self, shareable: *mut c_void, handle: u64, kind: i32, flags: u64) -> Code {
        no_flags(flags);
        if kind != abi::DESCRIPTOR {
            excluded("memory is shared by a descriptor");
        }
        // SAFETY: the promise of `Calls`.
        let out = unsafe { writable(shareable.cast::<i32>()) };
        match self.books().handle(handle).export() {
            Ok(fd) => {
                *out = fd.into_raw_fd();
                Code::SUCCESS
            }
            // As a driver reports it: the memory was not created for this handle type.
            Err(error) if matches!(error.detail(), Detail::Unsupported { .. }) => Code::INVALID_VALUE,
            Err(error) => code(&error),
        }
    }

    /// The importer must know the memory's size: it is the size of the exported file, or the granularity if that is
    /// more.
    unsafe fn import(&self, handle: *mut u64, shareable: *mut c_void, _kind: i32) -> Code {
        // SAFETY: the promise of `Calls`.
        let handle = unsafe { writable(handle) };
        let fd = shareable as i32;
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the function writes one structure and refuses invalid descriptors.
        if unsafe { libc::fstat(fd, &raw mut status) } != 0 {
            excluded("a descriptor is open by its type");
        }
        let least = self.backend.granularity().bytes();
        let size = Bytes(status.st_size.unsigned_abs()).max(least);
        let properties = Properties::on(self.current()).shareable();
        // SAFETY: the descriptor is open, as was just checked, and borrowed for the length of this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: the exported file has this size; other descriptors are refused.
        match unsafe { self.backend.import(fd, size, &properties) } {
            Ok(imported) => {
                *handle = self.books().keep(imported);
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn memory_info(&self, free: *mut usize, total: *mut usize) -> Code {
        // SAFETY: the promise of `Calls`.
        let (free, total) = (unsafe { writable(free) }, unsafe { writable(total) });
        match self.backend.memory_info(self.current()) {
            Ok(info) => {
                (*free, *total) = (info.free.0 as usize, info.total.0 as usize);
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn allocate(&self, address: *mut u64, size: usize) -> Code {
        // SAFETY: the promise of `Calls`.
        let address = unsafe { writable(address) };
        match self.backend.allocate_plain(self.current(), Bytes(size as u64)) {
            Ok(at) => {
                *address = at.0;
                self.books().plain.insert(at.0, Bytes(size as u64));
                Code::SUCCESS
            }
            Err(error) => code_or_missing(&error),
        }
    }

    unsafe fn free(&self, address: u64) -> Code {
        let size = self.books().plain.remove(&address).unwrap_or_else(|| self.backend.granularity().bytes());
        // SAFETY: an address that is not a plain allocation of this size is refused.
        answer(unsafe { self.backend.free_plain(self.current(), Address(address), size) })
    }

    unsafe fn copy_from_host(&self, to: u64, from: *const c_void, length: usize) -> Code {
        // SAFETY: the promise of `Calls`.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
        check_access(self, to, length, Access::ReadWrite);
        // SAFETY: memory that the device may not write is refused.
        answer(unsafe { self.backend.copy_from_host(self.current(), Address(to), from) })
    }

    unsafe fn copy_to_host(&self, to: *mut c_void, from: u64, length: usize) -> Code {
        // SAFETY: the promise of `Calls`.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        check_access(self, from, length, Access::Read);
        // SAFETY: memory that the device may not read is refused.
        answer(unsafe { self.backend.copy_to_host(self.current(), to, Address(from)) })
    }

    unsafe fn copy_on_device(&self, to: u64, from: u64, length: usize) -> Code {
        if to.abs_diff(from) < length as u64 {
            excluded("what is copied does not overlap");
        }
        check_access(self, to, length, Access::ReadWrite);
        check_access(self, from, length, Access::Read);
        let length = Bytes(length as u64);
        // SAFETY: checked; memory that the device may not read or write is refused.
        answer(unsafe { self.backend.copy(self.current(), Address(to), Address(from), length) })
    }

    unsafe fn host_allocate(&self, pointer: *mut *mut c_void, size: usize, flags: u32) -> Code {
        if ![0, abi::PORTABLE].contains(&flags) {
            excluded("memory of the host is every device's");
        }
        // SAFETY: the promise of `Calls`.
        let pointer = unsafe { writable(pointer) };
        match self.backend.pin(Bytes(size as u64)) {
            Ok(pinned) => {
                *pointer = pinned.start().as_ptr().cast();
                self.books().pinned.insert(pointer.addr(), pinned);
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }

    unsafe fn host_free(&self, pointer: *mut c_void) -> Code {
        match self.books().pinned.remove(&pointer.addr()) {
            Some(_freed) => Code::SUCCESS,
            None => excluded("memory of the host is a value, and given back once"),
        }
    }

    unsafe fn set(&self, at: u64, value: u8, length: usize) -> Code {
        check_access(self, at, length, Access::ReadWrite);
        // SAFETY: memory that the device may not write is refused.
        answer(unsafe { self.backend.fill(self.current(), Address(at), Bytes(length as u64), value) })
    }

    unsafe fn synchronize(&self) -> Code {
        answer(self.backend.synchronize(self.current()))
    }

    unsafe fn device_count(&self, count: *mut i32) -> Code {
        // SAFETY: the promise of `Calls`.
        *unsafe { writable(count) } = self.backend.devices().len() as i32;
        Code::SUCCESS
    }

    unsafe fn can_access(&self, can: *mut i32, device: i32, peer: i32) -> Code {
        match self.backend.can_access(DeviceId(device as u32), DeviceId(peer as u32)) {
            Ok(reachable) => {
                // SAFETY: the promise of `Calls`.
                *unsafe { writable(can) } = i32::from(reachable);
                Code::SUCCESS
            }
            Err(error) => code(&error),
        }
    }
}
