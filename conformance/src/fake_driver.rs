//! What the fake NVIDIA driver reports to a test if it is the loaded library: the objects that are alive, and the number of
//! calls that a correct program never makes.
#![allow(unsafe_code)] // calls the fake driver

use gpu_vmm_testkit::raw::loaded;

/// Numbers of reservations, handles, allocations of physical memory, mappings, plain allocations, contexts, streams, events,
/// modules, graphs, bindings to multicast objects, and page-locked allocations.
type Counts = [u64; 12];

/// The fake driver's tables at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FakeDriver {
    violations: u64,
    counts: Counts,
}

impl FakeDriver {
    /// Returns `None` if NVIDIA's own driver is loaded, or no driver.
    pub(crate) fn now() -> Option<Self> {
        let cuda = loaded("libcuda.so.1")?;
        let mut counts = Counts::default();
        // SAFETY: the fake driver's functions of these names return a number, and write the counts of this array.
        let violations = unsafe {
            let count = cuda.get::<unsafe extern "C" fn(*mut Counts)>("fake_cuda_counts");
            count.ok()?(&raw mut counts);
            cuda.get::<unsafe extern "C" fn() -> u64>("fake_cuda_violations").ok()?()
        };
        Some(Self { violations, counts })
    }

    /// Fails if violations occurred since `before`, or since the process began if `before` is `None`.
    pub(crate) fn check_violations(before: Option<Self>) -> Result<(), String> {
        let Some(now) = Self::now() else { return Ok(()) };
        match now.violations - before.map_or(0, |before| before.violations) {
            0 => Ok(()),
            count => Err(format!("{count} calls that gpu-vmm must not make; the fake driver says which")),
        }
    }

    /// Fails if an object is left that did not exist `before`. Contexts and modules are not counted: they stay until the
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
