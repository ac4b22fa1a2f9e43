//! A driver lacks the functions of later versions. When this library is loaded, it removes the functions that are newer than
//! `FAKE_CUDA_VERSION` from its table of symbols, so that `dlsym` does not find them.
#![allow(unsafe_code)] // runs when the library is loaded, and changes the loader's table

use crate::settings;
use crate::table::FUNCTIONS;
use crate::violation::stop;
use rustix::mm::{MprotectFlags, mprotect};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// The ELF symbol that `dladdr1` finds for an address.
const RTLD_DL_SYMENT: libc::c_int = 1;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = take_out;

extern "C" fn take_out() {
    // An invalid value is reported when all settings are read.
    let asked = std::env::var("FAKE_CUDA_VERSION").ok();
    let Some(version) = asked.and_then(|text| settings::version(text.trim()).ok()) else { return };
    for function in FUNCTIONS.iter().filter(|function| function.since > version) {
        // A program with this library linked in, such as the tests of this package, has no symbols to remove.
        if let Some(symbol) = symbol(function.address.cast(), function.name) {
            hide(symbol);
        }
    }
}

/// Returns the entry of a function in this library's table of symbols.
fn symbol(address: *const c_void, name: &str) -> Option<*mut libc::Elf64_Sym> {
    // SAFETY: pointers and integers, for which zero is valid.
    let mut information: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut symbol: *mut c_void = null_mut();
    // SAFETY: both pointers are valid for the call's writes.
    let found = unsafe { libc::dladdr1(address, &raw mut information, &raw mut symbol, RTLD_DL_SYMENT) } != 0;
    if !found || symbol.is_null() || information.dli_sname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, not null.
    let is_named = unsafe { CStr::from_ptr(information.dli_sname) }.to_bytes() == name.as_bytes();
    is_named.then_some(symbol.cast())
}

/// Makes an entry undefined, so that the loader skips it.
fn hide(symbol: *mut libc::Elf64_Sym) {
    const PAGE: usize = 4096;
    let first = symbol.addr() & !(PAGE - 1);
    let length = (symbol.addr() + size_of::<libc::Elf64_Sym>()).next_multiple_of(PAGE) - first;
    let pages = symbol.with_addr(first).cast();
    // SAFETY: the pages are this library's own, and private to the process. Only the loader reads them, which is busy loading
    // this library.
    let done = unsafe {
        mprotect(pages, length, MprotectFlags::READ | MprotectFlags::WRITE).and_then(|()| {
            (*symbol).st_value = 0;
            (*symbol).st_shndx = 0;
            mprotect(pages, length, MprotectFlags::READ)
        })
    };
    if let Err(error) = done {
        stop(format_args!("a symbol cannot be hidden: {error}"));
    }
}
