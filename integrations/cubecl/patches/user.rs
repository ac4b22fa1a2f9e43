//! Lets cubecl's CUDA and HIP servers allocate from pools of gpu-vmm: type-checked against the patched servers.

use cubecl_server::server::IoError;
use cubecl_server::storage::ComputeStorage;
use gpu_vmm::pool::Pool;
use gpu_vmm::{Backend, Stream};
use gpu_vmm_cubecl::cubecl_0_11::{Addresses, PoolStorage};
use std::ffi::c_void;

fn storage<B: Backend>(
    pool: &Pool<B>,
    stream: *mut c_void,
    alignment: usize,
) -> Box<dyn ComputeStorage<Resource = u64>> {
    // SAFETY: cubecl's servers live, with their streams, until the process ends.
    let stream = unsafe { Stream::from_raw(stream) };
    Box::new(Addresses(PoolStorage::new(pool, stream, alignment)))
}

/// Call this before the first use of the device. Returns false if a storage was set before.
pub fn use_pool_on_cuda(pool: Pool<gpu_vmm::cuda::CudaBackend>) -> bool {
    cubecl_cuda::set_storage(move |stream, alignment| {
        Ok::<_, IoError>(storage(&pool, stream.cast(), alignment))
    })
}

/// Call this before the first use of the device. Returns false if a storage was set before.
pub fn use_pool_on_hip(pool: Pool<gpu_vmm::hip::HipBackend>) -> bool {
    cubecl_hip::set_storage(move |stream, alignment| {
        Ok::<_, IoError>(storage(&pool, stream.cast(), alignment))
    })
}
