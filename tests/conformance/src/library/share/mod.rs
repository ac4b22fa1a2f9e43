//! Memory as a file descriptor, in one process and in several.
//!
//! | file | subject |
//! |---|---|
//! | `descriptors` | export and import, and what can be wrong with a descriptor |
//! | `processes` | the same memory in two processes and three, and what is left when one ends |

mod descriptors;
mod processes;

use crate::case::Case;
use gpu_vmm_core::Workbench;

/// The cases of this group.
pub(crate) fn cases<B: Workbench>() -> Vec<Case<B>> {
    [descriptors::cases(), processes::cases()].concat()
}
