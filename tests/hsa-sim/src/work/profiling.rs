//! The times at which work began and ended, as stored in its signal.
//!
//! Rules: `hsa_amd_profiling_*` in `hsa_ext_amd.h`. Times are always taken.
#![allow(unsafe_code)] // exported to C

use super::signal::signal;
use crate::abi::{Agent, Queue, SignalHandle, Status};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::SeqCst;

fn times(handle: SignalHandle, out: Option<&mut MaybeUninit<[u64; 2]>>) -> Status {
    let Some(out) = out else { return Status::INVALID_ARGUMENT };
    let signal = signal(handle);
    out.write([signal.start.load(SeqCst), signal.end.load(SeqCst)]);
    Status::SUCCESS
}

hsa! {
    /// Returns the times of a packet.
    pub unsafe fn hsa_amd_profiling_get_dispatch_time(
        _agent: Agent,
        handle: SignalHandle,
        out: Option<&mut MaybeUninit<[u64; 2]>>,
    ) {
        times(handle, out)
    }

    /// Returns the times of a copy.
    pub unsafe fn hsa_amd_profiling_get_async_copy_time(
        handle: SignalHandle,
        out: Option<&mut MaybeUninit<[u64; 2]>>,
    ) {
        times(handle, out)
    }

    /// Does nothing: times are always recorded.
    pub unsafe fn hsa_amd_profiling_async_copy_enable(_on: bool) {
        Status::SUCCESS
    }

    /// Does nothing: times are always recorded.
    pub unsafe fn hsa_amd_profiling_set_profiler_enabled(_queue: *mut Queue, _on: i32) {
        Status::SUCCESS
    }
}
