//! The cost of gpu-vmm compared with programs that do without it. Two ways to the same end form a pair; they are measured
//! alternately in one run, so that changes of the machine affect both.
//!
//! `gpu-vmm bench` runs them and writes the results.

// The driver's own calls are looked up with Unix functions.
#![cfg(unix)]

mod allocator;
mod comparison;
mod pairs;
mod pytorch;
mod random;
mod raw;
mod row;
mod sampling;
mod scene;
mod stop;

pub use allocator::Allocator;
pub use comparison::{compare_with_pool, compare_with_pool_on_threads};
use gpu_vmm_core::{Bytes, DeviceId};
use gpu_vmm_testkit::TestKit;
pub use pairs::{About, about};
pub use row::{Curve, Row, Side, Spread, Target, Unit};
use scene::Scene;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
pub use stop::{StepResult, Stop};

/// Which pairs are measured, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Only pairs with this in their name.
    pub filter: Option<&'a str>,
    /// The number of samples of each side; by default each pair decides.
    pub samples: Option<usize>,
    /// The most memory that pairs may take, if less than the free memory.
    pub memory: Option<Bytes>,
    /// The folder of PyTorch's libraries (`torch/lib`), to compare its allocator too.
    pub torch: Option<&'a Path>,
}

/// The events of a run, in order.
#[derive(Debug)]
pub enum Update {
    /// A pair begins.
    Begins(About),
    /// A figure of it.
    Row(Row),
    /// Times against sizes.
    Curve(Curve),
    /// The pair cannot be measured here, and why.
    Skipped(String),
    /// The pair failed, and why.
    Failed(String),
}

/// Measures one pair after the other on a device, and reports each figure as soon as it is known.
///
/// # Errors
///
/// If the driver's own calls cannot be loaded.
pub fn run<B: TestKit>(
    backend: &B,
    device: DeviceId,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Update),
) -> Result<(), String> {
    let pairs = pairs::all::<B>();
    let wanted = pairs.iter().filter(|pair| options.filter.is_none_or(|text| pair.about.name.contains(text)));
    for pair in wanted {
        tell(Update::Begins(pair.about));
        // Each begins on a scene of its own, so that pairs do not affect each other.
        let mut scene = Scene::new(backend, device, options, tell)?;
        let ended = catch_unwind(AssertUnwindSafe(|| (pair.measure)(&mut scene)));
        drop(scene);
        match ended.unwrap_or_else(|panic| Err(Stop::of(panic))) {
            Ok(()) => {}
            Err(Stop::Skipped(reason)) => tell(Update::Skipped(reason)),
            Err(Stop::Failed(error)) => tell(Update::Failed(error)),
        }
    }
    Ok(())
}
