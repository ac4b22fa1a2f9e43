//! Memory that was freed in a capture serves later captures once the pool was called outside of one.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm_core::Bytes;
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::LateWork;

const MIB: u64 = 1 << 20;

#[test]
fn a_request_between_captures_bounds_their_memory() {
    let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), 2);
    let pool = Pool::builder(&backend).build().unwrap();
    let stream = backend.stream(1);
    let mut most = 0;
    for number in 0..50 {
        backend.set_capturing(1, true);
        let blocks = [4 * MIB, 300].map(|size| pool.request(Bytes(size)).stream(stream).alloc().unwrap());
        drop(blocks);
        backend.set_capturing(1, false);
        backend.queue(1);
        drop(pool.alloc(Bytes::mib(3)).unwrap());
        backend.finish(1, 1);
        match number {
            0..3 => most = pool.stats().held,
            _ => assert!(pool.stats().held <= most, "{}", pool.stats()),
        }
    }
}
