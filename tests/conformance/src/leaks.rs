//! What cases leave behind below HIP, where the simulated HSA runtime counts it.

use crate::counts::Counts;
use gpu_vmm_core::{Backend, Vendor};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many imports there were. HIP's cases run one after the other.
static IMPORTS: AtomicUsize = AtomicUsize::new(0);

/// Notes that a case has imported memory, which HIP 6 never gives back.
pub(crate) fn counts_import() {
    IMPORTS.fetch_add(1, Ordering::Relaxed);
}

/// What is there before a case.
pub(crate) struct Before {
    counts: Option<Counts>,
    imports: usize,
}

impl Before {
    pub(crate) fn now() -> Self {
        Self { counts: Counts::now(), imports: IMPORTS.load(Ordering::Relaxed) }
    }

    /// Fails where a case of HIP's has left anything.
    pub(crate) fn check(&self, backend: &impl Backend) -> Result<(), String> {
        if backend.vendor() != Vendor::Hip {
            return Ok(());
        }
        let imports = IMPORTS.load(Ordering::Relaxed) - self.imports;
        Counts::check(self.counts, imports, |id| backend.quirks().iter().any(|quirk| quirk.id == id))
    }
}
