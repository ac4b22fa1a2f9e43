//! What destructors could not give back yet: a device could not be waited for while a stream was captured.

use crate::driver::Backend;
use crate::types::{Bytes, Detail, DeviceId, Error, ErrorKind, Lock, Operation, Result};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

/// Memory that stays mapped until its devices have been waited for.
pub(crate) trait Release: Debug + Send {
    /// How much is mapped.
    fn size(&self) -> Bytes;

    /// Unmaps and gives everything back. All devices have been waited for.
    fn release(&mut self) -> Result<()>;
}

/// The memory that a backend keeps until a device can be waited for, and the captures that it has been told of.
///
/// While any stream of a device captures, the vendors refuse to wait for the device, and the attempt alone spoils the
/// capture. So a [`Region`](crate::Region) or pool that is dropped then is kept here, still mapped. It is released when a
/// later call waits for the device anyway, when memory runs out, or by [`collect`](Deferred::collect). What is kept keeps
/// the backend open.
///
/// Neither vendor can be asked whether any stream captures. A capture is known if
/// [`capture_begins`](Deferred::capture_begins) announced it, if its stream is a pool's, or if it is on a blocking stream of
/// CUDA. Of another one of CUDA's, the first attempt to wait fails and spoils it; the memory is kept all the same. HIP's
/// devices can be waited for while a stream captures, so there the memory goes back at once.
#[derive(Debug, Default)]
pub struct Deferred {
    captures: AtomicUsize,
    /// Held for reading during calls that spoil captures, and for writing by an announcement, which so waits for them to end.
    calls: RwLock<()>,
    /// How much is in `items`, so that it need not be locked if that is nothing. It changes with the lock held.
    bytes: AtomicU64,
    items: Lock<Items>,
}

#[derive(Debug, Default)]
struct Items {
    list: Vec<Item>,
    /// How many items there ever were: an item's number is smaller than that of any later one.
    count: u64,
}

#[derive(Debug)]
struct Item {
    number: u64,
    /// The devices that have not been waited for since.
    devices: BTreeSet<DeviceId>,
    size: Bytes,
    memory: Box<dyn Release>,
}

impl Deferred {
    /// Nothing kept, no capture.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a capture that is about to begin: until [`capture_ends`](Deferred::capture_ends) has been called as often,
    /// no call waits for a device, and those that would have to return [`Detail::Capturing`]. Nor does a pool record events on the
    /// default stream, which spoils the capture of a blocking one. Returns when the calls have ended that do so right now.
    pub fn capture_begins(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // A wait that had begun in the parent never ends in a forked child.
        if self.items.process().check(Operation::BeginCapture).is_ok() {
            drop(self.calls.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends an announced capture. A call without a matching [`capture_begins`](Deferred::capture_begins) does nothing.
    pub fn capture_ends(&self) {
        let less = |captures: usize| captures.checked_sub(1);
        // An error says that there was none.
        let _ = self.captures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// True while an announced capture has not ended.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::SeqCst) > 0
    }

    /// Makes a call that spoils captures, unless one was announced. None that is announced meanwhile begins before the call has
    /// returned. Never waits for an announcement or for the calls of others, so locks may be held.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] while an announced capture has not ended, [`Detail::Forked`] in a child, or what `call` returns.
    pub fn unless_capturing<T>(&self, operation: Operation, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.items.process().check(operation)?;
        let shared = match self.calls.try_read() {
            Err(TryLockError::Poisoned(shared)) => Some(shared.into_inner()),
            shared => shared.ok(),
        };
        // Where it cannot be had, a capture is being announced.
        if shared.is_none() || self.is_capturing() {
            return Err(Error::new(operation, Detail::Capturing { source: None }));
        }
        call()
    }

    /// How much memory is kept.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    /// Waits for the devices of all memory that is kept, and gives it back. Returns how much of it this call gave back.
    ///
    /// # Errors
    ///
    /// [`Detail::Capturing`] if a stream still captures: what its device may use is still kept, and what other devices use
    /// alone has been given back. [`Detail::Forked`] in a child. Another error is the first that waiting or giving back
    /// returned; what could not be unmapped is left until the process ends.
    pub fn collect(&self, backend: &impl Backend) -> Result<Bytes> {
        let operation = Operation::Collect;
        let items = self.items.lock(operation)?;
        let devices: BTreeSet<_> = items.list.iter().flat_map(|item| item.devices.iter().copied()).collect();
        drop(items);
        let mut collected = Bytes::ZERO;
        let mut result = Ok(());
        for device in devices {
            let waited = wait_for(backend, operation, device).and_then(|done| {
                collected += total(&done);
                release(done)
            });
            result = result.and(waited);
        }
        result.map(|()| collected)
    }

    /// Keeps memory until these devices have been waited for: one at least. A forked child keeps nothing, since all of it
    /// is the parent's.
    pub(crate) fn keep(&self, devices: BTreeSet<DeviceId>, memory: Box<dyn Release>) {
        let Ok(mut items) = self.items.lock(Operation::Collect) else { return };
        let (number, size) = (items.count, memory.size());
        items.count += 1;
        items.list.push(Item { number, devices, size, memory });
        self.bytes.fetch_add(size.0, Ordering::Relaxed);
    }

    /// The number of the next item: those before it were kept by now.
    fn mark(&self, operation: Operation) -> Result<u64> {
        // A thread that does not see yet what another one keeps leaves it to the next call.
        if self.kept() == Bytes::ZERO {
            self.items.process().check(operation).map(|()| 0)
        } else {
            Ok(self.items.lock(operation)?.count)
        }
    }

    /// Takes out what waits for this device alone, which was waited for after `mark` was taken.
    fn waited(&self, operation: Operation, device: DeviceId, mark: u64) -> Result<Vec<Item>> {
        if mark == 0 {
            return Ok(Vec::new());
        }
        let mut items = self.items.lock(operation)?;
        for item in items.list.iter_mut().filter(|item| item.number < mark) {
            item.devices.remove(&device);
        }
        let done: Vec<_> = items.list.extract_if(.., |item| item.devices.is_empty()).collect();
        self.bytes.fetch_sub(total(&done).0, Ordering::Relaxed);
        Ok(done)
    }
}

fn total(items: &[Item]) -> Bytes {
    items.iter().map(|item| item.size).sum()
}

/// Gives memory back for which nothing has to be waited any more, without the lock. The first error is returned, the rest
/// is gone on with.
fn release(items: Vec<Item>) -> Result<()> {
    items.into_iter().map(|mut item| item.memory.release()).fold(Ok(()), Result::and)
}

/// Waits for a device, and returns what was kept for that. A device that has died uses nothing any more.
fn wait_for<B: Backend>(backend: &B, operation: Operation, device: DeviceId) -> Result<Vec<Item>> {
    let deferred = backend.deferred();
    // Before the question about captures, which are the parent's in a forked child.
    let mark = deferred.mark(operation)?;
    match deferred.unless_capturing(operation, || backend.synchronize(device)) {
        Err(error) if error.kind() != ErrorKind::DeviceLost => Err(error),
        _ => deferred.waited(operation, device, mark),
    }
}

/// Waits until devices have finished everything, and gives back what was kept for that.
pub(crate) fn wait_for_devices<B: Backend>(
    backend: &B,
    operation: Operation,
    mut devices: impl Iterator<Item = DeviceId>,
) -> Result<()> {
    devices.try_for_each(|device| {
        if let Err(error) = release(wait_for(backend, operation, device)?) {
            // It concerns what was dropped, and not the call that waited.
            backend.drop_log().record(error);
        }
        Ok(())
    })
}
