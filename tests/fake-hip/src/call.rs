//! The frame of every function: the tables, the calling thread's device, and its last error.

use crate::c::{Answer, HipError};
use crate::settings::{SETTINGS, bucket};
use crate::state::{STATE, State};
use std::cell::Cell;
use std::sync::PoisonError;

thread_local! {
    pub(crate) static LAST_ERROR: Cell<HipError> = const { Cell::new(HipError::SUCCESS) };
    pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the calling thread's device.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Runs a HIP function's work on the tables, and stores its failure as the version does.
pub(crate) fn call(work: impl FnOnce(&mut State) -> Answer) -> HipError {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let code = work(&mut state).err().unwrap_or(HipError::SUCCESS);
    if code != HipError::SUCCESS || !bucket().errors_stick {
        LAST_ERROR.set(code);
    }
    code
}

/// Runs the work of a HIP function by its name, which may be set to fail, to be refused, or to do nothing.
pub(crate) fn call_named(name: &str, work: impl FnOnce(&mut State) -> Answer) -> HipError {
    let fails = if SETTINGS.fails.contains(name) { Err(HipError::UNKNOWN) } else { Ok(()) };
    call(|state| match state.refusal(name) {
        Some(code) => Err(code),
        None if SETTINGS.does_nothing.contains(name) => Ok(()),
        None => work(state).and(fails),
    })
}

/// Defines a function with its C name, its work on the tables, and its result.
macro_rules! hip {
    ($name:ident, |$state:pat_param $(, $argument:ident: $type:ty)*| $body:expr) => {
        /// # Safety
        ///
        /// As in HIP's headers.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $crate::c::HipError {
            $crate::call::call_named(stringify!($name), |$state| $body)
        }
    };
}
