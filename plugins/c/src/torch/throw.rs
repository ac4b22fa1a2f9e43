//! Errors as C++ exceptions.
//!
//! PyTorch treats a null return of its whole allocator as valid memory, so failures are reported as C++ exceptions.

use crate::status::{Failure, keep};
use std::ffi::{CString, c_char, c_void};

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// Throws a std::runtime_error with the text. Returns null if the process has not loaded GNU's C++ library, in which case no
/// caller could catch the exception.
pub(super) fn throw(failure: Failure) -> *mut c_void {
    let text = CString::new(failure.text.replace('\0', "")).unwrap_or_default();
    keep(failure);
    match thrower() {
        // SAFETY: the function copies the string and throws; all callers up to PyTorch have the ABI "C-unwind".
        Some(throw) => unsafe { throw(text.as_ptr()) },
        None => std::ptr::null_mut(),
    }
}

/// Finds `std::__throw_runtime_error(char const*)` in the C++ library, if the process has loaded that.
#[cfg(unix)]
fn thrower() -> Option<Throw> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: RTLD_NOLOAD loads nothing, so no initializer runs.
    let library = unsafe { Library::open(Some("libstdc++.so.6"), flags) };
    let library = std::mem::ManuallyDrop::new(library.ok()?);
    // SAFETY: every version of libstdc++.so.6 has this function with this type.
    unsafe { library.get::<Throw>(b"_ZSt21__throw_runtime_errorPKc\0") }.ok().map(|found| *found)
}

#[cfg(not(unix))]
fn thrower() -> Option<Throw> {
    None
}
