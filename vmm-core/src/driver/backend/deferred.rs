//! Memory that destructors could not free yet, because no device can be waited for while a stream captures.

use crate::driver::{Backend, Stream};
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, Lock, Operation, Process, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread::{self, ThreadId};

/// Memory that stays mapped until its devices have finished their work.
pub(crate) trait Release: Debug + Send {
    /// Returns the size of the mapped memory.
    fn size(&self) -> Bytes;

    /// Unmaps and frees everything. The caller has waited for all devices.
    fn release(&mut self) -> Result<()>;
}

/// Memory that a backend keeps until a device can be waited for, and the announced captures.
///
/// While any stream of a device captures, both vendors refuse to wait for the device, and the attempt invalidates the
/// capture. A [`Region`](crate::Region) or pool that is dropped then is kept here, still mapped. It is released when a
/// later call waits for the device, when memory runs out, or by [`collect`](Deferred::collect). Kept memory keeps the backend
/// open.
///
/// Neither vendor can report whether any stream captures. A capture is known if
/// [`capture_begins`](Deferred::capture_begins) announced it, if its stream is [watched](Deferred::watch_stream), as all streams of
/// pools are, or if it is on a blocking stream of CUDA. Any other capture on CUDA is invalidated by the first attempt to wait, which
/// fails; the memory is still kept. On HIP, a device can be waited for during a capture that was not announced, so the memory is freed
/// at once.
#[derive(Debug, Default)]
pub struct Deferred {
    captures: AtomicUsize,
    /// The streams that the driver is asked about, by their handle, each with the number of watches. Locked while it is asked, so that
    /// a stream whose last watch has ended is not asked any more. Nothing else is locked meanwhile.
    streams: Lock<BTreeMap<usize, (Stream<'static>, usize)>>,
    /// Locked for reading by calls that invalidate captures, and for writing by an announcement, which thereby waits for them.
    calls: RwLock<()>,
    /// The total size of `items`. It allows calls to skip the lock when there are none. Changed only while `items` is locked.
    bytes: AtomicU64,
    items: Lock<Items>,
    /// The threads that free memory now, which is no longer kept and not yet free.
    releasing: Mutex<Vec<ThreadId>>,
    released: Condvar,
}

/// Items that wait for no device, and the note that this thread frees them.
struct Releasing<'a> {
    deferred: &'a Deferred,
    items: Vec<Item>,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        let mut threads = self.deferred.releasing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = threads.iter().position(|one| *one == thread::current().id()) {
            threads.swap_remove(place);
        }
        self.deferred.released.notify_all();
    }
}

#[derive(Debug, Default)]
struct Items {
    list: Vec<Item>,
    /// The number of items ever added, which is the number of the next item.
    count: u64,
}

#[derive(Debug)]
struct Item {
    number: u64,
    /// The devices that have not been waited for since the item was added.
    devices: BTreeSet<DeviceId>,
    size: Bytes,
    memory: Box<dyn Release>,
}

impl Deferred {
    /// Creates an empty store without announced captures.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a capture that is about to begin. Returns after all running calls that would invalidate it have ended.
    ///
    /// Until [`capture_ends`](Deferred::capture_ends) has been called as often, no call waits for a device: calls that need to
    /// wait return [`Detail::Capturing`]. Pools do not record events on the default stream either, because that invalidates the
    /// capture of a blocking stream.
    pub fn capture_begins(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // In a forked child, a call that was running in the parent never releases the lock.
        if self.items.process().check(Operation::BeginCapture).is_ok() {
            drop(self.calls.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends an announced capture. A call without a matching [`capture_begins`](Deferred::capture_begins) does nothing.
    pub fn capture_ends(&self) {
        let less = |captures: usize| captures.checked_sub(1);
        // An error means that no capture was announced.
        let _ = self.captures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Returns true while an announced capture has not ended.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::SeqCst) > 0
    }

    /// Watches a stream. Before a wait for a device that could [invalidate captures](crate::SyncCalls::waits_spoil_captures), the driver
    /// is asked whether the stream captures. If it does, the wait is refused, whichever the device is.
    ///
    /// The watch ends when [`unwatch_stream`](Deferred::unwatch_stream) has been called as often. The stream must be live until then, as
    /// `'static` promises. A default stream is not watched: it never captures, or it is another stream in each thread. In a forked child
    /// this does nothing.
    pub fn watch_stream(&self, stream: Stream<'static>) {
        if let Some(mut streams) = self.watched(stream) {
            streams.entry(stream.as_raw().addr()).or_insert((stream, 0)).1 += 1;
        }
    }

    /// Ends one watch of a stream. Returns after a query about the stream that another thread makes.
    pub fn unwatch_stream(&self, stream: Stream<'static>) {
        let Some(mut streams) = self.watched(stream) else { return };
        if let Entry::Occupied(mut one) = streams.entry(stream.as_raw().addr()) {
            one.get_mut().1 -= 1;
            if one.get().1 == 0 {
                one.remove();
            }
        }
    }

    /// Locks the watched streams, if this one can be watched here.
    fn watched(
        &self,
        stream: Stream<'_>,
    ) -> Option<MutexGuard<'_, BTreeMap<usize, (Stream<'static>, usize)>>> {
        let can = !stream.is_default() && !stream.is_per_thread();
        can.then(|| self.streams.lock(Operation::QueryCapture).ok()).flatten()
    }

    /// Returns true if a wait for a device could invalidate a known capture: it was announced, or a watched stream captures.
    ///
    /// A stream that the driver cannot report on does not count: the wait that follows reports the error. False in a forked child.
    #[must_use]
    pub fn knows_capture(&self, backend: &impl Backend) -> bool {
        let Ok(streams) = self.streams.lock(Operation::QueryCapture) else { return false };
        let captures = |stream: &Stream<'static>| backend.is_capturing(*stream).unwrap_or(false);
        self.is_capturing()
            || backend.waits_spoil_captures() && streams.values().any(|(stream, _)| captures(stream))
    }

    /// Runs `call`, which would invalidate captures, unless a capture is known: one that was announced, or of a watched stream.
    ///
    /// # Errors
    ///
    /// Those of [`unless_capturing`](Deferred::unless_capturing).
    pub(crate) fn unless_known<T>(
        &self,
        backend: &impl Backend,
        operation: Operation,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.unless_capturing(operation, || {
            if self.knows_capture(backend) {
                return Err(Error::new(operation, Detail::Capturing { source: None }));
            }
            call()
        })
    }

    /// Runs `call`, which would invalidate captures, unless a capture is announced.
    ///
    /// An announcement during the call waits until the call has returned. This function never waits for an announcement or for
    /// calls of other threads, so callers may hold locks.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] while an announced capture has not ended, [`Detail::Forked`] in a forked child, or the error of
    /// `call`.
    pub fn unless_capturing<T>(&self, operation: Operation, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.items.process().check(operation)?;
        let shared = match self.calls.try_read() {
            Err(TryLockError::Poisoned(shared)) => Some(shared.into_inner()),
            shared => shared.ok(),
        };
        // If the lock is not available, a capture is being announced.
        if shared.is_none() || self.is_capturing() {
            return Err(Error::new(operation, Detail::Capturing { source: None }));
        }
        call()
    }

    /// Returns the process that the store belongs to.
    pub fn process(&self) -> Process {
        self.items.process()
    }

    /// Returns the amount of kept memory.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    /// Waits for the devices of all kept memory and frees it. Returns the amount of memory that this call freed.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a stream still captures: memory that its device may use is still kept, and all other memory has
    /// been freed. [`Detail::Forked`] in a forked child. Any other error is the first error of a wait or a release. Memory that
    /// could not be unmapped stays allocated until the process ends.
    pub fn collect(&self, backend: &impl Backend) -> Result<Bytes> {
        let operation = Operation::Collect;
        let items = self.items.lock(operation)?;
        let devices: BTreeSet<_> = items.list.iter().flat_map(|item| item.devices.iter().copied()).collect();
        drop(items);
        let mut collected = Bytes::ZERO;
        let mut result = Ok(());
        for device in devices {
            let waited = wait_for(backend, operation, device).and_then(|done| {
                collected += total(&done.items);
                release(done)
            });
            result = result.and(waited);
        }
        result.map(|()| collected)
    }

    /// Waits until no other thread frees memory, unless this one does (an observer asks for memory). Returns true if it has waited.
    pub(crate) fn wait_for_releases(&self) -> bool {
        if self.items.process().check(Operation::Collect).is_err() {
            return false;
        }
        let mut threads = self.releasing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited = false;
        while !threads.is_empty() && !threads.contains(&thread::current().id()) {
            threads = self.released.wait(threads).unwrap_or_else(PoisonError::into_inner);
            waited = true;
        }
        waited
    }

    /// Keeps memory until these devices, at least one, have been waited for. Does nothing in a forked child, where the memory
    /// belongs to the parent.
    pub(crate) fn keep(&self, devices: BTreeSet<DeviceId>, memory: Box<dyn Release>) {
        let Ok(mut items) = self.items.lock(Operation::Collect) else { return };
        let (number, size) = (items.count, memory.size());
        items.count += 1;
        items.list.push(Item { number, devices, size, memory });
        self.bytes.fetch_add(size.0, Ordering::Relaxed);
    }

    /// Returns the number of the next item. All items with smaller numbers have been added already.
    fn mark(&self, operation: Operation) -> Result<u64> {
        // If this thread does not see an item of another thread yet, the next call handles it.
        if self.kept() == Bytes::ZERO {
            self.items.process().check(operation).map(|()| 0)
        } else {
            Ok(self.items.lock(operation)?.count)
        }
    }

    /// Removes and returns the items that now wait for no device. `device` has been waited for since `mark` was taken.
    fn waited(&self, operation: Operation, device: DeviceId, mark: u64) -> Result<Releasing<'_>> {
        // Before the items are taken out: another thread must not see that nothing is kept while it is not yet free.
        self.releasing.lock().unwrap_or_else(PoisonError::into_inner).push(thread::current().id());
        let mut all = Releasing { deferred: self, items: Vec::new() };
        if mark == 0 {
            return Ok(all);
        }
        let mut items = self.items.lock(operation)?;
        for item in items.list.iter_mut().filter(|item| item.number < mark) {
            item.devices.remove(&device);
        }
        all.items = items.list.extract_if(.., |item| item.devices.is_empty()).collect();
        self.bytes.fetch_sub(total(&all.items).0, Ordering::Relaxed);
        drop(items);
        Ok(all)
    }
}

fn total(items: &[Item]) -> Bytes {
    items.iter().map(|item| item.size).sum()
}

/// Frees items that wait for no device, without the lock. Frees all of them even after an error, and returns the first one.
fn release(mut done: Releasing<'_>) -> Result<()> {
    let items = std::mem::take(&mut done.items);
    items.into_iter().map(|mut item| item.memory.release()).fold(Ok(()), Result::and)
}

/// Waits for a device and returns the items that waited only for it. A lost device counts as finished.
fn wait_for<B: Backend>(backend: &B, operation: Operation, device: DeviceId) -> Result<Releasing<'_>> {
    let deferred = backend.deferred();
    // First, because it detects a forked child, where the announced captures are the parent's.
    let mark = deferred.mark(operation)?;
    match deferred.unless_known(backend, operation, || backend.synchronize(device)) {
        Err(error) if error.kind() != ErrorKind::DeviceLost => Err(error),
        _ => deferred.waited(operation, device, mark),
    }
}

/// Waits until devices have finished all work, and frees the memory that was kept until then.
pub(crate) fn wait_for_devices<B: Backend>(
    backend: &B,
    operation: Operation,
    mut devices: impl Iterator<Item = DeviceId>,
) -> Result<()> {
    devices.try_for_each(|device| {
        if let Err(error) = release(wait_for(backend, operation, device)?) {
            // The error concerns the dropped memory, not the call that waited.
            backend.drop_log().record(error);
        }
        Ok(())
    })
}
