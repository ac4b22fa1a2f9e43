//! The state that a growing region's user and the thread share: the region, and the ends of its parts.
//!
//! The region is locked while a driver is called. The ends have a lock of their own, which is held for some nanoseconds and never
//! while another lock is waited for, so that growth into premapped memory waits for nothing.

use crate::Premap;
use crate::budget::Budget;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use crate::thread::{PremapThread, PremapWork, Step};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Address, Backend, Bytes, Error, Granularity, Region, RegionState};

/// A region and its thread.
#[derive(Debug)]
pub(crate) struct Shared<B: Backend> {
    inside: Mutex<Inside<B>>,
    marks: Mutex<Marks>,
    /// The number of callers that wait for the region. The thread lets them go first.
    waiting: AtomicUsize,
    /// Copies for reading without a lock, also in a forked child.
    address: AtomicU64,
    end: AtomicU64,
    mapped: AtomicU64,
    premap: Premap,
    pub(crate) granularity: Granularity,
    /// Owns the budget.
    thread: PremapThread,
    pub(crate) process: Process,
}

/// The state that is locked while a driver is called.
#[derive(Debug)]
pub(crate) struct Inside<B: Backend> {
    pub(crate) region: Region<B>,
    /// The last error of the thread, until a call reports it.
    pub(crate) failed: Option<Error>,
    /// True if a failed rollback of the thread has left a poisoned part that no call has reported yet.
    pub(crate) spoiled: bool,
}

/// The ends of the parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// The end of the user's part.
    pub(crate) end: Bytes,
    /// The end of the mapped part that can be given to the user.
    pub(crate) mapped: Bytes,
    /// False while a caller holds the region and may unmap memory.
    open: bool,
    /// True if the user has grown the region since the last shrink.
    pub(crate) grows: bool,
}

impl<B: Backend> Shared<B> {
    pub(crate) fn new(region: Region<B>, premap: Premap, thread: &PremapThread) -> Self {
        let granularity = region.granularity();
        let round = |size| granularity.round_up(size).unwrap_or(region.reserved());
        // The thread must not move a region that moves when it grows.
        let by = if region.is_plain() { Bytes::ZERO } else { round(premap.by) };
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

    /// Waits until neither the thread nor another caller uses the region, and locks it.
    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside<B>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inside = lock(&self.inside);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        inside
    }

    pub(crate) fn marks(&self) -> MutexGuard<'_, Marks> {
        lock(&self.marks)
    }

    /// Moves the end up to `target` if that much is mapped. Returns the previous end and the new marks.
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

    /// Prevents growth without the lock until [`settle`](Shared::settle).
    pub(crate) fn close(&self) {
        self.marks().open = false;
    }

    /// Sets the marks from the current state of the region. A suspended region keeps its end and has no premapped memory.
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

    /// Sets the marks, and counts the premapped memory in the budget, of which `taken` is counted already.
    pub(crate) fn set(&self, marks: &mut Marks, end: Bytes, mapped: Bytes, taken: Bytes) {
        self.budget().change(marks.mapped - marks.end + taken, mapped - end);
        (marks.end, marks.mapped) = (end, mapped);
        self.end.store(end.0, Ordering::Release);
        self.mapped.store(mapped.0, Ordering::Release);
    }

    /// The end of the thread's next step, or `None` if it must not map more.
    pub(crate) fn next(&self, marks: &Marks, reserved: Bytes) -> Option<Bytes> {
        let target = (marks.mapped + self.premap.step).min(reserved);
        let wanted = marks.open && marks.grows && target <= marks.end + self.premap.by;
        (wanted && target > marks.mapped).then_some(target)
    }
}

impl<B: Backend> PremapWork for Shared<B> {
    fn step(&self) -> Step {
        // A caller that waits for the region, or holds it, asks for this work afterwards.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return Step::Done;
        }
        let Some(mut inside) = try_lock(&self.inside) else { return Step::Done };
        let (marks, reserved) = (*self.marks(), inside.region.reserved());
        // The caller may have put a plain region in the place of the first one. Its growth moves it, which only the caller may do.
        let is_fixed = inside.region.state() == RegionState::Active && !inside.region.is_plain();
        let Some(target) = self.next(&marks, reserved).filter(|_| is_fixed && !inside.spoiled) else {
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
