//! Address ranges as HIP gives them: `hipMemAddressReserve` and `hipMemAddressFree`, with what HIP leaves out.
//!
//! HIP ignores the alignment that is asked for, so a larger range is reserved and the aligned part of it used. On HIP 6
//! ranges are not freed but kept for later reservations, in `kept_addresses`, since freeing crashes (quirk `free-races`).
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::kept_addresses::{Reserved, aligned, holds};
use crate::quirks::{ALIGNMENT_IGNORED, workaround_enabled};
use gpu_vmm_core::{Address, AddressRange, Alignment, Bytes, Detail, Error, Operation, Result};
use std::time::Duration;

/// How the runtime below aligns a range of that size or more by itself.
const NATURAL: Bytes = Bytes::mib(2);

/// Reserves addresses, aligned as asked, at the hint where that can be had.
pub(crate) fn reserve(
    driver: &Driver,
    size: Bytes,
    alignment: Alignment,
    hint: Option<Address>,
) -> Result<Reserved> {
    let _entered = driver.enter(Operation::Reserve)?;
    if let Some(kept) = driver.kept.take(size, alignment, hint) {
        return Ok(kept);
    }
    if hint.is_some() || alignment.bytes() <= NATURAL || !workaround_enabled(&ALIGNMENT_IGNORED) {
        let whole = reserve_whole(driver, size, hint)?;
        if whole.base.is_aligned_to(alignment.bytes()) || !workaround_enabled(&ALIGNMENT_IGNORED) {
            return Ok(Reserved { whole, range: whole });
        }
        free_or_keep(driver, Reserved { whole, range: whole })?;
    }
    let limit = Alignment::MAX;
    let room = size.checked_add(alignment.bytes());
    let room =
        room.ok_or_else(|| Error::new(Operation::Reserve, Detail::AddressSpaceExhausted { size, limit }))?;
    let whole = reserve_whole(driver, room, None)?;
    match aligned(whole.base, alignment).filter(|base| holds(whole, *base, size)) {
        Some(base) => {
            let reserved = Reserved { whole, range: AddressRange { base, size } };
            if driver.quirks.free_races {
                reserved.rest_of(whole).for_each(|rest| driver.kept.put(rest));
            }
            Ok(reserved)
        }
        None => {
            free_or_keep(driver, Reserved { whole, range: whole })?;
            let what = format!("{whole} have no {size} aligned to {}", alignment.bytes());
            Err(Error::new(Operation::Reserve, Detail::DriverContractViolated { what }))
        }
    }
}

fn reserve_whole(driver: &Driver, size: Bytes, hint: Option<Address>) -> Result<AddressRange> {
    const OPERATION: Operation = Operation::Reserve;
    let mut base = std::ptr::null_mut();
    let wish = hint.map_or(std::ptr::null_mut(), Address::as_ptr);
    // SAFETY: HIP writes one address; the hint is compared with what is free and never followed.
    let code = unsafe { (driver.hip.hipMemAddressReserve)(&raw mut base, size.0 as usize, 0, wish, 0) };
    let context = || match hint {
        Some(hint) => format!("{size} of addresses at {hint}"),
        None => format!("{size} of addresses"),
    };
    driver.check(OPERATION, "hipMemAddressReserve", code, context)?;
    if base.is_null() {
        let what = format!("hipMemAddressReserve answered success and a null address for {size}");
        return Err(Error::new(OPERATION, Detail::DriverContractViolated { what }));
    }
    Ok(AddressRange { base: Address(base.expose_provenance() as u64), size })
}

/// Gives a reservation back, in which nothing may be mapped. A free that fails is not tried again: HIP has then
/// forgotten the range and would crash.
pub(crate) fn give_back(driver: &Driver, reserved: Reserved) -> Result<()> {
    let _entered = driver.enter(Operation::FreeReservation)?;
    free_or_keep(driver, reserved)
}

fn free_or_keep(driver: &Driver, reserved: Reserved) -> Result<()> {
    if driver.quirks.free_races {
        driver.kept.put(reserved);
        return Ok(());
    }
    free_now(driver, reserved.whole)
}

fn free_now(driver: &Driver, whole: AddressRange) -> Result<()> {
    // SAFETY: the base and size are those that HIP gave, nothing is mapped there, and it is given back once.
    let code = unsafe { (driver.hip.hipMemAddressFree)(whole.base.as_ptr(), whole.size.0 as usize) };
    driver.check(Operation::FreeReservation, "hipMemAddressFree", code, || whole.to_string())
}

/// Frees a range in which nothing is mapped, and reserves it again. The caller holds the lock of HIP's calls, so that no
/// other reservation of ours comes to lie there between; somebody else's may, and then, as after any other error, the
/// range is gone.
pub(crate) fn renew(driver: &Driver, operation: Operation, whole: AddressRange) -> Result<()> {
    free_now(driver, whole)?;
    reserve_again(driver, operation, whole)
}

/// Reserves a range again that was lost, all of it where it was. The caller holds the lock of HIP's calls.
pub(crate) fn reserve_again(driver: &Driver, operation: Operation, whole: AddressRange) -> Result<()> {
    let offered = reserve_whole(driver, whole.size, Some(whole.base))?;
    if offered == whole {
        return Ok(());
    }
    if let Err(error) = free_now(driver, offered) {
        driver.drop_log.record(error);
    }
    Err(Error::new(operation, Detail::AddressTaken { wanted: whole.base, offered: offered.base }))
}

/// Closes addresses of a reservation at which the runtime below has left nothing, so that no other mapping of the process
/// comes to lie there. Where something is, nothing is done.
pub(crate) fn close(range: AddressRange) {
    cfg_if::cfg_if! {
        if #[cfg(target_os = "linux")] {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let size = range.size.0 as usize;
            // SAFETY: the flags forbid to replace what is there. A kernel before 4.17 does not know the last one and
            // maps elsewhere, which nobody has seen and is taken away at once.
            unsafe {
                let at = libc::mmap(range.base.as_ptr(), size, libc::PROT_NONE, flags, -1, 0);
                if at != libc::MAP_FAILED && at != range.base.as_ptr() {
                    libc::munmap(at, size);
                }
            }
        } else {
            let _ = range;
        }
    }
}

/// Frees what was kept, once HIP's threads have had time to let go of it. The count of ranges that were freed.
pub(crate) fn release_kept(driver: &Driver) -> Result<usize> {
    const OPERATION: Operation = Operation::FreeReservation;
    /// 20 ms were enough where the crash was studied.
    const PAUSE: Duration = Duration::from_millis(100);
    for device in driver.devices().iter().filter(|device| device.unusable.is_none()) {
        driver.synchronize(OPERATION, device.id)?;
    }
    let _entered = driver.enter(OPERATION)?;
    let ranges = driver.kept.take_unused();
    if !ranges.is_empty() {
        std::thread::sleep(PAUSE);
    }
    let count = ranges.len();
    // Each is given back once whatever becomes of the others; the first failure is told.
    let results: Vec<_> = ranges.into_iter().map(|whole| free_now(driver, whole)).collect();
    results.into_iter().collect::<Result<Vec<()>>>().map(|_| count)
}
