//! The system calls on addresses: reserving, mapping, protecting, giving back. The one module that changes what the
//! process has at an address.
#![allow(unsafe_code)]

use crate::device::page_size;
use gpu_vmm_core::extend::system::failed;
use gpu_vmm_core::{Access, Address, AddressRange, Alignment, Bytes, Granularity, Operation, Result};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

const RESERVE: Operation = Operation::Reserve;

/// With no right to read or write, addresses that cost no memory.
const RESERVED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Reserves addresses, at `hint` if that can be had.
pub(crate) fn reserve(size: Bytes, alignment: Alignment, hint: Option<Address>) -> Result<AddressRange> {
    let usable = hint.filter(|hint| hint.0 != 0 && hint.is_aligned_to(alignment.bytes()));
    match usable.and_then(|hint| reserve_at(hint, size)) {
        Some(range) => Ok(range),
        None => reserve_anywhere(size, alignment),
    }
}

/// Reserves just there. For whatever reason the kernel refuses, the hint was a wish and another place will do.
fn reserve_at(hint: Address, size: Bytes) -> Option<AddressRange> {
    let flags = RESERVED | MapFlags::FIXED_NOREPLACE;
    // SAFETY: FIXED_NOREPLACE leaves what is mapped there alone, and a kernel that does not know it (before 4.17)
    // takes the address as a wish.
    let base = unsafe { mmap_anonymous(hint.as_ptr(), length(size), ProtFlags::empty(), flags) }.ok()?;
    let range = AddressRange { base: address(base), size };
    if range.base == hint {
        return Some(range);
    }
    // SAFETY: the range was mapped just now and nobody else knows of it. Should this fail, addresses are lost and
    // nothing else.
    let _ = unsafe { release(RESERVE, range) };
    None
}

/// Reserves more than is needed, so that an aligned part is in it, and gives the rest back.
fn reserve_anywhere(size: Bytes, alignment: Alignment) -> Result<AddressRange> {
    let alignment = alignment.bytes();
    let slack = alignment - page_size();
    let padded = size + slack;
    // SAFETY: the kernel chooses addresses at which nothing is.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), length(padded), ProtFlags::empty(), RESERVED) }
        .map_err(|errno| failed(RESERVE, "mmap", errno, format!("{size} aligned to {alignment}")))?;
    let all = AddressRange { base: address(base), size: padded };
    let base = Address(all.base.0.next_multiple_of(alignment.0));
    let head = AddressRange { base: all.base, size: Bytes(base.0 - all.base.0) };
    let range = AddressRange { base, size };
    let tail = AddressRange { base: range.end(), size: slack - head.size };
    // Whatever is still there when a cut fails goes back as a whole.
    let from_base = AddressRange { base, size: size + tail.size };
    for (cut, rest) in [(head, all), (tail, from_base)] {
        if cut.size.is_zero() {
            continue;
        }
        // SAFETY: both ranges lie in what was mapped just now, of which nobody else knows, and all of the rest is
        // still there.
        unsafe {
            if let Err(error) = release(RESERVE, cut) {
                return Err(match release(RESERVE, rest) {
                    Ok(()) => error,
                    Err(undo) => error.rollback_failed(undo),
                });
            }
        }
    }
    Ok(range)
}

/// Whether the kernel gives an address that is asked for. Another thread may take it in between, so it is the lowest of
/// many that were free a moment ago, where the kernel begins at the highest; and one failure is none.
pub(crate) fn hint_is_kept(granularity: Granularity) -> Result<bool> {
    const ROOM: u64 = 64;
    let (size, alignment) = (granularity.bytes(), granularity.into());
    for _ in 0..8 {
        let free = reserve_anywhere(Bytes(size.0.saturating_mul(ROOM)), alignment)?;
        // SAFETY: reserved just now, here and below, and used by nobody.
        unsafe { release(RESERVE, free) }?;
        let again = reserve(size, alignment, Some(free.base))?;
        // SAFETY: as above.
        unsafe { release(RESERVE, again) }?;
        if again.base == free.base {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives addresses back to the process.
///
/// # Safety
///
/// The range belongs to the caller, who uses it no more.
pub(crate) unsafe fn release(operation: Operation, range: AddressRange) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { munmap(range.base.as_ptr(), length(range.size)) }
        .map_err(|errno| failed(operation, "munmap", errno, range))
}

/// Puts pages of a file at reserved addresses; nothing can be read or written yet.
///
/// # Safety
///
/// The range lies in a reservation of the caller's, and nothing is mapped there.
pub(crate) unsafe fn map(range: AddressRange, file: BorrowedFd<'_>, offset: u64) -> Result<()> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: what is replaced is a reserved range of the caller's, where nothing could be read or written.
    unsafe { mmap(range.base.as_ptr(), length(range.size), ProtFlags::empty(), flags, file, offset) }
        .map(|_| ())
        .map_err(|errno| failed(Operation::Map, "mmap", errno, range))
}

/// Takes the pages away; the addresses stay reserved.
///
/// In one call, so that no other thread can get the addresses in between. The kernel looks at the limit of mappings
/// before it takes anything away, so that a refusal leaves all as it was.
///
/// # Safety
///
/// The range lies in a reservation of the caller's, and nothing uses what is mapped there any more.
pub(crate) unsafe fn vacate(range: AddressRange) -> Result<()> {
    let flags = RESERVED | MapFlags::FIXED;
    // SAFETY: what is replaced is the caller's and is not used any more.
    unsafe { mmap_anonymous(range.base.as_ptr(), length(range.size), ProtFlags::empty(), flags) }
        .map(|_| ())
        .map_err(|errno| failed(Operation::Unmap, "mmap", errno, range))
}

/// Says what the CPU may do with mapped pages.
///
/// # Safety
///
/// The range is mapped memory of the caller's, and nothing uses it in a way that is not allowed any more.
pub(crate) unsafe fn protect(range: AddressRange, access: Access) -> Result<()> {
    let flags = match access {
        Access::None => MprotectFlags::empty(),
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: as the caller promises.
    unsafe { mprotect(range.base.as_ptr(), length(range.size), flags) }
        .map_err(|errno| failed(Operation::SetAccess, "mprotect", errno, range))
}

/// Plain memory, zeroed, for reading and writing.
pub(crate) fn allocate(size: Bytes) -> Result<AddressRange> {
    // SAFETY: the kernel chooses addresses at which nothing is.
    let base = unsafe {
        mmap_anonymous(ptr::null_mut(), length(size), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .map_err(|errno: Errno| failed(Operation::Allocate, "mmap", errno, size))?;
    Ok(AddressRange { base: address(base), size })
}

/// As many mappings as a page can have neighbours of another right: five in a row, to be [released](release) at once.
pub(crate) fn spare_mappings() -> Result<AddressRange> {
    let page = page_size();
    let size = Bytes(page.0 * 5);
    // SAFETY: the kernel chooses addresses at which nothing is.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), length(size), ProtFlags::READ, RESERVED) }
        .map_err(|errno| failed(Operation::Open, "mmap", errno, size))?;
    let range = AddressRange { base: address(base), size };
    for odd in [1, 3] {
        let one = AddressRange { base: range.base + Bytes(page.0 * odd), size: page };
        // SAFETY: a page of what was mapped just now, which nobody uses; here and below.
        if let Err(error) = unsafe { protect(one, Access::None) } {
            // SAFETY: as above.
            return Err(unsafe { release(Operation::Open, range) }.err().unwrap_or(error));
        }
    }
    Ok(range)
}

/// The crate is for 64-bit systems, where every size fits.
const fn length(size: Bytes) -> usize {
    size.0 as usize
}

/// The number of an address; exposed, since pointers are made from the number again.
fn address(pointer: *mut c_void) -> Address {
    Address(pointer.expose_provenance() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alignment(bytes: Bytes) -> Alignment {
        Alignment::new(bytes).unwrap()
    }

    #[test]
    fn every_alignment_is_had_and_nothing_is_left() {
        for bytes in (12..=46).map(|bit| Bytes(1 << bit)) {
            let range = reserve(Bytes::mib(2), alignment(bytes), None).unwrap();
            assert!(range.base.is_aligned_to(bytes), "{range} is not aligned to {bytes}");
            assert_eq!(range.size, Bytes::mib(2));
            // SAFETY: reserved above and used by nobody.
            unsafe { release(Operation::Allocate, range) }.unwrap();
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        for size in [Bytes(1 << 60), Bytes(u64::MAX - 0xfff)] {
            let error = reserve(size, alignment(Bytes::mib(2)), None).unwrap_err();
            assert_eq!(error.driver_error().unwrap().name, "ENOMEM", "{error}");
        }
    }
}
