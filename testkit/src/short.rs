//! Why a backend cannot be had, in a few words.

use gpu_vmm_core::{Detail, Error};

/// An error in a few words; `gpu-vmm info` has all of them.
#[must_use]
pub fn short(error: &Error) -> String {
    match error.detail() {
        Detail::LibraryNotFound { what, .. } => format!("did not find {what}"),
        Detail::LibraryRefused { library, reason, .. } => format!("{library}: {reason}"),
        Detail::NoDevice { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
