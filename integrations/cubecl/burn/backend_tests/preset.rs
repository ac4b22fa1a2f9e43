//! The device memory of burn's own backend tests: a pool of gpu-vmm, if the environment variable `MEMORY` is `gpu-vmm`.

use cubecl_server::server::IoError;
use gpu_vmm::Stream;
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::pool::Pool;
use gpu_vmm_cubecl::cubecl_0_11::{Addresses, PoolStorage};
use std::sync::OnceLock;

static POOL: OnceLock<Pool<CudaBackend>> = OnceLock::new();

/// Lets cubecl's CUDA server allocate from a pool, and prints the pool's statistics when the process ends.
pub fn preset() {
    if std::env::var("MEMORY").as_deref() != Ok("gpu-vmm") {
        return;
    }
    let backend = CudaBackend::open().expect("the driver opens");
    let pool = Pool::builder(&backend).build().expect("the device has memory");
    let first = cubecl_cuda::set_storage({
        let pool = pool.clone();
        move |stream, alignment| {
            // SAFETY: cubecl's servers live, with their streams, until the process ends.
            let stream = unsafe { Stream::from_raw(stream.cast()) };
            Ok::<_, IoError>(Box::new(Addresses(PoolStorage::new(&pool, stream, alignment))))
        }
    });
    assert!(first && POOL.set(pool).is_ok(), "the storage is set once");
    // SAFETY: the function has the type that `atexit` calls, and does not unwind.
    unsafe { atexit(report) };
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

extern "C" fn report() {
    if let Some(pool) = POOL.get() {
        let stats = pool.stats();
        eprintln!("{stats}; {} allocations", stats.allocations);
    }
}
