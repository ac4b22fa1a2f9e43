//! The environment of pairs, and how they report results.

use crate::raw::{Plain, Raw};
use crate::row::{Curve, Row, Side, Spread, Target, Unit};
use crate::sampling::{Keep, Sample, Sampling, Times, ratios, timed};
use crate::stop::{StepResult, Stop};
use crate::{Options, Update};
use gpu_vmm_core::{Bytes, DeviceId, Operation, Region, Vendor, WaitFor};
use gpu_vmm_testkit::TestKit;
use std::time::{Duration, Instant};

/// A backend with a device, and the driver below it.
pub(crate) struct Scene<'a, B> {
    pub(crate) backend: &'a B,
    pub(crate) device: DeviceId,
    pub(crate) raw: Raw,
    pub(crate) options: &'a Options<'a>,
    /// Memory for the work that keeps the device awake.
    busy: Option<Plain>,
    tell: &'a mut dyn FnMut(Update),
}

/// How a pair is measured.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The number of samples of each side, unless the options say another.
    pub(crate) samples: usize,
    pub(crate) keep: Keep,
    /// The amount of memory that is freed before the device must settle.
    pub(crate) gives_back: Bytes,
    /// The number of operations that are timed together.
    pub(crate) operations: u64,
    pub(crate) target: Option<Target>,
}

impl Plan {
    /// Takes samples of one operation, without pauses.
    pub(crate) const fn samples(samples: usize) -> Self {
        Self { samples, keep: Keep::Nothing, gives_back: Bytes::ZERO, operations: 1, target: None }
    }

    pub(crate) const fn at_most(self, most: f64) -> Self {
        Self { target: Some(Target::AtMost(most)), ..self }
    }

    pub(crate) const fn together(self, operations: u64) -> Self {
        Self { operations, ..self }
    }

    /// Lets the device settle before each sample, which frees `gives_back`.
    pub(crate) const fn settled(self, gives_back: Bytes) -> Self {
        Self { keep: Keep::Settled, gives_back, ..self }
    }

    /// Keeps the values of samples as long as `room` has space for more; a sample of both sides takes `sample`.
    pub(crate) fn kept(self, sample: Bytes, room: Bytes) -> Self {
        let samples = (room.0 / sample.0.max(1)).max(1);
        let samples = samples.min(self.samples.max(1) as u64);
        Self { keep: Keep::Samples(samples as usize), gives_back: Bytes(sample.0 * samples), ..self }
    }
}

impl<'a, B: TestKit> Scene<'a, B> {
    pub(crate) fn new(
        backend: &'a B,
        device: DeviceId,
        options: &'a Options<'a>,
        tell: &'a mut dyn FnMut(Update),
    ) -> Result<Self, String> {
        warm_up(backend, device).map_err(|error| error.to_string())?;
        let raw = Raw::below(backend, device)?;
        Ok(Self { backend, device, raw, options, busy: None, tell })
    }

    pub(crate) fn is_host(&self) -> bool {
        self.backend.vendor() == Vendor::Host
    }

    /// Reserves addresses on the device, without memory.
    pub(crate) fn room(&self, size: Bytes) -> StepResult<Region<B>> {
        Ok(Region::builder(self.backend).on(self.device).reserve(size).build()?)
    }

    /// Returns the memory that pairs may take.
    pub(crate) fn memory(&self) -> StepResult<Bytes> {
        let free = self.backend.memory_info(self.device)?.free;
        Ok(self.options.memory.map_or(free, |most| most.min(free)))
    }

    /// Ends the pair if less memory is available.
    pub(crate) fn needs(&self, size: Bytes) -> StepResult {
        let free = self.memory()?;
        if size > free {
            return Err(Stop::Skipped(format!("it needs {size}, but only {free} are free")));
        }
        Ok(())
    }

    /// Returns the largest power of two, up to `most`, that fits `times` times into the memory. Ends the pair if it is less
    /// than `least`. Both bounds are powers of two.
    pub(crate) fn fitting(&self, times: u64, least: Bytes, most: Bytes) -> StepResult<Bytes> {
        self.needs(Bytes(least.0 * times))?;
        Ok(most.min(power_of_two(Bytes(self.memory()?.0 / times))))
    }

    pub(crate) fn samples(&self, plan: Plan) -> usize {
        self.options.samples.unwrap_or(plan.samples).max(1)
    }

    /// Measures both sides alternately, in parts.
    pub(crate) fn take<T, U, const PARTS: usize>(
        &mut self,
        plan: Plan,
        ours: impl FnMut() -> StepResult<Sample<T, PARTS>>,
        baseline: impl FnMut() -> StepResult<Sample<U, PARTS>>,
    ) -> StepResult<Times<PARTS>> {
        let samples = self.samples(plan);
        if self.busy.is_none() && !self.is_host() && !matches!(plan.keep, Keep::Nothing) {
            self.busy = Some(self.raw.plain(BUSY)?);
        }
        let (raw, busy) = (&self.raw, &self.busy);
        let mut settle = || settle(raw, busy.as_ref(), plan.gives_back);
        Sampling { samples, keep: plan.keep, settle: &mut settle }.take(ours, baseline)
    }

    /// Measures both sides alternately and reports the result; each side returns its own time.
    pub(crate) fn compare<T, U>(
        &mut self,
        what: impl Into<String>,
        baseline: impl Into<String>,
        plan: Plan,
        ours: impl FnMut() -> StepResult<Sample<T, 1>>,
        other: impl FnMut() -> StepResult<Sample<U, 1>>,
    ) -> StepResult {
        let times = self.take(plan, ours, other)?;
        let ([ours], [other]) = (times.ours, times.baseline);
        self.row(what, baseline, plan, &ours, &other);
        Ok(())
    }

    /// Does the same for sides that are timed as a whole.
    pub(crate) fn compare_whole(
        &mut self,
        what: impl Into<String>,
        baseline: impl Into<String>,
        plan: Plan,
        mut ours: impl FnMut() -> StepResult,
        mut other: impl FnMut() -> StepResult,
    ) -> StepResult {
        self.compare(what, baseline, plan, || timed(&mut ours), || timed(&mut other))
    }

    /// Reports times that were taken alternately.
    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        baseline: impl Into<String>,
        plan: Plan,
        ours: &[f64],
        other: &[f64],
    ) {
        let each = |times: &[f64]| Spread::of(times.iter().map(|time| time / plan.operations as f64));
        self.tell(Update::Row(Row {
            what: what.into(),
            ours: Side { name: OURS.to_owned(), took: each(ours) },
            baseline: Side { name: baseline.into(), took: each(other) },
            unit: Unit::Nanoseconds,
            ratio: ratios(ours, other),
            samples: ours.len(),
            // Targets are for GPUs.
            target: plan.target.filter(|_| !self.is_host()),
        }));
    }

    /// Reports bytes of both sides.
    pub(crate) fn memory_row(
        &mut self,
        what: impl Into<String>,
        baseline: impl Into<String>,
        [ours, others]: [f64; 2],
    ) {
        let side = |name: String, bytes| Side { name, took: Spread::exact(bytes) };
        self.tell(Update::Row(Row {
            what: what.into(),
            ours: side(OURS.to_owned(), ours),
            baseline: side(baseline.into(), others),
            unit: Unit::Bytes,
            ratio: Spread::exact(ours / others),
            samples: 1,
            target: None,
        }));
    }

    pub(crate) fn curve(&mut self, curve: Curve) {
        self.tell(Update::Curve(curve));
    }

    pub(crate) fn tell(&mut self, update: Update) {
        (self.tell)(update);
    }
}

impl<B> Drop for Scene<'_, B> {
    fn drop(&mut self) {
        if let Some(busy) = self.busy.take() {
            // If the driver refuses, the memory is freed with the process.
            let _ = self.raw.free(busy);
        }
    }
}

/// The name of the library's side.
pub(crate) const OURS: &str = "gpu-vmm";

/// No work is queued on a benchmark's memory when it is unmapped.
pub(crate) fn nothing_runs() -> WaitFor<'static> {
    #[allow(unsafe_code)]
    // SAFETY: as above; each side waits for its own queued work.
    unsafe {
        WaitFor::nothing()
    }
}

/// Returns the largest power of two up to this size.
pub(crate) fn power_of_two(size: Bytes) -> Bytes {
    Bytes(size.0.checked_ilog2().map_or(0, |power| 1 << power))
}

const BUSY: Bytes = Bytes::mib(64);

/// Keeps the device awake with small work until it should have finished clearing the freed memory: an idle device goes to
/// sleep, and its driver's calls take several times as long then.
fn settle(raw: &Raw, busy: Option<&Plain>, gives_back: Bytes) -> StepResult {
    let Some(busy) = busy else { return Ok(()) };
    // Memory is cleared at 100 GB/s or more.
    let long = Duration::from_millis(30 + 10 * gives_back.0 / Bytes::gib(1).0);
    let start = Instant::now();
    while start.elapsed() < long {
        raw.clear(busy)?;
    }
    // The first allocation after much memory was freed takes up to 30 ms, for any size.
    for _ in 0..3 {
        raw.release(raw.create(BUSY)?)?;
        raw.free(raw.plain(BUSY)?)?;
    }
    raw.clear(busy)
}

/// Warms up: drivers do much of their work at the first call of a kind, such as creating a context.
fn warm_up<B: TestKit>(backend: &B, device: DeviceId) -> gpu_vmm_core::Result<()> {
    let granule = backend.device(Operation::QueryDevice, device)?.granularity.bytes();
    let mut region = Region::builder(backend).on(device).reserve(granule).build()?;
    region.grow_to(granule)?;
    region.write_pattern(device, Bytes::ZERO, granule, 0)?;
    region.close(WaitFor::all_devices())
}
