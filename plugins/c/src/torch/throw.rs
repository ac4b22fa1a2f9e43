//! An error as a C++ exception.
//!
//! Who calls the allocator of the whole process has no other way to be told: PyTorch takes null for memory.

use crate::status::{Failure, keep};
use std::ffi::{CString, c_char, c_void};

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// Throws a std::runtime_error with the text; gives null where the process has no C++ library, so that nobody could catch it.
pub(super) fn throw(failure: Failure) -> *mut c_void {
    let text = CString::new(failure.text.replace('\0', "")).unwrap_or_default();
    keep(failure);
    match thrower() {
        // SAFETY: it takes a string, of which it makes a copy, and leaves by an exception of C++, for which the callers up to
        // PyTorch have the ABI "C-unwind".
        Some(throw) => unsafe { throw(text.as_ptr()) },
        None => std::ptr::null_mut(),
    }
}

/// `std::__throw_runtime_error(char const*)` of the C++ library that is loaded already.
#[cfg(unix)]
fn thrower() -> Option<Throw> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: with RTLD_NOLOAD nothing is loaded, so nothing is run.
    let library = unsafe { Library::open(Some("libstdc++.so.6"), flags) };
    let library = std::mem::ManuallyDrop::new(library.ok()?);
    // SAFETY: the C++ library has had this function, with this type, since its first version with this name.
    unsafe { library.get::<Throw>(b"_ZSt21__throw_runtime_errorPKc\0") }.ok().map(|found| *found)
}

#[cfg(not(unix))]
fn thrower() -> Option<Throw> {
    None
}
