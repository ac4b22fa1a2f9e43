//! Observers of a region, which are called before and after the memory behind its addresses changes.
//!
//! An operation calls [`Region::announce`] after its checks and before its first driver call. The returned [`Announced`] owes each
//! observer that was called the matching call afterwards, on every path: the end of the operation makes it, or else its destructor.

use super::Region;
use super::layout::Layout;
use crate::driver::Backend;
#[allow(unused_imports)] // named in documentation
use crate::types::ErrorKind;
use crate::types::{Address, Bytes, Detail, Error, OffsetRange, Operation, Result};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;

/// What an operation does with the memory behind addresses of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BackingEffect {
    /// The memory is unmapped. Nothing is mapped there afterwards. Unmapping, shrinking, suspending, hiding a bank, dropping.
    Removed,
    /// Memory is mapped where a suspended region or a region without a selected bank has none. Resuming, selecting a bank.
    Restored,
    /// Other memory is mapped at the same addresses. Swapping, selecting a bank, moving to another device.
    Replaced,
    /// The memory is mapped at other addresses, and nothing is mapped at the old ones. [`Region::grow_or_move`].
    Moved {
        /// The new first address of the region.
        to: Address,
    },
}

/// A change of the memory behind addresses of a region.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BackingChange<'a> {
    /// The operation that makes the change; [`Operation::FreeReservation`] for dropping and closing a region.
    pub operation: Operation,
    /// What the operation does.
    pub effect: BackingEffect,
    /// The first address of the region before the change.
    pub address: Address,
    /// The ranges of the region whose memory changes, in ascending order.
    pub parts: &'a [OffsetRange],
}

/// The result of a change that was announced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BackingOutcome {
    /// The memory has changed as announced.
    Changed,
    /// The operation failed. The memory is the same as before.
    Unchanged,
    /// The operation failed and so did its rollback, or dropping could not unmap the memory. Which memory is mapped is unknown.
    Poisoned,
}

/// Code that is called before and after the memory behind a region's addresses changes: it has registered the memory with a network
/// card, opened it in another process, or captured its addresses in a graph. [`Region::on_backing_change`] adds it to a region.
///
/// # The calls
///
/// Each [`before`](BackingObserver::before) that returned `Ok` is followed by exactly one [`after`](BackingObserver::after) of the
/// same change, whether the operation succeeds, fails, is refused by another observer, or panics. Several observers are called in
/// the order in which they were added. The calls come on the thread of the operation, and the last one on the thread that
/// [releases memory later](crate::extend::Deferred) if a region is dropped while a stream captures. Observers are not called in a
/// forked child.
///
/// An observer cannot change the region: the operation has borrowed it. A call of the region through a lock of the program's own
/// waits for itself. A call of a `TensorRegion` from an observer never waits: it returns [`Detail::Notifying`] if the region is
/// in use. An observer may use the backend and other regions.
///
/// # Panics
///
/// A panic in `before` counts as a refusal. A panic in `after` is recorded in the [drop log](Backend::drop_log). In both cases, the
/// other observers are called.
pub trait BackingObserver: Send + Sync + 'static {
    /// Called before anything changes and before the operation waits for devices. The observer stops all use of the memory that
    /// the operation cannot wait for, such as transfers of a network card.
    ///
    /// # Errors
    ///
    /// An error refuses the change. The operation then returns [`Detail::Vetoed`] of the kind [`ErrorKind::Busy`] with the error's
    /// text, and nothing has changed. Dropping and closing a region cannot be refused: the error is ignored, and
    /// [`after`](BackingObserver::after) is called.
    fn before(
        &self,
        change: &BackingChange<'_>,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

    /// Called after the operation has succeeded or has been undone. The observer can register the memory again.
    fn after(&self, change: &BackingChange<'_>, outcome: BackingOutcome);
}

/// Identifies an observer of a region, for [`Region::remove_observer`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObserverId(pub u64);

type Shared = Arc<dyn BackingObserver>;

/// The observers of a region. No allocation without observers.
pub(super) struct Observers<B: Backend>(Option<Box<Observing<B>>>);

struct Observing<B: Backend> {
    list: Vec<(ObserverId, Shared)>,
    next: u64,
    /// The announcement of the region's end.
    ending: Announced<B>,
}

impl<B: Backend> Observers<B> {
    pub(super) const NONE: Self = Self(None);

    fn add(&mut self, observer: Shared) -> ObserverId {
        let none = || Box::new(Observing { list: Vec::new(), next: 0, ending: Announced(None) });
        let observing = self.0.get_or_insert_with(none);
        let id = ObserverId(observing.next);
        observing.next += 1;
        observing.list.push((id, observer));
        id
    }

    fn remove(&mut self, id: ObserverId) -> Option<Shared> {
        let list = &mut self.0.as_mut()?.list;
        let place = list.iter().position(|(other, _)| *other == id)?;
        Some(list.remove(place).1)
    }

    /// Takes the announcement of the region's end, for a layout that is released later.
    pub(super) fn take_ending(&mut self) -> Announced<B> {
        self.0.as_mut().map_or(Announced(None), |observing| Announced(observing.ending.0.take()))
    }

    /// Reports the end of a region: everything was unmapped, or something stays until the process ends.
    pub(super) fn ended(&mut self, layout: &Layout<B>) {
        self.take_ending().released(layout);
    }
}

impl<B: Backend> fmt::Debug for Observers<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.as_ref().map_or(0, |observing| observing.list.len()))
    }
}

// An observer's panic is caught, and the list itself does not change during a call.
impl<B: Backend> UnwindSafe for Observers<B> {}
impl<B: Backend> RefUnwindSafe for Observers<B> {}

/// A change that was announced to observers, who must learn its outcome.
pub(super) struct Announced<B: Backend>(Option<Box<Announcement<B>>>);

struct Announcement<B: Backend> {
    /// The observers that have been called and not called again.
    called: Vec<Shared>,
    backend: B,
    operation: Operation,
    effect: BackingEffect,
    address: Address,
    parts: Vec<OffsetRange>,
}

impl<B: Backend> fmt::Debug for Announced<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Announced").field(&self.0.as_ref().map(|one| one.change())).finish()
    }
}

impl<B: Backend> Announcement<B> {
    fn change(&self) -> BackingChange<'_> {
        let Self { operation, effect, address, parts, .. } = self;
        BackingChange { operation: *operation, effect: *effect, address: *address, parts }
    }

    /// Calls one more observer. With `must`, it cannot refuse the change.
    fn call(&mut self, observer: &Shared, must: bool) -> Result<()> {
        let change = self.change();
        let answer = caught(|| observer.before(&change).map_err(|error| error.to_string()));
        let answer = answer.unwrap_or_else(|text| Err(format!("the observer panicked: {text}")));
        if let (Err(reason), false) = (answer, must) {
            let range = self.parts.first().copied().unwrap_or_default();
            return Err(Error::new(self.operation, Detail::Vetoed { range, reason }));
        }
        self.called.push(Arc::clone(observer));
        Ok(())
    }

    /// Reports the result of the operation. Not inlined into operations, which seldom have observers.
    #[cold]
    #[inline(never)]
    fn end(&mut self, layout: &Layout<B>, is_ok: bool) {
        let is_poisoned = |part: &OffsetRange| {
            let mut touching = layout.table.touching(part.offset, part.length);
            touching.any(|(_, mapping)| mapping.poisoned.is_some())
        };
        let outcome = match is_ok {
            true => BackingOutcome::Changed,
            false if self.parts.iter().any(is_poisoned) => BackingOutcome::Poisoned,
            false => BackingOutcome::Unchanged,
        };
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: BackingOutcome) {
        for observer in std::mem::take(&mut self.called) {
            let change = self.change();
            if let Err(text) = caught(|| observer.after(&change, outcome)) {
                let error = Error::new(self.operation, Detail::ObserverPanicked { text });
                self.backend.drop_log().record(error);
            }
        }
    }
}

impl<B: Backend> Announced<B> {
    /// Reports the result of the operation, and returns it.
    #[inline(always)]
    pub(super) fn end<T>(self, layout: &Layout<B>, result: Result<T>) -> Result<T> {
        if let Some(mut announcement) = self.0 {
            announcement.end(layout, result.is_ok());
        }
        result
    }

    /// Reports the end of a region.
    pub(super) fn released(self, layout: &Layout<B>) {
        let is_empty = layout.table.is_empty();
        self.tell(if is_empty { BackingOutcome::Changed } else { BackingOutcome::Poisoned });
    }

    fn tell(mut self, outcome: BackingOutcome) {
        if let Some(announcement) = &mut self.0 {
            announcement.tell(outcome);
        }
    }
}

impl<B: Backend> Drop for Announcement<B> {
    /// Reports a change that did not come to its end: an operation that was refused, or a panic.
    fn drop(&mut self) {
        if !self.called.is_empty() && self.backend.deferred().process().is_this() {
            let panicked = std::thread::panicking();
            self.tell(if panicked { BackingOutcome::Poisoned } else { BackingOutcome::Unchanged });
        }
    }
}

impl<B: Backend> Region<B> {
    /// Adds an observer, which is called before and after the memory behind the region's addresses changes.
    ///
    /// These operations call it: [`unmap`](Region::unmap), [`shrink_to`](Region::shrink_to), [`suspend`](Region::suspend),
    /// [`resume`](Region::resume), [`swap`](Region::swap) (the observers of both regions),
    /// [`make_private`](Region::make_private) (as a swap, once for each piece that is copied),
    /// [`move_to_device`](Region::move_to_device), [`grow_or_move`](Region::grow_or_move) if the region moves, selecting and hiding
    /// a bank, changes that an imported region receives, and the end of the region. A region or a part in which nothing is mapped
    /// has nothing to change, and a call that is refused for its arguments announces nothing.
    ///
    /// **Growth calls no observer**, and neither does [`map`](Region::map): they add memory where none was mapped, so that no
    /// registration becomes stale. The exceptions are resuming and selecting a bank, which restore what the observers lost.
    /// [`set_access`](Region::set_access) changes no memory.
    ///
    /// The observer is dropped with the region, or after the region's memory has been released.
    ///
    /// ```
    /// # use gpu_vmm_core as gpu_vmm;
    /// use gpu_vmm::{Backend, BackingChange, BackingObserver, BackingOutcome, Region};
    ///
    /// struct Registrar;
    ///
    /// impl BackingObserver for Registrar {
    ///     fn before(&self, change: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///         // Stop transfers and deregister `change.parts`, or return an error to keep the memory as it is.
    ///         Ok(())
    ///     }
    ///
    ///     fn after(&self, change: &BackingChange<'_>, outcome: BackingOutcome) {
    ///         // Register the new mappings.
    ///     }
    /// }
    ///
    /// fn observe<B: Backend>(region: &mut Region<B>) {
    ///     region.on_backing_change(Registrar);
    /// }
    /// ```
    pub fn on_backing_change(&mut self, observer: impl BackingObserver) -> ObserverId {
        self.observers.add(Arc::new(observer))
    }

    /// Removes an observer, which is not called again. Returns false if the region has no such observer.
    pub fn remove_observer(&mut self, id: ObserverId) -> bool {
        self.take_observer(id).is_some()
    }

    /// Removes an observer for a caller that drops it later.
    pub(super) fn take_observer(&mut self, id: ObserverId) -> Option<Arc<dyn BackingObserver>> {
        self.observers.remove(id)
    }

    /// Calls the observers before a change of `parts`.
    ///
    /// # Errors
    ///
    /// [`Detail::Vetoed`]: the observers that had been called already have been called again. [`Detail::Forked`].
    #[inline(always)]
    pub(super) fn announce(
        &self,
        operation: Operation,
        effect: BackingEffect,
        parts: impl FnOnce() -> Vec<OffsetRange>,
    ) -> Result<Announced<B>> {
        match &self.observers.0 {
            None => Ok(Announced(None)),
            Some(observing) => self.announce_to(&observing.list, operation, effect, parts(), false),
        }
    }

    #[cold]
    #[inline(never)]
    fn announce_to(
        &self,
        list: &[(ObserverId, Shared)],
        operation: Operation,
        effect: BackingEffect,
        parts: Vec<OffsetRange>,
        must: bool,
    ) -> Result<Announced<B>> {
        if list.is_empty() || parts.is_empty() {
            return Ok(Announced(None));
        }
        let backend = self.backend.clone();
        backend.deferred().process().check(operation)?;
        let address = self.address();
        let mut one = Announcement { called: Vec::new(), backend, operation, effect, address, parts };
        list.iter().try_for_each(|(_, observer)| one.call(observer, must))?;
        Ok(Announced(Some(Box::new(one))))
    }

    /// Calls the observers before the end of the region, once. They cannot refuse it.
    pub(super) fn announce_end(&mut self) {
        let Some(observing) = &self.observers.0 else { return };
        if observing.ending.0.is_some() {
            return;
        }
        let whole = OffsetRange { offset: Bytes::ZERO, length: self.reserved() };
        let mapped = self.layout.table.touching(whole.offset, whole.length);
        let parts = mapped.map(|(offset, mapping)| OffsetRange { offset, length: mapping.length() });
        let parts = OffsetRange::joined(parts);
        let operation = Operation::FreeReservation;
        // The error of a forked child: the region is the parent's.
        if let Ok(ending) = self.announce_to(&observing.list, operation, BackingEffect::Removed, parts, true)
            && let Some(observing) = &mut self.observers.0
        {
            observing.ending = ending;
        }
    }
}

thread_local! {
    /// The number of observers that are running on this thread.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// Returns true while an observer runs on this thread.
#[cfg(feature = "dlpack")]
pub(super) fn is_running() -> bool {
    RUNNING.get() > 0
}

/// Calls an observer, and returns the text of its panic as an error.
fn caught<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    RUNNING.set(RUNNING.get() + 1);
    let answer = catch_unwind(AssertUnwindSafe(call));
    RUNNING.set(RUNNING.get() - 1);
    answer.map_err(|panic| text_of(&*panic))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn panicked_observer_is_not_running() {
        let answer: std::result::Result<(), String> = caught(|| {
            assert_eq!(RUNNING.get(), 1);
            panic!("on purpose")
        });
        assert_eq!(answer.unwrap_err(), "on purpose");
        assert_eq!(RUNNING.get(), 0);
    }

    #[test]
    fn outer_observer_runs_after_inner_ended() {
        let running = caught(|| [caught(|| RUNNING.get()).unwrap(), RUNNING.get()]).unwrap();
        assert_eq!((running, RUNNING.get()), ([2, 1], 0));
    }

    #[test]
    fn panic_text_is_found() {
        assert_eq!(text_of(&"constant"), "constant");
        assert_eq!(text_of(&String::from("made up")), "made up");
        assert_eq!(text_of(&7), "no text");
    }
}
