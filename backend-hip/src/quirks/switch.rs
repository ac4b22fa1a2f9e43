//! Whether a workaround is enabled: always, except in tests that show the behaviour without it.
//!
//! With the test-only feature `quirk-switch`, the environment variable `GPU_VMM_HIP_WITHOUT_QUIRK` names the quirks
//! whose workaround is disabled. [`Quirks::of`](super::Quirks::of) checks it for workarounds that depend on the
//! version, and each call site checks it for workarounds that apply to all versions.

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
