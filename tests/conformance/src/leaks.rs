//! What cases leave behind below HIP, where the simulated HSA runtime counts it.

use crate::counts::Counts;
use gpu_vmm_core::{Backend, Vendor};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many imports there were. HIP's cases run one after the other.
static IMPORTS: AtomicUsize = AtomicUsize::new(0);

/// What was there before this process's first case.
static FIRST: OnceLock<Option<Counts>> = OnceLock::new();

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
        let counts = Counts::now();
        FIRST.get_or_init(|| counts);
        Self { counts, imports: IMPORTS.load(Ordering::Relaxed) }
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

/// Fails where addresses are reserved below HIP that were not before the first case. Nothing where nobody counts.
pub(crate) fn check_addresses() -> Option<Result<(), String>> {
    let first = FIRST.get().copied().flatten()?;
    Some(Counts::check_addresses(Some(first)))
}
