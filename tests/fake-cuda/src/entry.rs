//! `cuGetProcAddress`, by which NVIDIA's Python bindings and runtime library find all other functions.
//!
//! Documented: a function has one name and several forms, and the caller gets the newest form that its own version knows.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::Code;
use crate::settings::settings;
use crate::table::{FUNCTIONS, Function};
use crate::violation::refuse;
use std::ffi::{CStr, c_char};
use std::ptr::null;

/// Forms that the driver has and this library lacks, each with its version. Their parameters differ from those of the older form here,
/// which such a caller must not get.
const LACKING: [(&str, u32); 5] = [
    ("cuCtxCreate", 11_040),
    ("cuStreamGetCtx", 12_050),
    ("cuCtxGetDevice", 13_000),
    ("cuCtxSynchronize", 13_000),
    ("cuMulticastBindMem", 13_010),
];

/// `CU_GET_PROC_ADDRESS_DEFAULT` and `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, which mean the same.
const LEGACY_STREAM: u64 = 1;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_STREAM: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

/// Returns a function's name without the number of its form.
fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, number)) if number.parse::<u32>().is_ok() => base,
        _ => name,
    }
}

/// Returns the newest form of a function that a version has, and what the search found.
fn find(name: &str, version: u32) -> (*const (), u32) {
    let forms =
        || FUNCTIONS.iter().filter(|form| base(form.name) == name && form.since <= settings().version);
    let is_lacking = LACKING.iter().any(|(lacking, since)| *lacking == name && *since <= version);
    let found: Option<&Function> = forms().filter(|form| form.since <= version).max_by_key(|form| form.since);
    match found {
        Some(form) if !is_lacking => (form.address, FOUND),
        None if forms().next().is_some() => (null(), VERSION_NOT_SUFFICIENT),
        _ => (null(), NOT_FOUND),
    }
}

cuda! {
    /// Returns a function by its name, as a caller of a version knows it. An unknown one is null, and no error.
    fn cuGetProcAddress_v2(
        name: *const c_char,
        out: Out<'_, *const ()>,
        version: i32,
        flags: u64,
        status: Out<'_, u32>,
    ) {
        let out = given(out, "pfn")?;
        let name = given((!name.is_null()).then_some(name), "symbol")?;
        // SAFETY: the caller guarantees a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let (Ok(name), Ok(version)) = (name.to_str(), u32::try_from(version)) else {
            return Err(refuse(Code::INVALID_VALUE, format_args!("symbol {name:?}, version {version}")));
        };
        if flags == PER_THREAD_STREAM {
            return Err(Code::NOT_SUPPORTED);
        }
        if flags > LEGACY_STREAM {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        // A program asks for functions that only a later driver has.
        if version > settings().version {
            return Err(Code::INVALID_VALUE);
        }
        let (address, search) = find(name, version);
        out.write(address);
        status.map(|status| status.write(search));
        Ok(())
    }
}
