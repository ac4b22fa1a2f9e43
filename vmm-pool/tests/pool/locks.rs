//! Nothing waits under the pool's lock, and no code of the program is called under it. [`FaultInject`] panics in each call that may
//! wait while its thread holds the lock, in every test of the pool that uses it.
#![allow(unsafe_code)]

use gpu_vmm_core::extend::NoWaits;
use gpu_vmm_core::{
    Backend, BackingChange, BackingObserver, BackingOutcome, BackingStore, Bytes, CopyCalls, DeviceId,
    MemoryCalls, Region, Result, Stream, SyncCalls, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Fence, Pool};
use gpu_vmm_testkit::{FaultInject, check_may_wait};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Faulty = FaultInject<HostBackend>;

const DEVICE: DeviceId = DeviceId(0);

fn host() -> HostConfig {
    HostConfig::new().memory(Bytes::mib(64))
}

#[test]
fn each_call_that_may_wait_is_seen() {
    let backend = FaultInject::new(host().open().unwrap());
    let mut region = Region::builder(&backend).reserve(Bytes::mib(4)).build().unwrap();
    region.grow_to(Bytes::mib(4)).unwrap();
    let (one, other) = (region.address(), region.address() + Bytes::mib(2));
    let (event, copies) = (backend.event(DEVICE).unwrap(), backend.copy_stream(DEVICE).unwrap());
    let copies = std::cell::RefCell::new(copies);
    let plain = FaultInject::new(host().without_virtual_memory().open().unwrap());
    let allocated = plain.allocate_plain(DEVICE, Bytes::mib(2)).unwrap();
    let size = Bytes(1);
    // SAFETY: the addresses are mapped, and the plain allocation is freed once.
    let calls: [(&str, &dyn Fn() -> Result<()>); 9] = unsafe {
        [
            ("synchronize", &|| backend.synchronize(DEVICE)),
            ("synchronize_stream", &|| backend.synchronize_stream(DEVICE, Stream::DEFAULT)),
            ("wait", &|| event.wait()),
            ("copy_from_host", &|| backend.copy_from_host(DEVICE, one, &[1])),
            ("copy_to_host", &|| backend.copy_to_host(DEVICE, &mut [1], one)),
            ("copy", &|| backend.copy(DEVICE, one, other, size)),
            ("fill", &|| backend.fill(DEVICE, one, size, 0)),
            ("finish", &|| copies.borrow_mut().finish()),
            ("free_plain", &|| plain.free_plain(DEVICE, allocated, Bytes::mib(2))),
        ]
    };
    for (name, call) in calls {
        let note = NoWaits::begin();
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{name} may wait under a lock");
        drop(note);
        call().unwrap();
    }
}

/// Counts calls of the program's code, none of which comes under the lock.
#[derive(Clone, Debug, Default)]
struct Called(Arc<AtomicUsize>);

impl Called {
    fn note(&self, what: &str) {
        check_may_wait(what);
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    #[track_caller]
    fn take(&self) {
        assert!(self.0.swap(0, Ordering::Relaxed) > 0, "nothing was called");
    }
}

impl BackingObserver for Called {
    fn before(
        &self,
        _: &BackingChange<'_>,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.note("an observer");
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {
        self.note("an observer");
    }
}

impl Fence for Called {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::Relaxed) > 0)
    }

    fn wait(&self) -> Result<()> {
        self.note("a fence");
        Ok(())
    }
}

/// Has the backend keep most of its memory until a capture has ended, in a region with an observer.
fn keep_most_memory(backend: &Faulty, called: &Called) {
    let mut region = Region::builder(backend).reserve(Bytes::mib(48)).build().unwrap();
    region.grow_to(Bytes::mib(48)).unwrap();
    region.on_backing_change(called.clone());
    backend.deferred().capture_begins();
    drop(region);
    backend.deferred().capture_ends();
    called.0.store(0, Ordering::Relaxed);
}

#[test]
fn program_code_runs_without_the_lock() {
    for (config, is_plain) in [(host(), false), (host().without_virtual_memory(), true)] {
        let backend = FaultInject::new(config.open().unwrap());
        let [called, short, unfreed] = [(); 3].map(|()| Called::default());
        let (on_short, on_unfreed) = (short.clone(), unfreed.clone());
        let pool = Pool::builder(&backend)
            .debug()
            .on_out_of_memory(move |_, _| {
                on_short.note("the callback for short memory");
                false
            })
            .on_unfreed(move |_| on_unfreed.note("the callback for live blocks"))
            .build()
            .unwrap();
        keep_most_memory(&backend, &called);
        let block = pool.alloc(Bytes::mib(32)).unwrap();
        called.take();
        pool.alloc(Bytes::mib(48)).unwrap_err();
        short.take();
        block.free_after(Arc::new(called.clone()));
        let block = pool.alloc(Bytes::mib(48)).unwrap();
        called.take();
        if !is_plain {
            pool.suspend("", &BackingStore::nothing(), WaitFor::all_devices()).unwrap();
            keep_most_memory(&backend, &called);
            pool.resume("").unwrap();
            called.take();
        }
        drop(pool);
        unfreed.take();
        drop(block);
    }
}
