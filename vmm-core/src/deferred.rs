//! What destructors could not give back yet: a device could not be waited for while a stream was captured.

use crate::{Backend, Bytes, DeviceId, Error, Result};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
/// later call waits for the device anyway, when memory runs out, or by [`collect`](Deferred::collect).
///
/// Neither vendor can be asked whether any stream captures. A capture is known if
/// [`capture_begins`](Deferred::capture_begins) announced it, if its stream is a pool's, or if it is on a blocking stream of
/// CUDA. Of another one of CUDA's, the first attempt to wait fails and spoils it; the memory is kept all the same. HIP's
/// devices can be waited for while a stream captures, so there the memory goes back at once.
#[derive(Debug, Default)]
pub struct Deferred {
    captures: AtomicUsize,
    /// How much is in `items`, so that it need not be locked where that is nothing.
    bytes: AtomicU64,
    items: Mutex<Items>,
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
    devices: Vec<DeviceId>,
    memory: Box<dyn Release>,
}

impl Deferred {
    /// Nothing kept, no capture.
    #[must_use]
    pub const fn new() -> Self {
        let items = Mutex::new(Items { list: Vec::new(), count: 0 });
        Self { captures: AtomicUsize::new(0), bytes: AtomicU64::new(0), items }
    }

    /// Announces a capture: until [`capture_ends`](Deferred::capture_ends) has been called as often, no call waits for a
    /// device, and those that would have to return [`Error::Capturing`].
    pub fn capture_begins(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
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

    /// How much memory is kept.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    /// Waits for the devices of all memory that is kept, and gives it back. Returns how much that was.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] if a stream still captures: nothing was given back. Another error is the first that waiting
    /// or giving back returned; what could not be unmapped then is left until the process ends.
    pub fn collect(&self, backend: &impl Backend) -> Result<Bytes> {
        let before = self.kept();
        if before == Bytes::ZERO {
            return Ok(before);
        }
        let mut devices: Vec<_> =
            self.items().list.iter().flat_map(|item| item.devices.iter().copied()).collect();
        devices.sort_unstable();
        devices.dedup();
        wait_for_devices(backend, "collect", devices.into_iter())?;
        Ok(Bytes(before.0.saturating_sub(self.kept().0)))
    }

    pub(crate) fn keep(&self, devices: Vec<DeviceId>, memory: Box<dyn Release>) {
        let mut items = self.items();
        self.bytes.fetch_add(memory.size().0, Ordering::Relaxed);
        let number = items.count;
        items.count += 1;
        items.list.push(Item { number, devices, memory });
    }

    /// The number of the next item: those before it were kept by now.
    fn mark(&self) -> u64 {
        if self.kept() == Bytes::ZERO { 0 } else { self.items().count }
    }

    /// Gives back what waits for this device alone, which was waited for after `mark` was taken.
    fn waited(&self, device: DeviceId, mark: u64) -> Result<()> {
        if mark == 0 {
            return Ok(());
        }
        let mut done = Vec::new();
        let mut items = self.items();
        for item in items.list.iter_mut().filter(|item| item.number < mark) {
            item.devices.retain(|one| *one != device);
        }
        for item in std::mem::take(&mut items.list) {
            let target = if item.devices.is_empty() { &mut done } else { &mut items.list };
            target.push(item);
        }
        drop(items);
        let mut result = Ok(());
        for Item { mut memory, .. } in done {
            let size = memory.size();
            result = result.and(memory.release());
            self.bytes.fetch_sub(size.0, Ordering::Relaxed);
        }
        result
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until devices have finished everything, and gives back what was kept for that. A device that has died uses
/// nothing any more.
pub(crate) fn wait_for_devices<B: Backend>(
    backend: &B,
    operation: &'static str,
    mut devices: impl Iterator<Item = DeviceId>,
) -> Result<()> {
    let deferred = backend.deferred();
    devices.try_for_each(|device| {
        if deferred.is_capturing() {
            return Err(Error::Capturing { operation, source: None });
        }
        let mark = deferred.mark();
        match backend.synchronize(device) {
            Ok(()) | Err(Error::DeviceLost { .. }) => {}
            Err(error) => return Err(error),
        }
        if let Err(error) = deferred.waited(device, mark) {
            // It concerns what was dropped, and not the call that waited.
            backend.drop_log().record(error);
        }
        Ok(())
    })
}
