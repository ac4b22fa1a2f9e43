//! Functions that a thread of the runtime calls when a signal's value meets a condition.
//!
//! Rules: `hsa_amd_signal_async_handler` in `hsa_ext_amd.h`: a handler that returns true stays registered.
#![allow(unsafe_code)] // exported to C

use super::signal::{meets, value};
use super::wait_until;
use crate::abi::{SignalHandle, Status};
use crate::report::thread;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Function = extern "C" fn(i64, *mut c_void) -> bool;

struct Handler {
    signal: SignalHandle,
    how: u32,
    compare: i64,
    function: Function,
    argument: *mut c_void,
}

// SAFETY: the argument is only passed to the program's function, which must allow calls by another thread.
unsafe impl Send for Handler {}

fn handlers() -> MutexGuard<'static, Vec<Handler>> {
    static HANDLERS: Mutex<Vec<Handler>> = Mutex::new(Vec::new());
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work() {
    loop {
        let awaited = || handlers().iter().map(|handler| handler.signal).collect();
        let (handler, seen) = wait_until(awaited, None, || {
            let mut handlers = handlers();
            handlers
                .iter()
                .enumerate()
                .find_map(|(place, handler)| {
                    let seen = value(handler.signal);
                    meets(seen, handler.how, handler.compare).then_some((place, seen))
                })
                .map(|(place, seen)| (handlers.remove(place), seen))
        });
        if (handler.function)(seen, handler.argument) {
            handlers().push(handler);
        }
    }
}

hsa! {
    /// Registers a function.
    pub unsafe fn hsa_amd_signal_async_handler(
        signal: SignalHandle,
        how: u32,
        compare: i64,
        function: Option<extern "C" fn(i64, *mut c_void) -> bool>,
        argument: *mut c_void,
    ) {
        static THREAD: LazyLock<JoinHandle<()>> = LazyLock::new(|| thread("hsa-sim signals", work));
        let Some(function) = function else { return Status::INVALID_ARGUMENT };
        handlers().push(Handler { signal, how, compare, function, argument });
        THREAD.thread().unpark();
        Status::SUCCESS
    }
}
