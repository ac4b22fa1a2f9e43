//! Why a backend cannot be had, in a few words.

use gpu_vmm_core::Error;

/// An error in a few words; `gpu-vmm info` has all of them.
#[must_use]
pub fn short(error: &Error) -> String {
    match error {
        Error::LibraryNotFound { what, .. } => format!("did not find {what}"),
        Error::LibraryRefused { library, reason, .. } => format!("{library}: {reason}"),
        Error::NoDevice { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
