//! Signals: numbers that work decrements and others wait for.
//!
//! Rules: `hsa_signal_*` in `hsa.h`, `hsa_amd_signal_*` in `hsa_ext_amd.h`; the layout is from `amd_hsa_signal.h`, since
//! HIP reads a signal's value in its memory. Every operation is sequentially consistent here, which is more than any of them
//! requires. A destroyed signal is kept for reuse, so that late reads of it do no harm.
#![allow(unsafe_code)] // exported to C

use super::{now, wait_until, wake};
use crate::abi::{Agent, Signal, SignalHandle, Status, condition};
use crate::report::stop;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `AMD_SIGNAL_KIND_USER`
pub(crate) const USER: i64 = 1;
/// `AMD_SIGNAL_KIND_DOORBELL`
pub(crate) const DOORBELL: i64 = -1;

#[derive(Default)]
struct Signals {
    /// Every signal ever created, by its address.
    all: HashMap<SignalHandle, &'static Signal>,
    spare: Vec<SignalHandle>,
}

fn signals() -> MutexGuard<'static, Signals> {
    static SIGNALS: LazyLock<Mutex<Signals>> = LazyLock::new(Mutex::default);
    SIGNALS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known(handle: SignalHandle) -> Option<&'static Signal> {
    signals().all.get(&handle).copied()
}

/// Returns a signal by its handle. An invalid handle would read arbitrary memory in ROCr; here it ends the process.
pub(crate) fn signal(handle: SignalHandle) -> &'static Signal {
    known(handle).unwrap_or_else(|| stop(format_args!("{handle:x?} was never a signal")))
}

pub(crate) fn value(handle: SignalHandle) -> i64 {
    signal(handle).value.load(SeqCst)
}

pub(crate) const fn meets(value: i64, how: u32, compare: i64) -> bool {
    match how {
        condition::EQ => value == compare,
        condition::NE => value != compare,
        condition::LT => value < compare,
        _ => value >= compare,
    }
}

pub(crate) fn create(kind: i64, value: i64) -> SignalHandle {
    let mut signals = signals();
    if let Some(handle) = signals.spare.pop()
        && let Some(signal) = signals.all.get(&handle)
    {
        signal.kind.store(kind, SeqCst);
        signal.value.store(value, SeqCst);
        return handle;
    }
    let signal: &'static Signal = Box::leak(Box::new(Signal {
        kind: AtomicI64::new(kind),
        value: AtomicI64::new(value),
        mailbox: 0,
        event_id: 0,
        reserved1: 0,
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        queue: 0,
        reserved3: [0; 2],
    }));
    let handle = SignalHandle((&raw const *signal).expose_provenance() as u64);
    signals.all.insert(handle, signal);
    handle
}

pub(crate) fn destroy(handle: SignalHandle) -> bool {
    let mut signals = signals();
    let there = signals.all.contains_key(&handle);
    if there {
        signals.spare.push(handle);
    }
    there
}

/// Completes a piece of work: stores its times, and decrements its signal.
pub(crate) fn complete(handle: SignalHandle, start: u64) {
    if handle != SignalHandle(0) {
        let signal = signal(handle);
        signal.start.store(start, SeqCst);
        signal.end.store(now().max(start + 1), SeqCst);
        signal.value.fetch_sub(1, SeqCst);
        wake(handle);
    }
}

hsa! {
    /// Creates a signal.
    pub unsafe fn hsa_signal_create(
        value: i64,
        _count: u32,
        _consumers: *const Agent,
        out: Option<&mut MaybeUninit<SignalHandle>>,
    ) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        out.write(create(USER, value));
        Status::SUCCESS
    }

    /// Creates a signal; its waiters make no difference here.
    pub unsafe fn hsa_amd_signal_create(
        value: i64,
        _count: u32,
        _consumers: *const Agent,
        _attributes: u64,
        out: Option<&mut MaybeUninit<SignalHandle>>,
    ) {
        let Some(out) = out else { return Status::INVALID_ARGUMENT };
        out.write(create(USER, value));
        Status::SUCCESS
    }

    /// Destroys a signal.
    pub unsafe fn hsa_signal_destroy(handle: SignalHandle) {
        if destroy(handle) { Status::SUCCESS } else { Status::INVALID_SIGNAL }
    }

    /// Returns the address of a signal's value.
    pub unsafe fn hsa_amd_signal_value_pointer(
        handle: SignalHandle,
        out: Option<&mut MaybeUninit<*mut i64>>,
    ) {
        let (Some(out), Some(signal)) = (out, known(handle)) else { return Status::INVALID_ARGUMENT };
        out.write(signal.value.as_ptr());
        Status::SUCCESS
    }
}

/// Defines the operations on a signal's value, which return no status.
macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident($handle:ident $(, $argument:ident)?) $(-> $result:ty)? $body:block)*) => { $(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($handle: SignalHandle $(, $argument: i64)?) $(-> $result)? $body
    )* };
}

operations! {
    /// Reads the value.
    hsa_signal_load_relaxed(handle) -> i64 {
        value(handle)
    }
    /// Writes the value. A doorbell keeps the highest number: several threads write packets of one queue, and the thread with
    /// a lower number may ring after the one with a higher number.
    hsa_signal_store_relaxed(handle, value) {
        let signal = signal(handle);
        if signal.kind.load(SeqCst) == DOORBELL {
            signal.value.fetch_max(value, SeqCst);
        } else {
            signal.value.store(value, SeqCst);
        }
        wake(handle);
    }
    /// Writes the value.
    hsa_signal_store_screlease(handle, value) {
        hsa_signal_store_relaxed(handle, value);
    }
    /// Writes the value without waking any waiter.
    hsa_signal_silent_store_relaxed(handle, value) {
        signal(handle).value.store(value, SeqCst);
    }
    /// Adds to the value.
    hsa_signal_add_relaxed(handle, value) {
        signal(handle).value.fetch_add(value, SeqCst);
        wake(handle);
    }
    /// Subtracts from the value.
    hsa_signal_subtract_relaxed(handle, value) {
        signal(handle).value.fetch_sub(value, SeqCst);
        wake(handle);
    }
}

/// Waits until the value meets a condition, or until the timeout in nanoseconds; returns the value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_wait_scacquire(
    handle: SignalHandle,
    how: u32,
    compare: i64,
    timeout: u64,
    _state: u32,
) -> i64 {
    let end = Instant::now().checked_add(Duration::from_nanos(timeout));
    wait_until(
        || vec![handle],
        end,
        || {
            let value = value(handle);
            let late = end.is_some_and(|end| Instant::now() >= end);
            (meets(value, how, compare) || late).then_some(value)
        },
    )
}
