//! Reserving and freeing addresses: `hipMemAddressReserve` and `hipMemAddressFree`.
//!
//! HIP ignores the requested alignment, so the backend reserves a larger range and uses its aligned part. On HIP 6
//! freeing a range crashes (quirk `free-races`), so `kept_addresses` keeps freed ranges for later reservations.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::{Driver, Entered};
use crate::kept_addresses::{Reserved, aligned, holds};
use crate::quirks::{ALIGNMENT_IGNORED, workaround_enabled};
use gpu_vmm_core::extend::out_of_addresses;
use gpu_vmm_core::{Address, AddressRange, Alignment, Bytes, Detail, Error, Operation, Result};
use std::time::Duration;

/// The alignment that the runtime below HIP gives to every range of this size or more.
const NATURAL: Bytes = Bytes::mib(2);

/// All addresses.
const ANYWHERE: AddressRange = AddressRange { base: Address(0), size: Bytes(u64::MAX) };

/// Reserves addresses within a range that were kept, at the place of a part that `random` chooses; `None` if none fit.
pub(crate) fn reserve_kept(
    driver: &Driver,
    size: Bytes,
    alignment: Alignment,
    within: AddressRange,
    random: u64,
) -> Option<Reserved> {
    // In a forked child the addresses belong to the parent; a reservation returns that error.
    let _entered = driver.enter(Operation::Reserve).ok()?;
    driver.kept.take(size, alignment, within, random)
}

/// Reserves addresses with the given alignment, at the hint if it is free.
pub(crate) fn reserve(
    driver: &Driver,
    size: Bytes,
    alignment: Alignment,
    hint: Option<Address>,
) -> Result<Reserved> {
    let entered = &driver.enter(Operation::Reserve)?;
    let at_hint =
        hint.and_then(|hint| driver.kept.take(size, alignment, AddressRange { base: hint, size }, 0));
    if let Some(kept) = at_hint {
        return Ok(kept);
    }
    // What HIP returns for a hint that it refuses would be kept for ever, once for each such call.
    let hint = hint.filter(|hint| {
        let is_usable =
            || hint.is_aligned_to(alignment.bytes()) && are_free(AddressRange { base: *hint, size });
        !driver.quirks.free_races || is_usable()
    });
    if let Some(kept) = hint.is_none().then(|| driver.kept.take(size, alignment, ANYWHERE, 0)).flatten() {
        return Ok(kept);
    }
    if hint.is_some() || alignment.bytes() <= NATURAL || !workaround_enabled(&ALIGNMENT_IGNORED) {
        let whole = reserve_whole(driver, entered, size, hint)?;
        if whole.base.is_aligned_to(alignment.bytes()) || !workaround_enabled(&ALIGNMENT_IGNORED) {
            return Ok(Reserved { whole, range: whole });
        }
        free_or_keep(driver, entered, Reserved { whole, range: whole })?;
    }
    let limit = Alignment::MAX;
    let room = size.checked_add(alignment.bytes());
    let room =
        room.ok_or_else(|| Error::new(Operation::Reserve, Detail::ExceedsAddressSpace { size, limit }))?;
    let whole = reserve_whole(driver, entered, room, None)?;
    match aligned(whole.base, alignment).filter(|base| holds(whole, *base, size)) {
        Some(base) => {
            let reserved = Reserved { whole, range: AddressRange { base, size } };
            if driver.quirks.free_races {
                reserved.rest_of(whole).for_each(|rest| driver.kept.put(rest));
            }
            Ok(reserved)
        }
        None => {
            free_or_keep(driver, entered, Reserved { whole, range: whole })?;
            let what = format!("{whole} contains no {size} aligned to {}", alignment.bytes());
            Err(Error::new(Operation::Reserve, Detail::DriverContractViolated { what }))
        }
    }
}

fn reserve_whole(
    driver: &Driver,
    _: &Entered<'_>,
    size: Bytes,
    hint: Option<Address>,
) -> Result<AddressRange> {
    const OPERATION: Operation = Operation::Reserve;
    let mut base = std::ptr::null_mut();
    let wish = hint.map_or(std::ptr::null_mut(), Address::as_ptr);
    // SAFETY: HIP writes one address; it compares the hint with its free ranges and never dereferences it.
    let code = unsafe { (driver.hip.hipMemAddressReserve)(&raw mut base, size.0 as usize, 0, wish, 0) };
    let context = || match hint {
        Some(hint) => format!("{size} of addresses at {hint}"),
        None => format!("{size} of addresses"),
    };
    driver.check_short(OPERATION, "hipMemAddressReserve", code, context, |source, _| {
        out_of_addresses(OPERATION, size, source)
    })?;
    if base.is_null() {
        let what = format!("hipMemAddressReserve returned success and a null address for {size}");
        return Err(Error::new(OPERATION, Detail::DriverContractViolated { what }));
    }
    Ok(AddressRange { base: Address(base.expose_provenance() as u64), size })
}

/// Frees a reservation without mappings.
///
/// A failed free is not retried: HIP has then forgotten the range and would crash.
pub(crate) fn give_back(driver: &Driver, reserved: Reserved) -> Result<()> {
    free_or_keep(driver, &driver.enter(Operation::FreeReservation)?, reserved)
}

fn free_or_keep(driver: &Driver, entered: &Entered<'_>, reserved: Reserved) -> Result<()> {
    if driver.quirks.free_races {
        driver.kept.put(reserved);
        return Ok(());
    }
    free_now(driver, entered, reserved.whole)
}

fn free_now(driver: &Driver, _: &Entered<'_>, whole: AddressRange) -> Result<()> {
    // SAFETY: HIP returned this base and size, nothing is mapped there, and the range is freed once.
    let code = unsafe { (driver.hip.hipMemAddressFree)(whole.base.as_ptr(), whole.size.0 as usize) };
    driver.check(Operation::FreeReservation, "hipMemAddressFree", code, || whole.to_string())
}

/// Frees a range without mappings and reserves it again.
///
/// The lock of HIP's calls is held, so no other reservation of this backend can take the range in between.
/// Another part of the process can. Then, and after any other error, the range is lost.
pub(crate) fn renew(
    driver: &Driver,
    entered: &Entered<'_>,
    operation: Operation,
    whole: AddressRange,
) -> Result<()> {
    free_now(driver, entered, whole)?;
    reserve_again(driver, entered, operation, whole)
}

/// Reserves a lost range again, at its old address.
pub(crate) fn reserve_again(
    driver: &Driver,
    entered: &Entered<'_>,
    operation: Operation,
    whole: AddressRange,
) -> Result<()> {
    let offered = reserve_whole(driver, entered, whole.size, Some(whole.base))?;
    if offered == whole {
        return Ok(());
    }
    if let Err(error) = free_now(driver, entered, offered) {
        driver.drop_log.record(error);
    }
    Err(Error::new(operation, Detail::AddressTaken { wanted: whole.base, offered: offered.base }))
}

/// Maps inaccessible pages at addresses of a reservation that the runtime below HIP left unmapped, so that no other
/// mapping of the process can take them. Does nothing if the addresses are mapped.
pub(crate) fn close(range: AddressRange) {
    cfg_if::cfg_if! {
        if #[cfg(target_os = "linux")] {
            map_free(range);
        } else {
            let _ = range;
        }
    }
}

/// Returns whether nothing is mapped at any of the addresses, so that HIP honours them as a hint: it maps pages there in the
/// same way.
fn are_free(range: AddressRange) -> bool {
    cfg_if::cfg_if! {
        if #[cfg(target_os = "linux")] {
            let is_mapped = map_free(range);
            if is_mapped {
                // SAFETY: the pages that were just mapped, which no other code knows.
                unsafe { libc::munmap(range.base.as_ptr(), range.size.0 as usize) };
            }
            is_mapped
        } else {
            let _ = range;
            true
        }
    }
}

/// Maps inaccessible pages at addresses of which none is mapped. Returns whether it did.
#[cfg(target_os = "linux")]
fn map_free(range: AddressRange) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let size = range.size.0 as usize;
    // SAFETY: the flags forbid replacing an existing mapping. A kernel before 4.17 ignores MAP_FIXED_NOREPLACE
    // and may map elsewhere; that mapping is unused and unmapped at once.
    unsafe {
        let at = libc::mmap(range.base.as_ptr(), size, libc::PROT_NONE, flags, -1, 0);
        if at != libc::MAP_FAILED && at != range.base.as_ptr() {
            libc::munmap(at, size);
        }
        at == range.base.as_ptr()
    }
}

/// Frees the kept ranges after a pause that lets HIP's threads finish with them. Returns the number of freed ranges.
pub(crate) fn release_kept(driver: &Driver) -> Result<usize> {
    const OPERATION: Operation = Operation::FreeReservation;
    /// 20 ms were enough when the crash was studied.
    const PAUSE: Duration = Duration::from_millis(100);
    for device in driver.devices().iter().filter(|device| device.unusable.is_none()) {
        driver.synchronize(OPERATION, device.id)?;
    }
    let entered = &driver.enter(OPERATION)?;
    let ranges = driver.kept.take_unused();
    if !ranges.is_empty() {
        std::thread::sleep(PAUSE);
    }
    let count = ranges.len();
    // Every range is freed once, whatever happens to the others; the first failure is returned.
    let results: Vec<_> = ranges.into_iter().map(|whole| free_now(driver, entered, whole)).collect();
    results.into_iter().collect::<Result<Vec<()>>>().map(|_| count)
}
