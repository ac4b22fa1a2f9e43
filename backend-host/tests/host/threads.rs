//! One backend, many threads.

use crate::range::{create, free};
use crate::{ONE, SMALL};
use gpu_vmm_core::Bytes;
use gpu_vmm_host::HostConfig;

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
