//! Libraries that this process has loaded.

pub use libloading::os::unix::Library;
use libloading::os::unix::RTLD_LAZY;

/// Returns a library that this process has loaded: `libcuda.so.1`, or a path. `None` if it is not loaded; nothing is
/// loaded.
pub fn loaded(name: &str) -> Option<Library> {
    // SAFETY: RTLD_NOLOAD loads nothing, so no code runs.
    unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()
}

/// Looks up a function that every version has.
pub(crate) fn required<F: Copy>(library: &Library, symbol: &str) -> Result<F, String> {
    // SAFETY: the caller names the function's type; the library is never closed.
    unsafe { library.get::<F>(symbol) }.map(|found| *found).map_err(|_| format!("there is no {symbol}"))
}
