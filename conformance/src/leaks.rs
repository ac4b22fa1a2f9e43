//! What cases leave behind below a driver that counts it: below HIP the simulated HSA runtime, and the fake NVIDIA
//! driver, which also counts the calls that are wrong.

use crate::counts::Counts;
use crate::fake_driver::FakeDriver;
use gpu_vmm_core::{Backend, Vendor};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often free memory may be other than it should before that is a case's own doing: other processes use a device's
/// memory too, and one of them would have to do the same each time.
pub(crate) const TRIES: u32 = 3;

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
    fake_driver: Option<FakeDriver>,
}

impl Before {
    pub(crate) fn now() -> Self {
        let (counts, imports) = (Counts::now(), IMPORTS.load(Ordering::Relaxed));
        FIRST.get_or_init(|| counts);
        Self { counts, imports, fake_driver: FakeDriver::now() }
    }

    /// Fails where the driver was called wrongly.
    pub(crate) fn check_calls(&self) -> Result<(), String> {
        FakeDriver::check_violations(self.fake_driver)
    }

    /// Fails where a case of a GPU's has left anything.
    pub(crate) fn check(&self, backend: &impl Backend) -> Result<(), String> {
        match backend.vendor() {
            Vendor::Hip => self.check_hip(backend),
            Vendor::Cuda => FakeDriver::check_counts(self.fake_driver),
            _ => Ok(()),
        }
    }

    fn check_hip(&self, backend: &impl Backend) -> Result<(), String> {
        let imports = IMPORTS.load(Ordering::Relaxed) - self.imports;
        Counts::check(self.counts, imports, |id| backend.quirks().iter().any(|quirk| quirk.id == id))
    }
}

/// Fails where addresses are reserved below HIP that were not before the first case. Nothing where nobody counts.
pub(crate) fn check_addresses() -> Option<Result<(), String>> {
    let first = FIRST.get().copied().flatten()?;
    Some(Counts::check_addresses(Some(first)))
}
