//! The shared objects that the process has loaded.
#![allow(unsafe_code)] // asks the loader

use libc::{c_int, c_void, dl_phdr_info};
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Returns the names under which the loader knows the objects: paths for libraries that it has found itself.
pub(crate) fn loaded() -> Vec<OsString> {
    /// Adds an object's name to the list.
    unsafe extern "C" fn add(object: *mut dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader passes an object, and the list below.
        let (name, names) = unsafe { ((*object).dlpi_name, &mut *names.cast::<Vec<OsString>>()) };
        if !name.is_null() {
            // SAFETY: not null, and the loader's names end with a zero byte.
            let name = unsafe { CStr::from_ptr(name) };
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        }
        0
    }
    let mut names: Vec<OsString> = Vec::new();
    // SAFETY: the function does not unwind, and the list outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut names).cast()) };
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_objects_have_their_paths() {
        let names = loaded();
        assert!(names.iter().any(|name| name.to_string_lossy().contains("/libc.so")), "{names:?}");
    }
}
