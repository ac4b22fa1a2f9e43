//! rocTX, by which AMD's profilers receive ranges: a library that a profiler loads with the program, or that lies beside it.
#![allow(unsafe_code)]

use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The libraries that have rocTX: the one of rocprofv3, and the older one of rocprof.
const NAMES: [&str; 2] = ["librocprofiler-sdk-roctx.so.1", "libroctx64.so.4"];

/// The functions of rocTX. Without a profiler they do nothing.
#[derive(Debug)]
pub(super) struct Roctx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// Returns the functions, or `None` if no library has them.
pub(super) fn attached() -> Option<&'static Roctx> {
    static ROCTX: OnceLock<Option<Roctx>> = OnceLock::new();
    ROCTX.get_or_init(load).as_ref()
}

fn load() -> Option<Roctx> {
    // The functions of a library that is loaded already come first: it is the one that a profiler listens to.
    // SAFETY: the initializers of AMD's library have no condition.
    let others = NAMES.iter().filter_map(|name| unsafe { Library::new(*name) }.ok());
    std::iter::once(Library::this()).chain(others).find_map(|library| {
        // SAFETY: both names belong to rocTX alone, and the types are from its header.
        let found = unsafe {
            Some(Roctx {
                push: *library.get(b"roctxRangePushA").ok()?,
                pop: *library.get(b"roctxRangePop").ok()?,
            })
        };
        // The functions are called as long as the process lives.
        std::mem::forget(library);
        found
    })
}

impl Roctx {
    pub(super) fn push(&self, name: &CStr) {
        // SAFETY: the name ends with a zero, and rocTX copies it.
        unsafe { (self.push)(name.as_ptr()) };
    }

    pub(super) fn pop(&self) {
        // SAFETY: this thread has begun a range.
        unsafe { (self.pop)() };
    }
}
