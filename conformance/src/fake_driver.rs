//! What the fake NVIDIA driver tells a test, where that is the library that is loaded: what is alive, and calls
//! that a careful program never makes.
#![allow(unsafe_code)] // asks the fake driver

use gpu_vmm_testkit::raw::loaded;

/// Reservations, handles, pieces of memory, mappings, plain allocations, contexts, streams, events, modules, graphs,
/// bindings to multicast objects, page-locked memory.
type Counts = [u64; 12];

/// The fake driver's tables at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FakeDriver {
    violations: u64,
    counts: Counts,
}

impl FakeDriver {
    /// `None` where NVIDIA's own driver is loaded, or none.
    pub(crate) fn now() -> Option<Self> {
        let cuda = loaded("libcuda.so.1")?;
        let mut counts = Counts::default();
        // SAFETY: the fake driver's functions of these names give a number, and write as many as there are here.
        let violations = unsafe {
            let count = cuda.get::<unsafe extern "C" fn(*mut Counts)>("fake_cuda_counts");
            count.ok()?(&raw mut counts);
            cuda.get::<unsafe extern "C" fn() -> u64>("fake_cuda_violations").ok()?()
        };
        Some(Self { violations, counts })
    }

    /// Fails where there were violations since `before`, the process's beginning if there was no driver then.
    pub(crate) fn check_violations(before: Option<Self>) -> Result<(), String> {
        let Some(now) = Self::now() else { return Ok(()) };
        match now.violations - before.map_or(0, |before| before.violations) {
            0 => Ok(()),
            count => Err(format!("{count} calls that gpu-vmm must not make; the fake driver says which")),
        }
    }

    /// Fails where something is left that was not there `before`, but for contexts and modules, which stay until the
    /// process ends.
    pub(crate) fn check_counts(before: Option<Self>) -> Result<(), String> {
        let (Some(before), Some(now)) = (before, Self::now()) else { return Ok(()) };
        let kept = |counts: Counts| [&counts[..5], &counts[6..8], &counts[9..]].concat();
        if kept(before.counts) == kept(now.counts) {
            Ok(())
        } else {
            Err(format!("left behind below CUDA: {:?} instead of {:?}", now.counts, before.counts))
        }
    }
}
