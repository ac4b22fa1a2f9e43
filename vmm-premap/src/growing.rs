//! A region that grows into premapped memory.

use crate::Premap;
use crate::guard::{Asks, RegionGuard};
use crate::shared::{Marks, Shared};
use crate::sync::Arc;
use crate::thread::{PremapThread, PremapWork, Registration};
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, Error, Growth, GrowthKind, OffsetRange, Operation, Region, Result,
    Shrunk, WaitFor,
};

/// A region whose next part a [`PremapThread`] maps in advance. Growth into that part changes only a number and calls no driver.
///
/// ```
/// # use gpu_vmm_core::{Bytes, WaitFor, Region};
/// # use gpu_vmm_premap::{Premap, PremapThread, GrowingRegion};
/// # fn main() -> Result<(), gpu_vmm_core::Error> {
/// # let backend = gpu_vmm_host::HostConfig::new().devices(1).memory(Bytes::mib(64)).open()?;
/// // One thread for all caches, with up to 32 MiB of premapped memory together.
/// let thread = PremapThread::start(Bytes::mib(32))?;
/// let region = Region::builder(&backend).reserve(Bytes::mib(64)).build()?;
/// let premap = Premap { by: Bytes::mib(16), step: Bytes::mib(4) };
/// let cache = GrowingRegion::new(region, premap, &thread);
/// for token in 1..=100 {
///     // Most of these steps find their memory mapped.
///     let grown = cache.grow_to(Bytes::kib(100 * token))?;
///     println!("at {} up to {}: {:?}", cache.address(), grown.growth.end, grown.outcome);
/// }
/// cache.lock()?.write(Bytes(0), b"all operations of a region")?;
/// // Premapped memory is released as well. None is mapped until the region grows again.
/// let shrunk = cache.shrink_to(Bytes::mib(1), WaitFor::all_devices())?;
/// println!("{} returned to the device", shrunk.removed);
/// # Ok(())
/// # }
/// ```
///
/// Several threads can use it at once. Dropping it waits for the step that the thread runs for it, and then drops the region. In
/// a forked child every call that would change it returns [`Detail::Forked`], and nothing waits.
#[derive(Debug)]
pub struct GrowingRegion<B: Backend> {
    /// Declared before the region, so that the thread no longer uses the region when it is dropped.
    registration: Registration,
    shared: Arc<Shared<B>>,
}

/// The result of a step of growth, and how its memory was mapped.
#[derive(Clone, Debug)]
pub struct PremapGrowth {
    /// The growth. Its end is the requested size rounded up to the granularity, although more may be mapped.
    pub growth: Growth,
    /// How the memory was mapped.
    pub outcome: PremapOutcome,
}

/// The way in which the memory of a step of growth was mapped.
#[derive(Clone, Debug)]
pub enum PremapOutcome {
    /// It was mapped: no driver was called.
    Ready,
    /// The call waited until the thread had mapped it, or until another thread released the region.
    Waited,
    /// The call mapped it itself. The error, if any, has stopped the thread since the last reported growth; the growth succeeded
    /// nevertheless.
    Not(Option<Error>),
}

impl<B: Backend> GrowingRegion<B> {
    /// Lets `thread` map memory for `region` in advance from now on. It does nothing while the region is suspended, and nothing at all
    /// for a [plain](Region::is_plain) region.
    #[must_use]
    pub fn new(region: Region<B>, premap: Premap, thread: &PremapThread) -> Self {
        let shared = Arc::new(Shared::new(region, premap, thread));
        let as_work: Arc<dyn PremapWork> = Arc::<Shared<B>>::clone(&shared);
        let registration = thread.register(Arc::downgrade(&as_work));
        registration.ask_now();
        Self { registration, shared }
    }

    /// Returns the first address. It changes only if the [locked](GrowingRegion::lock) region is moved, or if a
    /// [plain](Region::is_plain) region grows or shrinks.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.address()
    }

    /// Returns the end of the usable part. More memory may be mapped behind it. A suspended region keeps its end.
    #[must_use]
    pub fn end(&self) -> Bytes {
        self.shared.end()
    }

    /// Returns the size of the premapped memory, behind the end.
    #[must_use]
    pub fn premapped(&self) -> Bytes {
        self.shared.mapped() - self.shared.end()
    }

    /// Returns how far the region is premapped, rounded to its granularity.
    #[must_use]
    pub fn premap(&self) -> Premap {
        self.shared.premap()
    }

    /// Waits until neither the premap thread nor another thread uses the region, and locks it for all operations of a [`Region`].
    ///
    /// Growth beyond the end waits until the guard is dropped; a thread that has the guard would wait forever.
    ///
    /// If less than the growing region's end is mapped when the guard is dropped, the end moves down to the end of the mapped
    /// part.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child.
    pub fn lock(&self) -> Result<RegionGuard<'_, B>> {
        self.shared.process.check(Operation::LockRegion)?;
        Ok(RegionGuard::new(&self.shared, &self.registration))
    }

    /// Grows to at least `size` bytes at the same address, as [`Region::grow_to`] does: into premapped memory if that is enough.
    ///
    /// Otherwise the call waits for the memory that the thread is mapping, and maps the rest itself.
    ///
    /// # Errors
    ///
    /// Those of [`Region::grow_to`]; the region is as before. [`Detail::RollbackFailed`] if the thread has left a poisoned part:
    /// the first call reports it, and later growth continues behind that part.
    pub fn grow_to(&self, size: Bytes) -> Result<PremapGrowth> {
        self.shared.process.check(Operation::Grow)?;
        let target = self.shared.granularity.round_up(size).filter(|target| !target.is_zero());
        let outcome = target.and_then(|target| self.shared.take(target));
        let Some((before, marks)) = outcome else { return self.grow_slowly(size, target) };
        self.ask(&marks);
        Ok(self.grown(before, &marks, PremapOutcome::Ready))
    }

    /// Grows with the region locked.
    fn grow_slowly(&self, size: Bytes, target: Option<Bytes>) -> Result<PremapGrowth> {
        // Asks again when the region is unlocked.
        let _ask = Asks(&self.registration);
        let mut inside = self.shared.inside();
        if let Some((before, marks)) = target.and_then(|target| self.shared.take(target)) {
            return Ok(self.grown(before, &marks, PremapOutcome::Waited));
        }
        if std::mem::take(&mut inside.spoiled) {
            self.shared.settle(&inside);
            if let Some(error) = inside.failed.take() {
                return Err(error);
            }
        }
        let answer = inside.region.grow_to(size);
        self.shared.settle(&inside);
        let growth = answer?;
        let mut marks = self.shared.marks();
        let before = marks.end;
        marks.grows = true;
        let mapped = marks.mapped;
        // Another thread may have grown further into premapped memory meanwhile.
        let end = target.unwrap_or(growth.end).clamp(before, mapped);
        self.shared.set(&mut marks, end, mapped, Bytes::ZERO);
        let grown = self.grown(before, &marks, PremapOutcome::Not(inside.failed.take()));
        Ok(PremapGrowth { growth: Growth { how: growth.how, ..grown.growth }, ..grown })
    }

    fn grown(&self, before: Bytes, marks: &Marks, outcome: PremapOutcome) -> PremapGrowth {
        let (address, end) = (self.address(), marks.end);
        PremapGrowth {
            growth: Growth { how: GrowthKind::Within, address, end, added: end - before },
            outcome,
        }
    }

    /// Asks the thread for another step if the budget of this region has room for it: at once if less than half is left.
    fn ask(&self, marks: &Marks) {
        let Premap { by, step } = self.premap();
        let left = marks.mapped - marks.end;
        if left + step > by {
            return;
        }
        if left.0 < by.0 / 2 { self.registration.ask_now() } else { self.registration.ask() }
    }

    /// Releases memory from the end, down to `size` bytes, as [`Region::shrink_to`] does, and all premapped memory. No memory is
    /// mapped in advance until the region grows again.
    ///
    /// Handles are released as wholes. If `size` lies inside a handle that stays, the end is still `size`, rounded up to the
    /// granularity, and later growth uses the rest of that handle.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for a size larger than the region's end; the errors of waiting and of the driver. The region is as
    /// before.
    pub fn shrink_to(&self, size: Bytes, done: WaitFor<'_>) -> Result<Shrunk> {
        let operation = Operation::Shrink;
        let mut region = self.lock()?;
        let end = self.end();
        if size > end {
            return Err(Error::new(
                operation,
                Detail::OutOfRange { range: OffsetRange { offset: Bytes::ZERO, length: size }, limit: end },
            ));
        }
        let removed = region.shrink_to(size, done)?.removed;
        let end = self.shared.granularity.round_up(size).unwrap_or(end).min(end);
        let mut marks = self.shared.marks();
        marks.grows = false;
        let mapped = marks.mapped;
        self.shared.set(&mut marks, end, mapped, Bytes::ZERO);
        Ok(Shrunk { end, removed })
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle))))]
mod tests;
