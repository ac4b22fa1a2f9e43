//! A region that grows into what is mapped already, as its user sees it.

use crate::Premap;
use crate::guard::{Asks, RegionGuard};
use crate::shared::{Marks, Shared};
use crate::thread::{PremapThread, PremapWork, Registration};
use gpu_vmm_core::{
    Address, Backend, Bytes, Detail, Error, Growth, GrowthKind, OffsetRange, Operation, Region, Result,
    Shrunk, WaitFor,
};
use gpu_vmm_sync::Arc;

/// A region whose next part a [`PremapThread`] maps before it is asked for: growth into that part moves a number and calls
/// no driver.
///
/// ```
/// # use gpu_vmm_core::{Bytes, WaitFor, Region};
/// # use gpu_vmm_premap::{Premap, PremapThread, GrowingRegion};
/// # fn main() -> Result<(), gpu_vmm_core::Error> {
/// # let backend = gpu_vmm_host::HostConfig::new().devices(1).memory(Bytes::mib(64)).open()?;
/// // One thread for all caches, which may have 32 MiB mapped ahead between them.
/// let thread = PremapThread::start(Bytes::mib(32))?;
/// let region = Region::builder(&backend).reserve(Bytes::mib(64)).build()?;
/// let premap = Premap { by: Bytes::mib(16), step: Bytes::mib(4) };
/// let cache = GrowingRegion::new(region, premap, &thread);
/// for token in 1..=100 {
///     // Most of these find their memory mapped.
///     let grown = cache.grow_to(Bytes::kib(100 * token))?;
///     println!("at {} up to {}: {:?}", cache.address(), grown.growth.end, grown.outcome);
/// }
/// cache.lock()?.write(Bytes(0), b"everything that a region can")?;
/// // What was mapped ahead goes back as well, and nothing is until it grows again.
/// cache.shrink_to(Bytes::mib(1), WaitFor::all_devices())?;
/// # Ok(())
/// # }
/// ```
///
/// It can be used from several threads at once. Dropping it waits for the step that the thread is at with it, and drops
/// the region. In a process that was forked every call that would change it is an error ([`Detail::Forked`]), and nothing
/// waits.
#[derive(Debug)]
pub struct GrowingRegion<B: Backend> {
    /// Before the region, so that the thread is done with it when it is dropped.
    registration: Registration,
    shared: Arc<Shared<B>>,
}

/// What a step of growth did, and who had mapped the memory.
#[derive(Clone, Debug)]
pub struct PremapGrowth {
    /// What it did: the end is what was asked for, rounded up to the granularity, though more may be mapped.
    pub growth: Growth,
    /// Who had mapped it.
    pub outcome: PremapOutcome,
}

/// Who has mapped the memory that a region has grown by.
#[derive(Clone, Debug)]
pub enum PremapOutcome {
    /// It was mapped: no driver was called.
    Ready,
    /// The thread was mapping it, or somebody had the region, and the call waited for that.
    Waited,
    /// The call itself has mapped it. With what has stopped the thread since the last step of growth that was told, where
    /// something has: the growth succeeded all the same.
    Not(Option<Error>),
}

impl<B: Backend> GrowingRegion<B> {
    /// Lets `thread` map `region` ahead, from now on. Where a region is suspended, nothing is done until it is resumed.
    #[must_use]
    pub fn new(region: Region<B>, premap: Premap, thread: &PremapThread) -> Self {
        let shared = Arc::new(Shared::new(region, premap, thread));
        let as_work: Arc<dyn PremapWork> = Arc::<Shared<B>>::clone(&shared);
        let registration = thread.register(Arc::downgrade(&as_work));
        registration.ask_now();
        Self { registration, shared }
    }

    /// The first address. It changes where the [locked](GrowingRegion::lock) region is moved, and nowhere else.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.address()
    }

    /// Where the part ends that may be used. More may be mapped; a suspended region keeps its end.
    #[must_use]
    pub fn end(&self) -> Bytes {
        self.shared.end()
    }

    /// How much is mapped behind the end.
    #[must_use]
    pub fn premapped(&self) -> Bytes {
        self.shared.mapped() - self.shared.end()
    }

    /// How far it is mapped ahead, rounded to the region's granularity.
    #[must_use]
    pub fn premap(&self) -> Premap {
        self.shared.premap()
    }

    /// Waits until neither the thread nor anybody else works on the region, and gives it, for reading, writing, and all
    /// else. Until the guard is dropped, growth beyond the end waits. Of the same thread it would wait for ever.
    ///
    /// Where the guard leaves less mapped than the growing region has, its end is there.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a forked child.
    pub fn lock(&self) -> Result<RegionGuard<'_, B>> {
        self.shared.process.check(Operation::LockRegion)?;
        Ok(RegionGuard::new(&self.shared, &self.registration))
    }

    /// Grows to at least `size` bytes at the same address: as [`Region::grow_to`], into memory that is mapped already
    /// where that is enough. Else it waits for what the thread is mapping, and maps what is still missing itself.
    ///
    /// # Errors
    ///
    /// Those of [`Region::grow_to`]: the region is as before. [`Detail::RollbackFailed`] where the thread has left something
    /// behind that is out of use: it is told once, and growth goes on behind that.
    pub fn grow_to(&self, size: Bytes) -> Result<PremapGrowth> {
        self.shared.process.check(Operation::Grow)?;
        let target = self.shared.granularity.round_up(size).filter(|target| !target.is_zero());
        let outcome = target.and_then(|target| self.shared.take(target));
        let Some((before, marks)) = outcome else { return self.grow_slowly(size, target) };
        self.ask(&marks);
        Ok(self.grown(before, &marks, PremapOutcome::Ready))
    }

    /// With the region locked.
    fn grow_slowly(&self, size: Bytes, target: Option<Bytes>) -> Result<PremapGrowth> {
        // When the region is free again.
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
        // Somebody may have grown further meanwhile, into what was mapped.
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

    /// Asks for more, if a step of it has room: at once where less than half is left.
    fn ask(&self, marks: &Marks) {
        let Premap { by, step } = self.premap();
        let left = marks.mapped - marks.end;
        if left + step > by {
            return;
        }
        if left.0 < by.0 / 2 { self.registration.ask_now() } else { self.registration.ask() }
    }

    /// Gives memory back from the end, down to `size` bytes, as [`Region::shrink_to`], and all that is mapped ahead. Then
    /// nothing is mapped ahead until the region grows again.
    ///
    /// Handles are given back whole. Where `size` falls into one that stays, the end is at `size` all the same, rounded up
    /// to the granularity, and the region grows into the rest of it again.
    ///
    /// # Errors
    ///
    /// [`Detail::OutOfRange`] for more than the region has; what waiting or the driver answers. The region is as before.
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
