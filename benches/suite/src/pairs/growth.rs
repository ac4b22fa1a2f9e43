//! Memory that grows in steps. It is compared with the best sequence of the driver's own calls, one create, map and set
//! access for each step, and with a program without virtual memory, which allocates, copies and frees. Both sides have their
//! addresses before the timing starts.

use super::fresh::Closing;
use crate::raw::{Handle, Plain, Raw};
use crate::row::{Curve, Spread};
use crate::scene::{OURS, Plan, Scene};
use crate::stop::StepResult;
use gpu_vmm_core::{Address, Bytes, Region};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

/// The limit of the library's time relative to the driver's own calls.
const TARGET: f64 = 1.05;
/// The limit relative to copying: the library must be 200 times as fast.
const AT_MOST_OF_COPYING: f64 = 0.005;

const COPYING: &str = "alloc, copy, free";

/// Copying frees many times the final size. While that memory is cleared, everything takes longer: the second 32 GiB in a row
/// take five times as long as the first ones, on either side.
const CLEARED: Bytes = Bytes::gib(80);

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let steps: Vec<Bytes> = (1..=128).map(|step| Bytes::mib(64 * step)).collect();
    growth(scene, "in steps of 64 MiB to 8 GiB", &steps, 6, Some(AT_MOST_OF_COPYING))?;
    let doubling: Vec<Bytes> = (1..=15).map(|power| Bytes::mib(1 << power)).collect();
    growth(scene, "by doubling from 2 MiB to 32 GiB", &doubling, 6, None)
}

fn growth<B: TestKit>(
    scene: &mut Scene<'_, B>,
    what: &str,
    steps: &[Bytes],
    copies: usize,
    at_most_of_copying: Option<f64>,
) -> StepResult {
    let whole = steps.last().copied().unwrap_or_default();
    let before_last = steps.iter().rev().nth(1).copied().unwrap_or_default();
    scene.needs(Bytes(2 * whole.0))?;
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let ours = |points: &mut Points| {
        let mut region = Region::builder(backend).on(device).reserve(whole).build()?;
        let took = points.take(steps, |size| Ok(region.grow_to(size).map(drop)?))?;
        Ok((took, Closing(Some(region))))
    };
    let by_hand = || {
        let mut memory = Grown::new(&raw, whole)?;
        let took = Points::default().take(steps, |size| memory.grow_to(size))?;
        Ok((took, memory))
    };
    let plan = Plan::samples(20).at_most(TARGET).settled(CLEARED);
    scene.compare(what, "driver's own calls", plan, || ours(&mut Points::default()), by_hand)?;

    if scene.is_host() {
        return Ok(()); // the kernel provides pages when they are touched, which copying does and growing does not
    }
    scene.needs(whole + before_last)?;
    let plan = Plan::samples(copies).settled(CLEARED);
    let plan = at_most_of_copying.map_or(plan, |most| plan.at_most(most));
    let (mut grown, mut copied) = (Points::default(), Points::default());
    let copying = || {
        let mut memory = Copied { raw: &raw, plain: None };
        let took = copied.take(steps, |size| memory.grow_to(size))?;
        Ok((took, memory))
    };
    scene.compare(what, COPYING, plan, || ours(&mut grown), copying)?;
    for (name, points) in [(OURS, grown), (COPYING, copied)] {
        scene.curve(points.curve(what, name, steps));
    }
    Ok(())
}

/// The times at which each size was reached, for several samples.
#[derive(Default)]
struct Points(Vec<Vec<Duration>>);

impl Points {
    /// Grows to one size after the other, and returns the total time.
    fn take(
        &mut self,
        steps: &[Bytes],
        mut grow_to: impl FnMut(Bytes) -> StepResult,
    ) -> StepResult<[Duration; 1]> {
        let mut times = Vec::with_capacity(steps.len());
        let start = Instant::now();
        for size in steps {
            grow_to(*size)?;
            times.push(start.elapsed());
        }
        let took = times.last().copied().unwrap_or_default();
        self.0.push(times);
        Ok([took])
    }

    /// The medians.
    fn curve(self, what: &str, who: &str, steps: &[Bytes]) -> Curve {
        let median = |step: usize| {
            let times = self.0.iter().filter_map(|times| times.get(step));
            Spread::of(times.map(|time| time.as_nanos() as f64)).median
        };
        let points = steps.iter().enumerate().map(|(step, size)| (size.0, median(step))).collect();
        Curve { what: what.to_owned(), who: who.to_owned(), points }
    }
}

/// Memory that has grown by the driver's own calls.
struct Grown {
    raw: Raw,
    at: Address,
    reserved: Bytes,
    /// The first address of each part, and its handle.
    parts: Vec<(Address, Handle)>,
    end: Bytes,
}

impl Grown {
    fn new(raw: &Raw, reserved: Bytes) -> StepResult<Self> {
        let at = raw.reserve(reserved)?;
        Ok(Self { raw: raw.clone(), at, reserved, parts: Vec::with_capacity(256), end: Bytes::ZERO })
    }

    fn grow_to(&mut self, size: Bytes) -> StepResult {
        let (at, more) = (self.at + self.end, size - self.end);
        let handle = self.raw.create(more)?;
        self.parts.push((at, handle));
        self.raw.map(at, handle)?;
        self.raw.open(at, more)?;
        self.end = size;
        Ok(())
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        // Memory that cannot be freed is missing in the next sample, which reports it.
        for (at, handle) in self.parts.drain(..) {
            let _ = self.raw.unmap(at, handle.size);
            let _ = self.raw.release(handle);
        }
        let _ = self.raw.free_addresses(self.at, self.reserved);
    }
}

/// Memory that grows without virtual memory management.
struct Copied<'a> {
    raw: &'a Raw,
    plain: Option<Plain>,
}

impl Copied<'_> {
    fn grow_to(&mut self, size: Bytes) -> StepResult {
        let new = self.raw.plain(size)?;
        if let Some(old) = self.plain.replace(new) {
            self.raw.copy(new, old, old.size)?;
            // Waits for the copy.
            self.raw.free(old)?;
        }
        Ok(())
    }
}

impl Drop for Copied<'_> {
    fn drop(&mut self) {
        // As above.
        let _ = self.plain.take().map(|plain| self.raw.free(plain));
    }
}
