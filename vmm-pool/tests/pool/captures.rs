//! Memory that was freed in a capture: it serves later captures once the pool was called outside of one, and none before its end.

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

#[test]
fn a_shortage_names_the_capture() {
    let backend = LateWork::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap(), 2);
    let pool = Pool::builder(&backend).build().unwrap();
    let stream = backend.stream(1);
    let alloc = || pool.request(Bytes::mib(20)).stream(stream).alloc();
    let named = "a stream captures: what is freed on it meanwhile waits for the end of the capture";
    backend.set_capturing(1, true);
    for _ in 0..3 {
        drop(alloc().unwrap());
    }
    let error = alloc().unwrap_err();
    assert!(error.to_string().contains(named), "{error}");
    backend.set_capturing(1, false);
    let _block = alloc().unwrap();
    let error = pool.alloc(Bytes::mib(65)).unwrap_err();
    assert!(!error.to_string().contains("captures"), "{error}");
}
