//! Before the pool empties its thread caches or maps memory, it asks whether other streams' work is done.
#![allow(unsafe_code)]

use gpu_vmm_core::{Bytes, DeviceId, Stream};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::TestKit;

#[test]
fn free_foreign_memory_spares_thread_caches() {
    let page = Bytes::mib(2);
    let backend = HostConfig::new().memory(page * 64).open().unwrap();
    let own = backend.own_stream(DeviceId(0)).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    let theirs = pool.request(page * 8).stream(stream).alloc().unwrap();
    let (place, stays) = (theirs.address(), pool.alloc(page).unwrap());
    drop((pool.alloc(Bytes::kib(4)).unwrap(), theirs));
    let before = pool.stats();
    assert!(before.cached > 0);
    let ours = pool.alloc(page * 8).unwrap();
    let after = pool.stats();
    assert_eq!(ours.address(), place);
    assert_eq!((after.cached, after.driver_calls.map), (before.cached, before.driver_calls.map));
    drop((ours, stays));
}
