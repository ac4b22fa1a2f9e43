//! Compares a caller's allocators with the pool: in the orders of the pairs `pool` and `threads`.

use crate::allocator::{Allocator, Pooled};
use crate::pairs::{pool, threads};
use crate::scene::Scene;
use crate::stop::{StepResult, Stop};
use crate::{Options, Update};
use gpu_vmm_core::{DeviceId, Stream};
use gpu_vmm_testkit::TestKit;

/// Compares an allocator with the pool of a backend, on one thread, and reports each figure as soon as it is known. Leaves
/// out sizes for which three times as much memory is not available.
///
/// # Errors
///
/// Those of both allocators.
pub fn compare_with_pool<B: TestKit, O: Allocator>(
    backend: &B,
    device: DeviceId,
    other: &O,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Update),
) -> StepResult {
    let scene = &mut Scene::new(backend, device, options, tell).map_err(Stop::Failed)?;
    let ours = Pooled::new(backend, device, Stream::DEFAULT)?;
    pool::orders(scene, &ours, other, None)
}

/// Compares them on several threads.
///
/// # Errors
///
/// Those of both allocators.
pub fn compare_with_pool_on_threads<B: TestKit, O: Allocator + Sync>(
    backend: &B,
    device: DeviceId,
    other: &O,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Update),
) -> StepResult {
    let scene = &mut Scene::new(backend, device, options, tell).map_err(Stop::Failed)?;
    let ours = Pooled::new(backend, device, Stream::DEFAULT)?;
    pool::handed(scene, &ours, other)?;
    threads::compare(scene, &ours, other)
}
