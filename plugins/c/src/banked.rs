//! One address range with several banks of memory, of which one is mapped at a time.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{held, status};
use crate::handles::{Kind, Object};
use crate::observer::{Observer, Registered};
use crate::physical::Physical;
use crate::reservation::RegionOptions;
use crate::status::{Failure, Status};
use crate::texts::{bytes, clear, give, give_box, object, room, take_box, value};
use gpu_vmm::extend::Lock;
use gpu_vmm::{AnyBackend, BankId, BankedRegion, Bytes, Operation, WaitFor};
use std::ffi::c_void;

/// A fixed range of addresses and several banks of memory, of which one at a time is mapped there. The others keep their contents.
/// Calls of several threads take turns.
#[derive(Debug)]
pub struct Banked(pub(crate) Lock<BankedRegion<AnyBackend>>);

// SAFETY: no other type has the kind.
unsafe impl Object for Banked {
    const KIND: Kind = Kind::Banked;
}

/// For gpu_vmm_banked_selected: no bank is mapped.
pub const GPU_VMM_NO_BANK: u32 = 4294967295;

/// Reserves the addresses of a banked region, without a bank. `size` of the options must be the size of the largest bank. Null options
/// mean the default. Free it with gpu_vmm_banked_free.
///
/// Returns the statuses of gpu_vmm_region_reserve.
///
/// # Safety
///
/// `backend` is null or an open backend. `options` is null or points to options. `banked` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_new(
    backend: *const Backend,
    options: *const RegionOptions,
    banked: *mut *mut Banked,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(banked) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let builder = RegionOptions::builder(backend, options.as_ref())?;
            give_box("banked", banked, || Ok(Banked(Lock::new(BankedRegion::build(builder)?))))
        }
    })
}

/// Frees a banked region and its banks. Null does nothing.
///
/// # Safety
///
/// `banked` is null or comes from gpu_vmm_banked_new, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_free(banked: *mut Banked) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(banked) }
}

/// Returns the first address, which never changes.
///
/// # Safety
///
/// `banked` is null or a banked region. `address` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_address(banked: *const Banked, address: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let banked = held(&object("banked", banked)?.0, Operation::LockRegion)?;
            give("address", address, banked.address().0)
        }
    })
}

/// Adds a bank of new memory of at least `size` bytes. Nothing is mapped. `bank` receives its number.
///
/// Returns GPU_VMM_OUT_OF_MEMORY, and GPU_VMM_OUT_OF_RANGE for a bank larger than the address range.
///
/// # Safety
///
/// `banked` is null or a banked region. `bank` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_add(banked: *const Banked, size: u64, bank: *mut u32) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bank) };
    status(|| {
        crate::texts::check_place("bank", bank)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut banked = held(&object("banked", banked)?.0, Operation::AddBank)?;
            give("bank", bank, banked.add_bank(Bytes(size))?.0)
        }
    })
}

/// Adds a bank of `count` pieces of existing memory, one behind the other. `bank` receives its number.
///
/// Returns GPU_VMM_OUT_OF_RANGE for a bank larger than the address range, GPU_VMM_UNALIGNED, GPU_VMM_PEER_UNREACHABLE, and
/// GPU_VMM_INVALID_ARGUMENT for no piece or memory of another backend.
///
/// # Safety
///
/// `banked` is null or a banked region. `physicals` is null or points to `count` pointers, each null or physical memory. `bank` is
/// null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_add_physical(
    banked: *const Banked,
    physicals: *const *const Physical,
    count: u64,
    bank: *mut u32,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bank) };
    status(|| {
        crate::texts::check_place("bank", bank)?;
        let count = usize::try_from(count).ok().filter(|count| *count < usize::MAX / 64);
        let count = count.ok_or_else(|| Failure::invalid("add bank: count exceeds the address space"))?;
        if physicals.is_null() && count > 0 {
            return Err(Failure::invalid(format!("physicals is null, but its count is {count}")));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut banked = held(&object("banked", banked)?.0, Operation::AddBank)?;
            let pieces = (0..count).map(|at| Ok(object("one of physicals", *physicals.add(at))?.0.clone()));
            let pieces = pieces.collect::<Result<Vec<_>, Failure>>()?;
            give("bank", bank, banked.add_bank_of(pieces)?.0)
        }
    })
}

/// Maps a bank at the address, after waiting for the devices. The previous bank keeps its contents. The selected bank stays.
///
/// Returns GPU_VMM_NOT_FOUND if there is no such bank, and GPU_VMM_BUSY for a capture or if an observer refuses.
///
/// # Safety
///
/// `banked` is null or a banked region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_select(banked: *const Banked, bank: u32) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let mut banked = held(&unsafe { object("banked", banked) }?.0, Operation::SelectBank)?;
        Ok(banked.select(BankId(bank), WaitFor::all_devices())?)
    })
}

/// Unmaps the selected bank, after waiting for the devices, so that nothing is mapped.
///
/// Returns GPU_VMM_BUSY for a capture or if an observer refuses.
///
/// # Safety
///
/// `banked` is null or a banked region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_hide(banked: *const Banked) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let mut banked = held(&unsafe { object("banked", banked) }?.0, Operation::HideBank)?;
        Ok(banked.hide(WaitFor::all_devices())?)
    })
}

/// Removes a bank, hides it first if it is selected, and releases its memory.
///
/// Returns GPU_VMM_NOT_FOUND if there is no such bank, and GPU_VMM_BUSY for a capture or if an observer refuses.
///
/// # Safety
///
/// `banked` is null or a banked region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_remove(banked: *const Banked, bank: u32) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let mut banked = held(&unsafe { object("banked", banked) }?.0, Operation::RemoveBank)?;
        drop(banked.remove_bank(BankId(bank), WaitFor::all_devices())?);
        Ok(())
    })
}

/// Returns the number of the selected bank, or GPU_VMM_NO_BANK.
///
/// # Safety
///
/// `banked` is null or a banked region. `bank` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_selected(banked: *const Banked, bank: *mut u32) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bank) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let banked = held(&object("banked", banked)?.0, Operation::LockRegion)?;
            give("bank", bank, banked.selected().map_or(GPU_VMM_NO_BANK, |bank| bank.0))
        }
    })
}

/// Copies `size` bytes at `offset` of the selected bank to the host, as gpu_vmm_region_read does.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
///
/// # Safety
///
/// `banked` is null or a banked region. `to` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_read(
    banked: *const Banked,
    offset: u64,
    to: *mut c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (banked, to) = unsafe { (object("banked", banked)?, room("to", to, size)?) };
        Ok(held(&banked.0, Operation::Read)?.region().read(Bytes(offset), to)?)
    })
}

/// Copies `size` bytes of the host to `offset` of the selected bank, as gpu_vmm_region_write does.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
///
/// # Safety
///
/// `banked` is null or a banked region. `from` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_write(
    banked: *const Banked,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (banked, from) = unsafe { (object("banked", banked)?, bytes("from", from, size)?) };
        Ok(held(&banked.0, Operation::Write)?.write(Bytes(offset), from)?)
    })
}

/// Adds an observer to a banked region, as gpu_vmm_region_on_backing_change does. It is removed with the banked region.
///
/// # Safety
///
/// As for gpu_vmm_region_on_backing_change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_banked_on_backing_change(
    banked: *const Banked,
    observer: *const Observer,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (banked, observer) = (object("banked", banked)?, value("observer", observer)?);
            observer.check()?;
            held(&banked.0, Operation::LockRegion)?.on_backing_change(Registered::new(*observer));
            Ok(())
        }
    })
}
