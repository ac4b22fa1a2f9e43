//! What a warm pool takes for an allocation with its free: beside the CUDA driver's own pool (`cuMemAllocAsync`,
//! `cuMemFreeAsync`), and on host memory beside sub-allocators that others use, in turn in one run. And how much more
//! several threads get done than one.
//!
//! `cargo bench --bench pool`; without an NVIDIA GPU it says so and does the host's part. By environment:
//!
//! | variable | default | |
//! |---|---|---|
//! | `POOL_BACKENDS` | `cuda,host` | which parts |
//! | `POOL_TURNS` | 200 | how often each is timed |
//! | `POOL_PAIRS` | 1000 | how many allocations with their frees are timed together |
//! | `POOL_THREAD_MS` | 20 | how long one thread is at work where several are compared with it |
//!
//! What stands beside the pool on the host does less than it: `offset-allocator` gives out numbers in one range that never
//! grows, without alignment, and is one thread's. `gpu-allocator` does the same over blocks of 256 MiB, with a name for each
//! allocation. Its sub-allocator is internal, so it is called through its Vulkan door, over a device whose memory is numbers:
//! no call of a driver is in its times, and sizes above a block, each of which would be such a call, are left out.
#![allow(unsafe_code)]

#[path = "../measure/mod.rs"]
mod measure;

mod beside;
mod patterns;
mod threads;

use beside::{Driver, Graphics, Locked, Offsets};
use gpu_vmm::cuda::CudaBackend;
use gpu_vmm::host::HostBackend;
use gpu_vmm::pool::Pool;
use gpu_vmm::{Backend, Bytes, DeviceId, Stream};
use patterns::{Failed, Pooled, Rows};

const DEVICE: DeviceId = DeviceId(0);

const SMALL: [Bytes; 3] = [Bytes(512), Bytes::kib(4), Bytes::kib(48)];
const MEDIUM: [Bytes; 2] = [Bytes::kib(128), Bytes::kib(512)];
const LARGE: [Bytes; 3] = [Bytes::mib(4), Bytes::mib(64), Bytes::gib(1)];
/// Several sizes in turn, as a program has them.
const MIXED: [Bytes; 6] =
    [Bytes(512), Bytes::kib(4), Bytes::kib(48), Bytes::kib(128), Bytes::kib(512), Bytes::mib(4)];

fn main() {
    let parts = std::env::var("POOL_BACKENDS").unwrap_or_else(|_| "cuda,host".to_owned());
    for part in parts.split(',') {
        let ran = match part {
            "cuda" => {
                measure::on_cuda(on_cuda);
                Ok(())
            }
            "host" => on_host(),
            other => Err(format!("POOL_BACKENDS has {other:?}: it is a list of `cuda` and `host`").into()),
        };
        if let Err(error) = ran {
            println!("failed: {error}");
            std::process::exit(1);
        }
    }
}

/// A number of the environment's.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 0)
        .unwrap_or(default)
}

fn on_cuda(cuda: &CudaBackend) -> Result<(), Failed> {
    let driver = Driver::new(DEVICE);
    let pool = pool(cuda, driver.stream())?;
    let rows = Rows::head();
    for size in SMALL.into_iter().chain(MEDIUM).chain(LARGE) {
        rows.pairs(size, &pool, &driver)?;
    }
    for sizes in windows() {
        rows.window(sizes, &pool, &driver)?;
    }
    for size in threads::SIZES {
        rows.handed(size, &pool, &driver)?;
    }
    threads::compare(&pool, &driver)
}

fn on_host() -> Result<(), Failed> {
    let host = HostBackend::open()?;
    println!("host memory, {}", host.driver().version);
    let pool = pool(&host, Stream::DEFAULT)?;
    let (offsets, graphics) = (Offsets::new(), Graphics::new()?);
    let rows = Rows::head();
    for size in SMALL.into_iter().chain(MEDIUM).chain(LARGE) {
        rows.pairs(size, &pool, &offsets)?;
        if size <= Graphics::LARGEST {
            rows.pairs(size, &pool, &graphics)?;
        }
    }
    for sizes in windows() {
        rows.window(sizes, &pool, &offsets)?;
        rows.window(sizes, &pool, &graphics)?;
    }
    let locked = Locked::new();
    for size in threads::SIZES {
        rows.handed(size, &pool, &locked)?;
    }
    threads::compare(&pool, &locked)
}

fn windows() -> [&'static [Bytes]; 4] {
    [&SMALL[1..2], &MEDIUM[1..2], &LARGE[..1], &MIXED]
}

fn pool<B: Backend>(backend: &B, stream: Stream<'static>) -> Result<Pooled<B>, Failed> {
    Ok(Pooled { pool: Pool::builder(backend).device(DEVICE).build()?, stream })
}
