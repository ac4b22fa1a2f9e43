//! Calls that a careful program never makes: wrong arguments, calls that the documentation calls undefined, and calls that
//! the real driver accepts against its documentation. Each is reported on standard error and counted.
#![allow(unsafe_code)] // exported to C

use crate::code::Code;
use crate::settings::settings;
use std::cell::Cell;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The function that the thread is in.
    pub(crate) static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Prints one line to standard error. A closed standard error is ignored.
pub(crate) fn say(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "fake-cuda: {text}");
}

/// Ends the process: doing nothing for an unsupported call would hide the error.
pub(crate) fn stop(why: Arguments<'_>) -> ! {
    say(why);
    std::process::abort()
}

/// Records a violation by the function that the thread is in.
pub(crate) fn note(what: Arguments<'_>) {
    COUNT.fetch_add(1, Relaxed);
    say(format_args!("VIOLATION: {}: {what}", CALL.get()));
    if settings().abort_on_violation {
        std::process::abort();
    }
}

/// Records a violation that returns an error.
pub(crate) fn refuse(code: Code, what: Arguments<'_>) -> Code {
    note(what);
    code
}

/// Returns the number of violations in this process.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_violations() -> u64 {
    COUNT.load(Relaxed)
}
