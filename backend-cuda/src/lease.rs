//! The contexts that backends of this process were opened with.
//!
//! Every backend waits for the work in all of them. A program may destroy its context once its backend is dropped. So a context is
//! used only while its lease is held, and dropping a backend waits until no call uses its context.

use crate::device_state::Context;
use crate::ffi::CuContext;
use gpu_vmm_core::DeviceId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A context of the program, valid as long as a backend that was opened with it lives.
#[derive(Debug)]
pub(crate) struct Lease {
    device: DeviceId,
    raw: CuContext,
    /// Read-locked while a call uses the context, write-locked when its backend is dropped.
    alive: RwLock<bool>,
}

/// A context that the program gave for its device.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) device: DeviceId,
    pub(crate) context: Context,
    /// Lets other backends wait for the context's work.
    pub(crate) lease: Arc<Lease>,
    /// Keeps the context alive if it is cudarc's.
    pub(crate) _keep: Option<Arc<cudarc::driver::CudaContext>>,
}

/// The leases of a process.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// The number of leases, so that a process without any takes no lock.
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Lease>>>,
}

impl Lease {
    pub(crate) const fn context(&self) -> CuContext {
        self.raw
    }

    /// Calls `act` if the context can still be used; the context stays usable until `act` returns.
    pub(crate) fn hold<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let alive = self.alive.read().unwrap_or_else(PoisonError::into_inner);
        alive.then(act)
    }
}

impl Leases {
    pub(crate) fn add(&self, device: DeviceId, raw: CuContext) -> Arc<Lease> {
        let lease = Arc::new(Lease { device, raw, alive: RwLock::new(true) });
        self.list().push(Arc::clone(&lease));
        self.count.fetch_add(1, Ordering::SeqCst);
        lease
    }

    /// Ends a lease. When this returns, no call uses its context, and no later call will.
    pub(crate) fn end(&self, lease: &Arc<Lease>) {
        *lease.alive.write().unwrap_or_else(PoisonError::into_inner) = false;
        let mut list = self.list();
        let before = list.len();
        list.retain(|other| !Arc::ptr_eq(other, lease));
        self.count.fetch_sub(before - list.len(), Ordering::SeqCst);
    }

    /// Returns the leases of a device's contexts. The list is not locked while they are used.
    pub(crate) fn of(&self, device: DeviceId) -> Vec<Arc<Lease>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        self.list().iter().filter(|lease| lease.device == device).cloned().collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Lease>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const DEVICE: DeviceId = DeviceId(0);

    #[test]
    fn ended_lease_is_not_used() {
        let leases = Leases::default();
        let lease = leases.add(DEVICE, CuContext::NULL);
        leases.add(DeviceId(1), CuContext::NULL);
        let taken = leases.of(DEVICE);
        assert_eq!((taken.len(), taken[0].hold(|| 7)), (1, Some(7)));
        leases.end(&lease);
        assert_eq!(
            (taken[0].hold(|| 7), leases.of(DEVICE).len(), leases.of(DeviceId(1)).len()),
            (None, 0, 1)
        );
    }

    #[test]
    fn only_the_end_waits_for_users() {
        let leases = Leases::default();
        let lease = leases.add(DEVICE, CuContext::NULL);
        let (ended, has_ended) = channel();
        std::thread::scope(|scope| {
            let used = lease.hold(|| {
                scope.spawn(|| {
                    leases.end(&lease);
                    ended.send(()).unwrap();
                });
                // The list stays usable meanwhile.
                leases.add(DeviceId(1), CuContext::NULL);
                has_ended.recv_timeout(Duration::from_millis(50)).is_err()
            });
            assert_eq!(used, Some(true), "it ended under a call");
            has_ended.recv().unwrap();
        });
    }
}
