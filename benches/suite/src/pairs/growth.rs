//! Memory that grows in steps: beside the best sequence of the driver's own calls, one create, map and set access for each
//! step, and beside what a program does without virtual memory, which is to allocate, copy and free. Both sides have their
//! addresses before the clock runs.

use super::fresh::{Closing, Freeing};
use crate::raw::{Handle, Plain, Raw};
use crate::row::{Curve, Spread};
use crate::scene::{OURS, Plan, Scene};
use crate::stop::{Answer, Stop};
use crate::turns::{Times, timed};
use gpu_vmm_core::{Address, Bytes, Region, Workbench};
use std::time::{Duration, Instant};

/// What the library may take of the driver's own calls' time.
const AT_MOST: f64 = 1.05;
/// What it may take of copying's: it is to be 200 times as fast.
const AT_MOST_OF_COPYING: f64 = 0.005;

/// Copying gives back many times what it comes to.
const CLEARED: Bytes = Bytes::gib(80);

pub(crate) fn measure<B: Workbench, A: Workbench>(scene: &mut Scene<'_, B, A>) -> Answer {
    let steps: Vec<Bytes> = (1..=128).map(|step| Bytes::mib(64 * step)).collect();
    growth(scene, "in steps of 64 MiB to 8 GiB", &steps, 3, Some(AT_MOST_OF_COPYING))?;
    let doubling: Vec<Bytes> = (1..=15).map(|power| Bytes::mib(1 << power)).collect();
    growth(scene, "by doubling from 2 MiB to 32 GiB", &doubling, 10, None)
}

fn growth<B: Workbench, A: Workbench>(
    scene: &mut Scene<'_, B, A>,
    what: &str,
    steps: &[Bytes],
    copies: usize,
    at_most_of_copying: Option<f64>,
) -> Answer {
    let whole = steps.last().copied().unwrap_or_default();
    let before_last = steps.iter().rev().nth(1).copied().unwrap_or_default();
    scene.needs(Bytes(2 * whole.0))?;
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let ours = || {
        let mut region = Region::builder(backend).on(device).reserve(whole).build()?;
        let (took, ()) = timed(|| Ok(steps.iter().try_for_each(|size| region.grow_to(*size).map(drop))?))?;
        Ok((took, Closing(Some(region))))
    };
    let by_hand = || {
        let mut grown = ByHand::new(&raw, whole)?;
        let (took, ()) = timed(|| grown.grow(steps))?;
        Ok((took, grown))
    };
    let plan = Plan::turns(20).at_most(AT_MOST).kept(Bytes(2 * whole.0), scene.memory()?.min(Bytes::gib(80)));
    scene.compare(what, "driver's own calls", plan, ours, by_hand)?;

    scene.needs(whole + before_last)?;
    let plan = Plan::turns(copies).settled(CLEARED);
    let plan = at_most_of_copying.map_or(plan, |most| plan.at_most(most));
    let copying = || {
        let (took, plain) = timed(|| copying(&raw, steps, &mut |_| {}))?;
        let raw = raw.clone();
        Ok((took, Freeing(move || raw.free(plain))))
    };
    scene.compare(what, "alloc, copy, free", plan, ours, copying)?;
    curves(scene, what, steps, copies)
}

/// The time from the beginning to each size, both ways: the median of some turns.
fn curves<B: Workbench, A: Workbench>(
    scene: &mut Scene<'_, B, A>,
    what: &str,
    steps: &[Bytes],
    turns: usize,
) -> Answer {
    let whole = steps.last().copied().unwrap_or_default();
    let (backend, device, raw) = (scene.backend, scene.device, scene.raw.clone());
    let (mut grown, mut copied) = (Vec::new(), Vec::new());
    let ours = || {
        let mut region = Region::builder(backend).on(device).reserve(whole).build()?;
        let mut times = Vec::with_capacity(steps.len());
        let start = Instant::now();
        for size in steps {
            region.grow_to(*size)?;
            times.push(start.elapsed());
        }
        grown.push(times);
        Ok(([start.elapsed()], Closing(Some(region))))
    };
    let other = || {
        let mut times = Vec::with_capacity(steps.len());
        let (took, plain) = timed(|| copying(&raw, steps, &mut |time| times.push(time)))?;
        copied.push(times);
        let raw = raw.clone();
        Ok((took, Freeing(move || raw.free(plain))))
    };
    let _: Times<1> = scene.take(Plan::turns(turns).settled(CLEARED), ours, other)?;
    for (who, all) in [(OURS, grown), ("alloc, copy, free", copied)] {
        let median = |step: usize| {
            Spread::of(all.iter().filter_map(|times| times.get(step)).map(|time| time.as_nanos() as f64))
                .median
        };
        let points = steps.iter().enumerate().map(|(step, size)| (size.0, median(step))).collect();
        scene.curve(Curve { what: what.to_owned(), who: who.to_owned(), points });
    }
    Ok(())
}

/// Memory that has grown by the driver's own calls.
struct ByHand {
    raw: Raw,
    at: Address,
    reserved: Bytes,
    /// Where each begins.
    parts: Vec<(Address, Handle)>,
    end: Bytes,
}

impl ByHand {
    fn new(raw: &Raw, reserved: Bytes) -> Answer<Self> {
        let at = raw.reserve(reserved)?;
        Ok(Self { raw: raw.clone(), at, reserved, parts: Vec::with_capacity(256), end: Bytes::ZERO })
    }

    fn grow(&mut self, steps: &[Bytes]) -> Answer {
        for size in steps {
            let more = *size - self.end;
            let handle = self.raw.create(more)?;
            self.parts.push((self.at + self.end, handle));
            self.raw.map(self.at + self.end, handle)?;
            self.raw.open(self.at + self.end, more)?;
            self.end = *size;
        }
        Ok(())
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // What cannot be given back is seen by the next turn, which finds less memory.
        for (at, handle) in self.parts.drain(..) {
            let _ = self.raw.unmap(at, handle.size);
            let _ = self.raw.release(handle);
        }
        let _ = self.raw.free_addresses(self.at, self.reserved);
    }
}

/// What a program does that has no virtual memory management. `step` is told the time at which each size was reached.
fn copying(raw: &Raw, steps: &[Bytes], step: &mut dyn FnMut(Duration)) -> Answer<Plain> {
    let start = Instant::now();
    let mut old: Option<Plain> = None;
    for size in steps {
        let new = raw.plain(*size)?;
        if let Some(old) = old.replace(new) {
            raw.copy(new, old, old.size)?;
            raw.free(old)?;
        }
        step(start.elapsed());
    }
    raw.synchronize()?;
    old.ok_or_else(|| Stop::Failed("there is no step".to_owned()))
}
