//! An allocation with its free by a warm pool, in several orders of allocating and freeing. It is compared with the driver's
//! own pool, with the program's heap for host memory, and with PyTorch's allocator if its libraries are named.

use super::order::{Handed, Window};
use crate::allocator::{Allocator, DriversPool, Heap, Pooled, pairs};
use crate::pytorch::Torch;
use crate::scene::{Plan, Scene};
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;

const SIZES: [Bytes; 8] = [
    Bytes(512),
    Bytes::kib(4),
    Bytes::kib(48),
    Bytes::kib(128),
    Bytes::kib(512),
    Bytes::mib(4),
    Bytes::mib(64),
    Bytes::gib(1),
];

/// Several sizes in turn, as in a program.
const MIXED: [Bytes; 6] =
    [Bytes(512), Bytes::kib(4), Bytes::kib(48), Bytes::kib(128), Bytes::kib(512), Bytes::mib(4)];

/// The number of pairs that are timed together.
pub(super) const PAIRS: u64 = 1000;

pub(super) const PLAN: Plan = Plan::samples(200).together(PAIRS);

/// The limit of a pair's time relative to the driver's.
const TARGET: f64 = 0.15;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    if scene.is_host() {
        let pool = Pooled::new(scene.backend, scene.device, Stream::DEFAULT)?;
        orders(scene, &pool, &Heap, None)?;
        return handed(scene, &pool, &Heap);
    }
    let drivers = DriversPool::new(&scene.raw)?;
    let pool = Pooled::new(scene.backend, scene.device, drivers.stream())?;
    orders(scene, &pool, &drivers, Some(TARGET))?;
    handed(scene, &pool, &drivers)?;
    let Some(folder) = scene.options.torch else { return Ok(()) };
    let torch = Torch::load(folder, &scene.raw)?;
    orders(scene, &pool, &torch, None)?;
    handed(scene, &pool, &torch)
}

/// Measures the orders on one thread.
pub(crate) fn orders<B: TestKit, P: Allocator, O: Allocator>(
    scene: &mut Scene<'_, B>,
    pool: &P,
    other: &O,
    at_most: Option<f64>,
) -> StepResult {
    let name = other.name();
    let targeted = at_most.map_or(PLAN, |most| PLAN.at_most(most));
    let memory = scene.memory()?;
    for size in SIZES.into_iter().filter(|size| Bytes(3 * size.0) <= memory) {
        scene.compare_whole(
            format!("{size}: pair"),
            &*name,
            targeted,
            || pairs(pool, size, PAIRS),
            || pairs(other, size, PAIRS),
        )?;
    }
    for (what, sizes) in [
        ("4 KiB", &[Bytes::kib(4)][..]),
        ("512 KiB", &[Bytes::kib(512)]),
        ("4 MiB", &[Bytes::mib(4)]),
        ("512 B to 4 MiB", &MIXED),
    ] {
        let (mut ours, mut others) = (Window::new(pool, sizes)?, Window::new(other, sizes)?);
        scene.compare_whole(
            format!("{what}: one of 64 replaced"),
            &*name,
            PLAN,
            || ours.replace(PAIRS),
            || others.replace(PAIRS),
        )?;
        ours.end()?;
        others.end()?;
    }
    Ok(())
}

/// Measures blocks that one thread allocates and another one frees.
pub(crate) fn handed<B: TestKit, P: Allocator + Sync, O: Allocator + Sync>(
    scene: &mut Scene<'_, B>,
    pool: &P,
    other: &O,
) -> StepResult {
    let name = other.name();
    for size in [Bytes::kib(4), Bytes::kib(512)] {
        std::thread::scope(|scope| {
            let (mut ours, mut others) = (Handed::new(scope, pool), Handed::new(scope, other));
            scene.compare_whole(
                format!("{size}: freed by another thread"),
                &*name,
                PLAN,
                || ours.pass(size, PAIRS),
                || others.pass(size, PAIRS),
            )
        })?;
    }
    Ok(())
}
