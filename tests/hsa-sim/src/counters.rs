//! What a test may ask below HIP, by looking the functions up in the loaded library: what is alive, how many faults
//! there were, how often a function was called; and to have addresses taken as soon as they are freed, and single calls
//! fail. These are no part of HSA.
#![allow(unsafe_code)] // exported to C

use crate::abi::Status;
use crate::calls;
use crate::memory::{faults, state};
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::LazyLock;

/// How many reservations, pieces of physical memory and mappings are alive: at the end of a test, as many as at its
/// beginning. A null pointer is left out.
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

/// How many GPU memory faults there were. More than none is seen with `HSA_SIM_ON_FAULT=skip` alone.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_fault_count() -> u64 {
    faults()
}

/// From now on somebody else in the process takes addresses as soon as they are freed, once; with 0 what was taken is free
/// again, and nobody takes any.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_take_freed(take: i32) {
    state().vmem.take_freed(take != 0);
}

/// How often a function of HSA was called, failures included; `u64::MAX` for one that is not counted.
///
/// # Safety
///
/// The name is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_sim_call_count(name: *const c_char) -> u64 {
    if name.is_null() {
        return u64::MAX;
    }
    // SAFETY: not null, and ends with a zero byte by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(calls::count).unwrap_or(u64::MAX)
}

/// The name of the function at a place of the list of those that are counted, from 0 on; null behind the last one. It
/// stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_sim_call_name(place: usize) -> *const c_char {
    static ALL: LazyLock<Vec<CString>> =
        LazyLock::new(|| calls::NAMES.iter().filter_map(|name| CString::new(*name).ok()).collect());
    ALL.get(place).map_or(null(), |name| name.as_ptr())
}

/// From now on one call of a function answers the status and does nothing: the next one, or with `after` that which follows
/// so many others, up to 65535. It takes the place of what was planned before. 1: it is planned; 0: there is no such
/// function, or the status is success.
///
/// With a null name no call fails any more, and the answer is 1 if the one that was planned had not happened.
///
/// # Safety
///
/// The name is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hsa_sim_fail(name: *const c_char, after: u16, status: u32) -> u32 {
    if name.is_null() {
        return calls::fail_none().into();
    }
    // SAFETY: not null, and ends with a zero byte by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().is_ok_and(|name| calls::fail(name, after, Status(status))).into()
}
