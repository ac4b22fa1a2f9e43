//! The frame of every function: whether the driver can be called at all, configured failures, the trace.
#![allow(unsafe_code)] // handlers of the C library

use crate::code::{Answer, Code};
use crate::settings::settings;
use crate::table::FUNCTIONS;
use crate::violation::{CALL, refuse, say, stop};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Defines functions of the driver: exported under their C names, and passed through [`run`].
macro_rules! cuda {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As in `cuda.h`: each pointer is null, or valid for the function's reads and writes.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $crate::code::Code {
            const CALL: usize = $crate::table::index(stringify!($name));
            $crate::call::run(CALL, || $body)
        }
    )* };
}

/// The functions that can be called before the driver is started, and in a forked child. There `cuInit` fails.
const UNSTARTED: [&str; 5] =
    ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress_v2"];

/// The state of the driver: not started, started, ended by the process's exit, or forked from a started parent.
static LIFE: AtomicU8 = AtomicU8::new(UNBORN);
const UNBORN: u8 = 0;
const ALIVE: u8 = 1;
const ENDED: u8 = 2;
const FORKED: u8 = 3;

static COUNTS: [AtomicU64; FUNCTIONS.len()] = [const { AtomicU64::new(0) }; FUNCTIONS.len()];

/// Runs a function's work if the driver can be called.
pub(crate) fn run(call: usize, work: impl FnOnce() -> Answer) -> Code {
    let name = FUNCTIONS[call].name;
    CALL.set(name);
    let asked_for = failure(call);
    let state = match LIFE.load(SeqCst) {
        // Every function, those for the version and the names of errors included.
        ENDED => Err(Code::DEINITIALIZED),
        _ if UNSTARTED.contains(&name) => Ok(()),
        _ => state(),
    };
    let answer = state.and(asked_for).and_then(|()| work());
    let code = answer.err().unwrap_or(Code::SUCCESS);
    if settings().trace {
        say(format_args!("{name} = {}", code.0));
    }
    code
}

fn state() -> Answer {
    match LIFE.load(SeqCst) {
        ALIVE => Ok(()),
        FORKED => Err(refuse(Code::NOT_INITIALIZED, format_args!("called in a forked child"))),
        _ => Err(refuse(Code::NOT_INITIALIZED, format_args!("called before cuInit"))),
    }
}

/// Returns the failure that `FAKE_CUDA_FAIL` configures.
fn failure(call: usize) -> Answer {
    let number = COUNTS[call].fetch_add(1, Relaxed) + 1;
    let failures = &settings().failures;
    match failures.iter().find(|failure| failure.call == call && failure.times.contains(number)) {
        Some(failure) => Err(failure.code),
        None => Ok(()),
    }
}

/// Starts the driver, as `cuInit` does.
pub(crate) fn start() -> Answer {
    extern "C" fn at_exit() {
        let _ = LIFE.compare_exchange(ALIVE, ENDED, SeqCst, SeqCst);
    }
    extern "C" fn in_child() {
        LIFE.store(FORKED, SeqCst);
    }
    match LIFE.compare_exchange(UNBORN, ALIVE, SeqCst, SeqCst) {
        // SAFETY: both handlers only store a number; like the real one, this library is never unloaded.
        Ok(_) => unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
            Ok(())
        },
        Err(ALIVE) => Ok(()),
        // It was measured that NVIDIA's driver crashes there.
        Err(FORKED) if settings().gpus == 0 => {
            stop(format_args!("cuInit in a child of a process without a device"))
        }
        // In a forked child this is no violation: a library that did not fork cannot know it otherwise.
        Err(_) => Err(Code::NOT_INITIALIZED),
    }
}
