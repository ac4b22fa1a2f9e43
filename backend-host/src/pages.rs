//! The system calls on addresses: reserving, mapping, protecting, releasing. No other module changes the process's mappings.
#![allow(unsafe_code)]

use crate::device::page_size;
use gpu_vmm_core::extend::system::{failed, reservation_failed};
use gpu_vmm_core::{Access, Address, AddressRange, Alignment, Bytes, Granularity, Operation, Result};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

const RESERVE: Operation = Operation::Reserve;

/// Inaccessible address ranges that cost no memory.
const RESERVED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Reserves addresses, at `hint` if possible.
pub(crate) fn reserve(size: Bytes, alignment: Alignment, hint: Option<Address>) -> Result<AddressRange> {
    let usable = hint.filter(|hint| hint.0 != 0 && hint.is_aligned_to(alignment.bytes()));
    match usable.and_then(|hint| reserve_at(hint, size)) {
        Some(range) => Ok(range),
        None => reserve_anywhere(size, alignment),
    }
}

/// Reserves at exactly `hint`. Hints are advisory, so any failure of the kernel means another address.
fn reserve_at(hint: Address, size: Bytes) -> Option<AddressRange> {
    let flags = RESERVED | MapFlags::FIXED_NOREPLACE;
    // SAFETY: FIXED_NOREPLACE never replaces a mapping, and a kernel without it (before 4.17) treats the address as a hint.
    let base = unsafe { mmap_anonymous(hint.as_ptr(), length(size), ProtFlags::empty(), flags) }.ok()?;
    let range = AddressRange { base: address(base), size };
    if range.base == hint {
        return Some(range);
    }
    // SAFETY: the range was mapped just now and no other code has its address. If this fails, only addresses are lost.
    let _ = unsafe { release(RESERVE, range) };
    None
}

/// Reserves more than needed, so that it contains an aligned part, and releases the rest.
fn reserve_anywhere(size: Bytes, alignment: Alignment) -> Result<AddressRange> {
    let alignment = alignment.bytes();
    let slack = alignment - page_size();
    let padded = size + slack;
    // SAFETY: the kernel chooses free addresses.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), length(padded), ProtFlags::empty(), RESERVED) }
        .map_err(|errno| {
            reservation_failed(RESERVE, "mmap", errno, size, format_args!("{size} aligned to {alignment}"))
        })?;
    let all = AddressRange { base: address(base), size: padded };
    let base = Address(all.base.0.next_multiple_of(alignment.0));
    let head = AddressRange { base: all.base, size: Bytes(base.0 - all.base.0) };
    let range = AddressRange { base, size };
    let tail = AddressRange { base: range.end(), size: slack - head.size };
    // If a cut fails, everything that is still reserved is released as a whole.
    let from_base = AddressRange { base, size: size + tail.size };
    for (cut, rest) in [(head, all), (tail, from_base)] {
        if cut.size.is_zero() {
            continue;
        }
        // SAFETY: both ranges lie in addresses mapped just now, which no other code has, and all of the rest is still mapped.
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

/// Returns whether the kernel honours a requested address. Another thread may take it in between. To make that unlikely, the
/// address is the lowest of a large range that was just free, while the kernel allocates from the highest; and a failure is
/// retried.
pub(crate) fn hint_is_kept(granularity: Granularity) -> Result<bool> {
    const ROOM: u64 = 64;
    let (size, alignment) = (granularity.bytes(), granularity.into());
    for _ in 0..8 {
        let free = reserve_anywhere(Bytes(size.0.saturating_mul(ROOM)), alignment)?;
        // SAFETY: reserved just now, here and below, and unused.
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

/// Unmaps addresses and returns them to the process.
///
/// # Safety
///
/// The caller owns the range and no longer uses it.
pub(crate) unsafe fn release(operation: Operation, range: AddressRange) -> Result<()> {
    // SAFETY: by the caller's contract.
    unsafe { munmap(range.base.as_ptr(), length(range.size)) }
        .map_err(|errno| failed(operation, "munmap", errno, range))
}

/// Maps pages of a file at reserved addresses, without access.
///
/// # Safety
///
/// The range lies in a reservation of the caller's, and nothing is mapped there.
pub(crate) unsafe fn map(range: AddressRange, file: BorrowedFd<'_>, offset: u64) -> Result<()> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the replaced range is reserved by the caller and was inaccessible.
    unsafe { mmap(range.base.as_ptr(), length(range.size), ProtFlags::empty(), flags, file, offset) }
        .map(|_| ())
        .map_err(|errno| failed(Operation::Map, "mmap", errno, range))
}

/// Removes the pages; the addresses stay reserved.
///
/// One call does both, so that no other thread can get the addresses in between. The kernel checks the limit of mappings before it
/// removes anything, so a refusal leaves the mappings as they were.
///
/// # Safety
///
/// The range lies in a reservation of the caller's, and nothing uses the memory mapped there any more.
pub(crate) unsafe fn vacate(range: AddressRange) -> Result<()> {
    let flags = RESERVED | MapFlags::FIXED;
    // SAFETY: the replaced mappings are the caller's and no longer used.
    unsafe { mmap_anonymous(range.base.as_ptr(), length(range.size), ProtFlags::empty(), flags) }
        .map(|_| ())
        .map_err(|errno| failed(Operation::Unmap, "mmap", errno, range))
}

/// Sets the CPU's access to mapped pages.
///
/// # Safety
///
/// The range is mapped memory of the caller's, and nothing uses it any more in a way that `access` forbids.
pub(crate) unsafe fn protect(range: AddressRange, access: Access) -> Result<()> {
    let flags = match access {
        Access::None => MprotectFlags::empty(),
        Access::Read => MprotectFlags::READ,
        Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: by the caller's contract.
    unsafe { mprotect(range.base.as_ptr(), length(range.size), flags) }
        .map_err(|errno| failed(Operation::SetAccess, "mprotect", errno, range))
}

/// Allocates plain memory, zeroed, for reading and writing.
pub(crate) fn allocate(size: Bytes) -> Result<AddressRange> {
    // SAFETY: the kernel chooses free addresses.
    let base = unsafe {
        mmap_anonymous(ptr::null_mut(), length(size), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .map_err(|errno: Errno| failed(Operation::Allocate, "mmap", errno, size))?;
    Ok(AddressRange { base: address(base), size })
}

/// Creates five adjacent mappings that the kernel cannot merge, as many as one call may need when it splits its neighbours. They
/// are [released](release) at once.
pub(crate) fn reserve_mappings() -> Result<AddressRange> {
    let page = page_size();
    let size = Bytes(page.0 * 5);
    // SAFETY: the kernel chooses free addresses.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), length(size), ProtFlags::READ, RESERVED) }
        .map_err(|errno| failed(Operation::Open, "mmap", errno, size))?;
    let range = AddressRange { base: address(base), size };
    for odd in [1, 3] {
        let one = AddressRange { base: range.base + Bytes(page.0 * odd), size: page };
        // SAFETY: a page of the addresses mapped just now, which no code uses; here and below.
        if let Err(error) = unsafe { protect(one, Access::None) } {
            // SAFETY: as above.
            return Err(unsafe { release(Operation::Open, range) }.err().unwrap_or(error));
        }
    }
    Ok(range)
}

/// Converts a size; the crate is for 64-bit systems, where every size fits.
const fn length(size: Bytes) -> usize {
    size.0 as usize
}

/// Returns the number of an address; exposes its provenance, since pointers are later made from the number.
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
    fn all_alignments_work_without_leaks() {
        for bytes in (12..=46).map(|bit| Bytes(1 << bit)) {
            let range = reserve(Bytes::mib(2), alignment(bytes), None).unwrap();
            assert!(range.base.is_aligned_to(bytes), "{range} is not aligned to {bytes}");
            assert_eq!(range.size, Bytes::mib(2));
            // SAFETY: reserved above and unused.
            unsafe { release(Operation::Allocate, range) }.unwrap();
        }
    }

    #[test]
    fn size_beyond_address_space_is_refused() {
        for size in [Bytes(1 << 60), Bytes(u64::MAX - 0xfff)] {
            let error = reserve(size, alignment(Bytes::mib(2)), None).unwrap_err();
            assert_eq!(error.driver_error().unwrap().name, "ENOMEM", "{error}");
        }
    }
}
