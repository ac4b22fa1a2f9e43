//! Allocators that whoever calls brings, compared with the pool: in the orders of the pairs `pool` and `threads`.

use crate::allocator::{Allocator, Pooled};
use crate::pairs::{pool, threads};
use crate::scene::Scene;
use crate::stop::{Answer, Stop};
use crate::{Options, Told};
use gpu_vmm_core::{DeviceId, Stream};
use gpu_vmm_testkit::TestKit;

/// Compares an allocator with the pool of a backend, on one thread, and tells of each figure as it is there. Sizes of which
/// there is not three times as much memory are left out.
///
/// # Errors
///
/// Where either of them fails.
pub fn compare_with_pool<B: TestKit, O: Allocator>(
    backend: &B,
    device: DeviceId,
    other: &O,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Told),
) -> Answer {
    let scene = &mut Scene::new(backend, backend, device, options, tell).map_err(Stop::Failed)?;
    let ours = Pooled::new(backend, device, Stream::DEFAULT)?;
    pool::orders(scene, &ours, other, None)
}

/// The same for what several threads do.
///
/// # Errors
///
/// Where either of them fails.
pub fn compare_with_pool_on_threads<B: TestKit, O: Allocator + Sync>(
    backend: &B,
    device: DeviceId,
    other: &O,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Told),
) -> Answer {
    let scene = &mut Scene::new(backend, backend, device, options, tell).map_err(Stop::Failed)?;
    let ours = Pooled::new(backend, device, Stream::DEFAULT)?;
    pool::handed(scene, &ours, other)?;
    threads::compare(scene, &ours, other)
}
