//! Measures an allocation with its free by a warm pool on host memory, compared with other sub-allocators: `cargo bench
//! --bench sub_allocators`. `gpu-vmm bench` measures the comparisons on a GPU.
//!
//! They do less than the pool. `offset-allocator` returns numbers in one range that never grows, without alignment, and for
//! one thread; for several threads it is behind a lock. `gpu-allocator` does the same over blocks of 256 MiB, with a name for
//! each allocation. Its sub-allocator is internal, so it is called through its Vulkan interface, over a device whose memory
//! consists of numbers. No driver call is in its times. Sizes above a block are left out, because each would be such a call.

mod graphics;
mod offsets;

use gpu_vmm::host::HostBackend;
use gpu_vmm::{Bytes, DeviceId};
use gpu_vmm_bench::{Options, StepResult, Unit, Update, compare_with_pool, compare_with_pool_on_threads};
use graphics::Graphics;
use offsets::{Locked, Offsets};

const DEVICE: DeviceId = DeviceId(0);

fn main() {
    if let Err(stop) = run() {
        println!("{stop:?}");
        std::process::exit(1);
    }
}

fn run() -> StepResult {
    let host = HostBackend::open()?;
    let all = Options::default();
    // Only sizes that fit three times.
    let small = Options { memory: Some(Bytes(3 * Graphics::LARGEST.0)), ..all };
    println!(
        "{:<38} {:<24} {:>10} {:>10} {:>7}  medians: ns a pair, or million pairs a second",
        "what", "compared with", "other", "pool", "ratio"
    );
    compare_with_pool(&host, DEVICE, &Offsets::new(), &all, &mut tell)?;
    compare_with_pool(&host, DEVICE, &Graphics::new()?, &small, &mut tell)?;
    compare_with_pool_on_threads(&host, DEVICE, &Locked::new(), &all, &mut tell)
}

fn tell(update: Update) {
    let Update::Row(row) = update else { return };
    let unit = if row.unit == Unit::MillionsPerSecond { "M/s" } else { "ns" };
    let [other, ours] = [&row.baseline, &row.ours].map(|side| format!("{:.1} {unit}", side.took.median));
    println!("{:<38} {:<24} {other:>10} {ours:>10} {:>7.3}", row.what, row.baseline.name, row.ratio.median);
}
