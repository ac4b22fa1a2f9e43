//! One backend, many threads.

use crate::range::{Range, create, free};
use crate::{ONE, SMALL, TWO};
use gpu_vmm_core::{Backend, Bytes};
use gpu_vmm_host::HostConfig;
use gpu_vmm_testkit::TestKit;

#[test]
fn eight_threads_do_not_disturb_each_other() {
    let memory = Bytes::mib(256);
    let host = HostConfig::new().devices(2).granularity(SMALL).memory(memory).open().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let host = host.clone();
            scope.spawn(move || {
                let device = if thread % 2 == 0 { ONE } else { TWO };
                let mut state = thread + 1;
                for round in 0..12 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(thread);
                    let sizes: Vec<_> =
                        (0..6).map(|index| Bytes(SMALL.0 * ((state >> (40 + index)) % 7 + 1))).collect();
                    let handles: Vec<_> =
                        sizes.iter().map(|size| create(&host, device, *size).unwrap()).collect();
                    let all: Bytes = sizes.iter().copied().sum();
                    let mut range = Range::new(&host, all);
                    let mut at = Bytes::ZERO;
                    for (handle, size) in handles.iter().zip(&sizes) {
                        range.put(at, handle);
                        at += *size;
                    }
                    let base = range.at(Bytes::ZERO);
                    let seed = thread << 32 | round;
                    // SAFETY: the whole range is mapped with read and write access for this device, and is this thread's own.
                    unsafe { host.write_pattern(device, base, all, seed) }.unwrap();
                    std::thread::yield_now();
                    // SAFETY: as above.
                    assert_eq!(unsafe { host.count_wrong(device, base, all, seed) }.unwrap(), 0);
                    range.unmap(Bytes::ZERO, all).unwrap();
                }
            });
        }
    });
    assert_eq!((free(&host, ONE), free(&host, TWO)), (memory, memory));
    assert_eq!(host.drop_log().count(), 0);
}

/// However many threads allocate at once, no more memory is handed out than exists, and none is lost.
#[test]
fn free_memory_is_exact_under_contention() {
    let host = HostConfig::new().granularity(SMALL).memory(Bytes(SMALL.0 * 10)).open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let host = &host;
            scope.spawn(move || {
                let mut refused = 0;
                for _ in 0..2000 {
                    match (create(host, ONE, Bytes(SMALL.0 * 3)), create(host, ONE, Bytes(SMALL.0 * 2))) {
                        (Ok(_), Ok(_)) => {}
                        (one, two) => {
                            refused += 1;
                            let error = one.err().or(two.err()).unwrap();
                            assert!(error.is_out_of_memory(), "{error}");
                        }
                    }
                }
                refused
            });
        }
    });
    assert_eq!(free(&host, ONE), Bytes(SMALL.0 * 10));
    create(&host, ONE, Bytes(SMALL.0 * 10)).unwrap();
}
