//! What a case leaves behind below a driver that counts its objects: the simulated HSA runtime below HIP, and the fake NVIDIA
//! driver, which also counts wrong calls.

use crate::counts::Counts;
use crate::fake_driver::FakeDriver;
use crate::subject::Subject;
use gpu_vmm_core::{Backend, Bytes, Vendor};
use gpu_vmm_testkit::TestKit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a case may run with a change of free memory before the case itself is at fault. Other processes use the
/// device's memory too, and one of them would have to make the same change each time.
pub(crate) const TRIES: u32 = 3;

/// How long a driver may take to release the memory of a destroyed object.
const RELEASED_WITHIN: Duration = Duration::from_millis(250);

/// Waits until as much memory is free as before the case, and returns the free memory of each device.
///
/// HIP 7 releases the arguments of a graph in a thread of its own, after the call that destroys the graph has returned. On a busy
/// machine the next case has begun by then.
pub(crate) fn free_again<B: TestKit>(subject: &Subject<B>, before: &[Bytes]) -> Vec<Bytes> {
    let until = Instant::now() + RELEASED_WITHIN;
    loop {
        let free = subject.free();
        if free == before || Instant::now() >= until {
            return free;
        }
        sleep(Duration::from_millis(1));
    }
}

/// The number of imports. HIP's cases run one after the other.
static IMPORTS: AtomicUsize = AtomicUsize::new(0);

/// The counts before this process's first case.
static FIRST: OnceLock<Option<Counts>> = OnceLock::new();

/// Notes that a case has imported memory, which HIP 6 never releases.
pub(crate) fn counts_import() {
    IMPORTS.fetch_add(1, Ordering::Relaxed);
}

/// The counts before a case.
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

    /// Fails if the case made calls that the driver forbids.
    pub(crate) fn check_calls(&self) -> Result<(), String> {
        FakeDriver::check_violations(self.fake_driver)
    }

    /// Fails if a case on a GPU has left objects behind.
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

/// Fails if addresses are reserved below HIP that were not reserved before the first case. Returns `None` if no driver counts
/// them.
pub(crate) fn check_addresses() -> Option<Result<(), String>> {
    let first = FIRST.get().copied().flatten()?;
    Some(Counts::check_addresses(Some(first)))
}
