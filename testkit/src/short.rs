//! Short reasons why a backend is not available.

use gpu_vmm_core::{Detail, Error};

/// Formats an error in a few words; `gpu-vmm info` shows it in full.
#[must_use]
pub fn short(error: &Error) -> String {
    match error.detail() {
        Detail::LibraryNotFound { what, .. } => format!("did not find {what}"),
        Detail::LibraryRefused { library, reason, .. } => format!("{library}: {reason}"),
        Detail::NoDevice { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
