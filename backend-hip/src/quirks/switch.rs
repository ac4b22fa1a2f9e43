//! Whether a quirk's handling is in use: always, but for tests that show what would come without it.
//!
//! With the feature `quirk-switch`, which is for tests alone, the environment variable `GPU_VMM_HIP_WITHOUT_QUIRK` names
//! the quirks whose handling is left out. It is asked in two places: where what a version needs is put together, and where
//! something is done for all versions alike.

use gpu_vmm_core::Quirk;

#[cfg(not(feature = "quirk-switch"))]
pub(crate) const fn workaround_enabled(_quirk: &Quirk) -> bool {
    true
}

#[cfg(feature = "quirk-switch")]
pub(crate) fn workaround_enabled(quirk: &Quirk) -> bool {
    use std::sync::LazyLock;
    static LEFT_OUT: LazyLock<String> =
        LazyLock::new(|| std::env::var("GPU_VMM_HIP_WITHOUT_QUIRK").unwrap_or_default());
    !LEFT_OUT.split(',').any(|left_out| left_out == quirk.id)
}
