//! Whether a quirk's handling is in use: always, but for tests that show what would come without it.
//!
//! With the feature `quirk-switch`, which is for tests alone, the environment variable `GPU_VMM_HIP_WITHOUT_QUIRK` names
//! the quirks whose handling is left out. It is asked in two places: where what a version needs is put together, and where
//! something is done for all versions alike.

#[cfg(not(feature = "quirk-switch"))]
pub(crate) const fn handles(_id: &str) -> bool {
    true
}

#[cfg(feature = "quirk-switch")]
pub(crate) fn handles(id: &str) -> bool {
    use std::sync::LazyLock;
    static LEFT_OUT: LazyLock<String> =
        LazyLock::new(|| std::env::var("GPU_VMM_HIP_WITHOUT_QUIRK").unwrap_or_default());
    debug_assert!(super::LIST.iter().any(|quirk| quirk.id == id), "{id} is no quirk");
    !LEFT_OUT.split(',').any(|left_out| left_out == id)
}
