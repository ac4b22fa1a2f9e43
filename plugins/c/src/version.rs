//! The version of the library: as numbers in the header, and as a text at run time.
//!
//! Uses unsafe code: it exports a function under a fixed name.
#![allow(unsafe_code)]

use std::ffi::c_char;

/// The major version of the header.
pub const GPU_VMM_VERSION_MAJOR: u32 = 0;
/// The minor version of the header.
pub const GPU_VMM_VERSION_MINOR: u32 = 1;
/// The patch version of the header.
pub const GPU_VMM_VERSION_PATCH: u32 = 0;

/// Reads a part of Cargo's version.
const fn number(text: &str) -> u32 {
    let (digits, mut at, mut number) = (text.as_bytes(), 0, 0);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    number
}

// The header's numbers are literals, because cbindgen does not evaluate them.
const _: () = {
    assert!(GPU_VMM_VERSION_MAJOR == number(env!("CARGO_PKG_VERSION_MAJOR")));
    assert!(GPU_VMM_VERSION_MINOR == number(env!("CARGO_PKG_VERSION_MINOR")));
    assert!(GPU_VMM_VERSION_PATCH == number(env!("CARGO_PKG_VERSION_PATCH")));
};

/// Returns the library's version, such as "0.1.0". The string is static. GPU_VMM_VERSION_MAJOR, GPU_VMM_VERSION_MINOR and
/// GPU_VMM_VERSION_PATCH are the header's version.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
