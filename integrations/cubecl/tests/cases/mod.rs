//! The tests, which are the same for each version of cubecl. On host memory.

use super::{cubecl_ir, cubecl_server, gpu_vmm_cubecl};
use gpu_vmm::Bytes;
use gpu_vmm::host::{HostBackend, HostConfig};
use gpu_vmm::pool::Pool;

mod addresses;
mod memory;
mod storage;

const MEMORY: Bytes = Bytes::mib(64);
const ALIGNMENT: usize = 512;

fn pool() -> (HostBackend, Pool<HostBackend>) {
    let backend = HostConfig::new().memory(MEMORY).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    (backend, pool)
}
