//! What a growing region's user and the thread have in common: the region, and where its parts end.
//!
//! The region is locked for as long as a driver works on it. Where the parts end has a lock of its own, held for some
//! nanoseconds and never while another is waited for, so that growing into what is mapped waits for nothing.

use crate::budget::Budget;
use crate::thread::{PremapThread, PremapWork, Step};
use crate::{Premap, lock};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Address, Backend, Bytes, Error, Granularity, Region, RegionState};
use gpu_vmm_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gpu_vmm_sync::{Mutex, MutexGuard, TryLockError};

/// A region with its thread.
#[derive(Debug)]
pub(crate) struct Shared<B: Backend> {
    inside: Mutex<Inside<B>>,
    marks: Mutex<Marks>,
    /// How many wait for the region, before whom the thread steps back.
    waiting: AtomicUsize,
    /// Copies for those who only look, of whom there may be some in a forked child.
    address: AtomicU64,
    end: AtomicU64,
    mapped: AtomicU64,
    premap: Premap,
    pub(crate) granularity: Granularity,
    /// Keeps the budget.
    thread: PremapThread,
    pub(crate) process: Process,
}

/// What is locked while a driver is called.
#[derive(Debug)]
pub(crate) struct Inside<B: Backend> {
    pub(crate) region: Region<B>,
    /// What last stopped the thread, until somebody is told.
    pub(crate) failed: Option<Error>,
    /// Whether the thread has left something behind where undoing failed, of which nobody has been told.
    pub(crate) spoiled: bool,
}

/// Where the parts end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// What the user has.
    pub(crate) end: Bytes,
    /// What is mapped and can be given to the user.
    pub(crate) mapped: Bytes,
    /// False while somebody has the region, and may unmap what is mapped.
    open: bool,
    /// Whether the user has grown since the last shrink.
    pub(crate) grows: bool,
}

impl<B: Backend> Shared<B> {
    pub(crate) fn new(region: Region<B>, premap: Premap, thread: &PremapThread) -> Self {
        let granularity = region.granularity();
        let round = |size| granularity.round_up(size).unwrap_or(region.reserved());
        let by = round(premap.by);
        let step = round(premap.step.max(Bytes(1))).min(by);
        let end = region.end();
        Self {
            address: AtomicU64::new(region.address().0),
            end: AtomicU64::new(end.0),
            mapped: AtomicU64::new(end.0),
            inside: Mutex::new(Inside { region, failed: None, spoiled: false }),
            marks: Mutex::new(Marks { end, mapped: end, open: true, grows: true }),
            waiting: AtomicUsize::new(0),
            premap: Premap { by, step },
            granularity,
            thread: thread.clone(),
            process: Process::current(),
        }
    }

    fn budget(&self) -> &Budget {
        self.thread.budget()
    }

    pub(crate) fn premap(&self) -> Premap {
        self.premap
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.address.load(Ordering::Acquire))
    }

    pub(crate) fn end(&self) -> Bytes {
        Bytes(self.end.load(Ordering::Acquire))
    }

    pub(crate) fn mapped(&self) -> Bytes {
        Bytes(self.mapped.load(Ordering::Acquire))
    }

    /// Waits until neither the thread nor anybody else works on the region.
    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside<B>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inside = lock(&self.inside);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        inside
    }

    pub(crate) fn marks(&self) -> MutexGuard<'_, Marks> {
        lock(&self.marks)
    }

    /// Moves the end up to `target` if so much is mapped: where it was, and where the parts end now.
    pub(crate) fn take(&self, target: Bytes) -> Option<(Bytes, Marks)> {
        let mut marks = self.marks();
        let before = marks.end;
        if target > before {
            if !marks.open || target > marks.mapped {
                return None;
            }
            let mapped = marks.mapped;
            marks.grows = true;
            self.set(&mut marks, target, mapped, Bytes::ZERO);
        }
        Some((before, *marks))
    }

    /// Lets nothing be taken until the marks are [set by the region](Shared::settle) again.
    pub(crate) fn close(&self) {
        self.marks().open = false;
    }

    /// Sets the marks by what the region is now. A suspended one keeps its end, and has nothing behind it.
    pub(crate) fn settle(&self, inside: &Inside<B>) {
        let region = &inside.region;
        let mut marks = self.marks();
        marks.open = true;
        self.address.store(region.address().0, Ordering::Release);
        let (end, mapped) = match region.state() {
            RegionState::Suspended { .. } => (marks.end, marks.end),
            RegionState::Active if inside.spoiled => (marks.end, region.end().min(marks.mapped)),
            RegionState::Active => (marks.end, region.end()),
        };
        self.set(&mut marks, end.min(mapped), mapped, Bytes::ZERO);
    }

    /// Moves the marks. What is mapped ahead is counted, but for what was `taken` for that before.
    pub(crate) fn set(&self, marks: &mut Marks, end: Bytes, mapped: Bytes, taken: Bytes) {
        self.budget().change(marks.mapped - marks.end + taken, mapped - end);
        (marks.end, marks.mapped) = (end, mapped);
        self.end.store(end.0, Ordering::Release);
        self.mapped.store(mapped.0, Ordering::Release);
    }

    /// Where the next step ends that the thread is to map, if it is to.
    pub(crate) fn next(&self, marks: &Marks, reserved: Bytes) -> Option<Bytes> {
        let target = (marks.mapped + self.premap.step).min(reserved);
        let wanted = marks.open && marks.grows && target <= marks.end + self.premap.by;
        (wanted && target > marks.mapped).then_some(target)
    }
}

impl<B: Backend> PremapWork for Shared<B> {
    fn step(&self) -> Step {
        // Who waits for the region, or has it, asks for this afterwards.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return Step::Done;
        }
        let mut inside = match self.inside.try_lock() {
            Ok(inside) => inside,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Step::Done,
        };
        let (marks, reserved) = (*self.marks(), inside.region.reserved());
        let asleep = inside.region.state() != RegionState::Active;
        let Some(target) = self.next(&marks, reserved).filter(|_| !asleep && !inside.spoiled) else {
            return Step::Done;
        };
        let taken = target - marks.mapped;
        if !self.budget().take(taken) {
            return Step::Done;
        }
        match inside.region.grow_to(target) {
            Ok(_) => {
                inside.failed = None;
                let mut marks = self.marks();
                let end = marks.end;
                self.set(&mut marks, end, inside.region.end(), taken);
                if self.next(&marks, reserved).is_some() { Step::More } else { Step::Done }
            }
            Err(error) => {
                self.budget().change(taken, Bytes::ZERO);
                inside.failed = Some(error);
                inside.spoiled = inside.region.end() > marks.mapped;
                Step::Failed
            }
        }
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        if self.process.is_this() {
            let Marks { end, mapped, .. } = *self.marks();
            self.budget().change(mapped - end, Bytes::ZERO);
        }
    }
}
