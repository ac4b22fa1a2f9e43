//! Calls that a careful program never makes: wrong arguments, what the documentation calls undefined, and what the real
//! driver is known to accept against its documentation. Each is told on the error stream and counted.
#![allow(unsafe_code)] // asked by C

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

/// One line on the error stream; a program that has closed it is not stopped by that.
pub(crate) fn say(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "fake-cuda: {text}");
}

/// Ends the process: something was asked for that cannot be done here, and doing nothing would be a lie.
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

/// Records a violation that is answered with an error.
pub(crate) fn refuse(code: Code, what: Arguments<'_>) -> Code {
    note(what);
    code
}

/// How many there were in this process.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_violations() -> u64 {
    COUNT.load(Relaxed)
}
