//! What a warm pool takes for an allocation with its free on host memory, compared with sub-allocators that others use:
//! `cargo bench --bench sub_allocators`. What is compared with the pool on a GPU is measured by `gpu-vmm bench`.
//!
//! They do less than it: `offset-allocator` gives out numbers in one range that never grows, without alignment, and is one
//! thread's; for several it is behind a lock. `gpu-allocator` does the same over blocks of 256 MiB, with a name for each
//! allocation. Its sub-allocator is internal, so it is called through its Vulkan door, over a device whose memory is numbers: no
//! call of a driver is in its times, and sizes above a block, each of which would be such a call, are left out.

mod graphics;
mod offsets;

use gpu_vmm::host::HostBackend;
use gpu_vmm::{Bytes, DeviceId};
use gpu_vmm_bench::{Answer, Options, Told, Unit, compare_with_pool, compare_with_pool_on_threads};
use graphics::Graphics;
use offsets::{Locked, Offsets};

const DEVICE: DeviceId = DeviceId(0);

fn main() {
    if let Err(stop) = run() {
        println!("{stop:?}");
        std::process::exit(1);
    }
}

fn run() -> Answer {
    let host = HostBackend::open()?;
    let all = Options::default();
    // Sizes are those of which there are three.
    let small = Options { memory: Some(Bytes(3 * Graphics::LARGEST.0)), ..all };
    println!(
        "{:<38} {:<24} {:>10} {:>10} {:>7}  medians: ns a pair, or million pairs a second",
        "what", "compared with", "other", "pool", "ratio"
    );
    compare_with_pool(&host, DEVICE, &Offsets::new(), &all, &mut tell)?;
    compare_with_pool(&host, DEVICE, &Graphics::new()?, &small, &mut tell)?;
    compare_with_pool_on_threads(&host, DEVICE, &Locked::new(), &all, &mut tell)
}

fn tell(told: Told) {
    let Told::Row(row) = told else { return };
    let unit = if row.unit == Unit::MillionsPerSecond { "M/s" } else { "ns" };
    let [other, ours] = [&row.baseline, &row.ours].map(|side| format!("{:.1} {unit}", side.took.median));
    println!("{:<38} {:<24} {other:>10} {ours:>10} {:>7.3}", row.what, row.baseline.name, row.ratio.median);
}
