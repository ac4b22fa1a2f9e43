//! What gpu-vmm costs, compared with what a program would do without it: pairs of ways to the same end, measured alternately in one
//! run, so that whatever changes on the machine meets both.
//!
//! | file | subject |
//! |---|---|
//! | `pairs` | what is measured, a file for each subject |
//! | `sampling` | how it is measured: who goes first changes, and memory that was just given back gets time to settle |
//! | `row` | what came of it |
//! | `scene`, `raw` | on what it is measured, and the driver's own calls |
//! | `random` | numbers that no cache foresees |
//! | `stop` | why a pair ends before its end |
//! | `allocator`, `pytorch`, `comparison` | any allocator under one name, PyTorch's, and those that callers bring |
//!
//! `gpu-vmm bench` runs them and writes what they tell.

// The driver's own calls are found as Unix has them.
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
pub use stop::{Answer, Stop};

/// What is to be measured, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Only pairs that have this in their name.
    pub filter: Option<&'a str>,
    /// The number of samples of each side; without it each pair decides.
    pub samples: Option<usize>,
    /// The most memory that pairs may take, where that is less than is free.
    pub memory: Option<Bytes>,
    /// The folder of PyTorch's libraries (`torch/lib`), whose allocator is to be one of the others.
    pub torch: Option<&'a Path>,
}

/// What a run tells, in order.
#[derive(Debug)]
pub enum Told {
    /// A pair begins.
    Begins(About),
    /// A figure of it.
    Row(Row),
    /// Times against sizes.
    Curve(Curve),
    /// It cannot be measured here, and why.
    Skipped(String),
    /// It failed, and of what.
    Failed(String),
}

/// Measures one pair after the other on a device, and tells of each figure as it is there. `any` is the same backend, chosen at
/// run time.
///
/// # Errors
///
/// Where the driver's own calls cannot be had.
pub fn run<B: TestKit, A: TestKit>(
    backend: &B,
    any: &A,
    device: DeviceId,
    options: &Options<'_>,
    tell: &mut dyn FnMut(Told),
) -> Result<(), String> {
    let pairs = pairs::all::<B, A>();
    let wanted = pairs.iter().filter(|pair| options.filter.is_none_or(|text| pair.about.name.contains(text)));
    for pair in wanted {
        tell(Told::Begins(pair.about));
        // Each begins on a scene of its own: what one leaves behind is not the next one's.
        let mut scene = Scene::new(backend, any, device, options, tell)?;
        let ended = catch_unwind(AssertUnwindSafe(|| (pair.measure)(&mut scene)));
        drop(scene);
        match ended.unwrap_or_else(|panic| Err(Stop::of(panic))) {
            Ok(()) => {}
            Err(Stop::Skipped(reason)) => tell(Told::Skipped(reason)),
            Err(Stop::Failed(error)) => tell(Told::Failed(error)),
        }
    }
    Ok(())
}
