//! The number of blocks that a thread cache fetches at a time.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs)]

use gpu_vmm_core::Bytes;
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;

#[test]
fn a_size_that_is_new_is_fetched_in_few_pieces_and_one_that_is_asked_for_again_in_many() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let size = Bytes(256);
    let fetched = || pool.stats().cached / size.0;
    let mut blocks = Vec::new();
    let mut fetches = Vec::new();
    for _ in 0..10 {
        let before = fetched();
        blocks.push(pool.alloc(size).unwrap());
        if fetched() > before {
            fetches.push(fetched() + 1);
        }
    }
    assert_eq!(fetches, [4, 32]);
}
