//! Functions for tests below HIP, which look them up in the loaded library. They report live objects, faults and numbers of
//! calls; they make another user take freed addresses, and make single calls fail. They are not part of HSA.
#![allow(unsafe_code)] // exported to C

use crate::abi::Status;
use crate::calls;
use crate::memory::{faults, state};
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::LazyLock;

/// Returns the numbers of live reservations, physical memory objects and mappings. At the end of a test they must be the same
/// as at its beginning. A null pointer is skipped.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_vmem_counts(
    reserved: Option<&mut MaybeUninit<usize>>,
    physical: Option<&mut MaybeUninit<usize>>,
    mapped: Option<&mut MaybeUninit<usize>>,
) {
    let counts = state().vmem.counts();
    for (out, count) in [reserved, physical, mapped].into_iter().zip(counts) {
        out.map(|out| out.write(count));
    }
}

/// Returns the number of GPU memory faults. It can be above 0 only with `HSA_SIM_ON_FAULT=skip`.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_fault_count() -> u64 {
    faults()
}

/// Simulates another user of addresses in the process, which takes the next addresses as soon as they are freed, once. With
/// 0, the taken addresses are free again, and no more are taken.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_take_freed(take: i32) {
    state().vmem.take_freed(take != 0);
}

/// Returns the number of calls of an HSA function, including failed ones; `u64::MAX` for one that is not counted.
///
/// # Safety
///
/// The name must be null or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_sim_call_count(name: *const c_char) -> u64 {
    if name.is_null() {
        return u64::MAX;
    }
    // SAFETY: not null, and the caller guarantees a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(calls::count).unwrap_or(u64::MAX)
}

/// Returns the name at an index of the list of counted functions; null after the last one. It stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_call_name(place: usize) -> *const c_char {
    static ALL: LazyLock<Vec<CString>> =
        LazyLock::new(|| calls::NAMES.iter().filter_map(|name| CString::new(*name).ok()).collect());
    ALL.get(place).map_or(null(), |name| name.as_ptr())
}

/// Plans a failure: one call of a function returns the status and does nothing. It is the next call, or the one after `after`
/// others, up to 65535. Replaces an earlier plan. Returns 1 if the failure is planned, and 0 if there is no such function or
/// the status is success.
///
/// A null name cancels the plan; the result is 1 if the planned failure had not happened.
///
/// # Safety
///
/// The name must be null or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_sim_fail(name: *const c_char, after: u16, status: u32) -> u32 {
    if name.is_null() {
        return calls::fail_none().into();
    }
    // SAFETY: not null, and the caller guarantees a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().is_ok_and(|name| calls::fail(name, after, Status(status))).into()
}
