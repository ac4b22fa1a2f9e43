//! Runs a program against the library and the model at once, and records it as Rust.

use super::free::{Checked, FREE, steady};
use super::model::{ExpectedResult, Model, Placed, Range};
use super::step::{MEMORIES, REGIONS, Spot, Step};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Access, Address, Bytes, DeviceId, Error, PhysicalMemory, Placement, Properties, Region, Result,
};
use gpu_vmm_testkit::{FaultInject, TestKit};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a program.
pub(super) enum Outcome {
    Held,
    /// Only free memory differed; another process may have used some.
    Disturbed(String),
    /// The program, the expected result, and the actual result.
    Broken(String),
}

/// The library runs on a wrapped backend, whose live objects and access can be queried.
pub(super) type Watched<B> = FaultInject<B>;

/// A region and its model.
pub(super) struct Slot<B: TestKit> {
    pub(super) region: Region<Watched<B>>,
    pub(super) range: Range,
}

/// A program that runs.
pub(super) struct Run<'a, B: TestKit> {
    pub(super) regions: [Option<Slot<B>>; REGIONS],
    pub(super) memories: [Option<(PhysicalMemory<Watched<B>>, usize)>; MEMORIES],
    pub(super) places: [Option<Address>; REGIONS],
    pub(super) subject: &'a Subject<B>,
    pub(super) backend: Watched<B>,
    pub(super) devices: [DeviceId; 2],
    pub(super) model: Model,
    pub(super) program: Vec<String>,
}

/// Runs a program, checks all bytes after each `round` steps, and checks at the end that everything was released.
pub(super) fn run<B: TestKit>(subject: &Subject<B>, steps: &[Step], round: usize) -> Outcome {
    let backend = FaultInject::new(subject.backend.clone());
    let free = subject.free();
    let mut run = Run {
        regions: Default::default(),
        memories: Default::default(),
        places: [None; REGIONS],
        subject,
        backend,
        devices: [subject.device, subject.peer().unwrap_or(subject.device)],
        model: Model::new(subject.granularity().0),
        program: Vec::new(),
    };
    let mut checked = catch_unwind(AssertUnwindSafe(|| run.all(steps, round))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("the next step panicked: {}", said.unwrap_or_default()))
    });
    run.regions = Default::default();
    run.memories = Default::default();
    let live = run.backend.live();
    if checked.is_ok() && live != Default::default() {
        checked = Err(format!("after all was dropped, {live:?} is left"));
    }
    if let Some(error) = subject.backend.drop_log().take_last() {
        checked = checked.and(Err(format!("a destructor failed: {error}")));
    }
    match checked {
        Ok(()) => match steady(subject, &free, [0; 2], run.devices) {
            Ok(()) => Outcome::Held,
            Err(how) => Outcome::Disturbed(run.report(&how)),
        },
        Err(how) if how.starts_with(FREE) => Outcome::Disturbed(run.report(&how)),
        Err(how) => Outcome::Broken(run.report(&how)),
    }
}

impl<B: TestKit> Run<'_, B> {
    fn all(&mut self, steps: &[Step], round: usize) -> Checked {
        let free = self.subject.free();
        // Some versions of HIP keep memory until its addresses are free; with these, memory is counted only at the end.
        let late = ["memory-stays-until-free", "release-frees-nothing"];
        let counts = !late.iter().any(|quirk| self.subject.has_quirk(quirk));
        for (number, step) in (1..).zip(steps) {
            self.step(step)?;
            self.check_books()?;
            if counts {
                let held = self.memories.iter().flatten().map(|(_, piece)| *piece);
                let ranges = self.regions.iter().flatten().map(|slot| &slot.range);
                let in_use = self.model.in_use(held, ranges);
                steady(self.subject, &free, in_use, self.devices)?;
            }
            if number % round == 0 || number == steps.len() {
                self.check_bytes()?;
            }
        }
        Ok(())
    }

    fn report(&self, how: &str) -> String {
        format!("{}\n// {how}", self.program.join("\n"))
    }

    /// With a single device, device 1 is device 0.
    pub(super) fn device(&self, number: usize) -> usize {
        if self.devices[0] == self.devices[1] { 0 } else { number }
    }

    pub(super) fn granules(&self, count: u64) -> u64 {
        self.model.granule * count
    }

    /// Compares a result with the expected one, and records the call.
    pub(super) fn answered<T>(
        &mut self,
        call: &str,
        right: ExpectedResult,
        came: Result<T>,
    ) -> Checked<Option<T>> {
        let kind = |error: &Error| {
            let text = format!("{:?}", error.detail());
            text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
        };
        self.program.push(match right {
            Ok(()) => format!("{call}?;"),
            Err(kind) => format!("{call}.unwrap_err(); // {kind}"),
        });
        match (right, came) {
            (Ok(()), Ok(value)) => Ok(Some(value)),
            (Err(right), Err(error)) if kind(&error) == right => Ok(None),
            (right, came) => {
                let right = right.map_or_else(|kind| format!("the error {kind}"), |()| "success".to_owned());
                let came =
                    came.map_or_else(|error| format!("{}: {error}", kind(&error)), |_| "success".into());
                Err(format!("expected {right}, got {came}"))
            }
        }
    }

    fn step(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Create { memory, device, granules } => self.create(memory, self.device(device), granules),
            Step::Forget { memory } => {
                if self.memories[memory].take().is_some() {
                    self.program.push(format!("drop(memory{memory});"));
                }
                Ok(())
            }
            Step::Build { region, granules, for_peer, same_place } => {
                self.build(region, granules, for_peer, same_place)
            }
            Step::Drop { region } => {
                self.drop_region(region);
                Ok(())
            }
            Step::Map { region, memory, spot } => self.map(region, memory, spot),
            Step::Swap { region, other, part, other_part } => self.swap(region, other, part, other_part),
            Step::Unmap { region, .. }
            | Step::SetAccess { region, .. }
            | Step::Grow { region, .. }
            | Step::Shrink { region, .. }
            | Step::Pattern { region, .. }
            | Step::Write { region, .. }
            | Step::Fill { region, .. } => {
                let mut slot = self.take_region(region)?;
                let checked = self.change(region, &mut slot, step);
                self.regions[region] = Some(slot);
                checked
            }
        }
    }

    fn create(&mut self, memory: usize, device: usize, granules: u64) -> Checked {
        let (size, id) = (self.granules(granules), self.devices[device]);
        let call = format!(
            "let memory{memory} = PhysicalMemory::create(&backend, Bytes({size}), Properties::on(DeviceId({})))",
            id.0
        );
        let came = PhysicalMemory::create(&self.backend, Bytes(size), Properties::on(id));
        if let Some(created) = self.answered(&call, Ok(()), came)? {
            let piece = self.model.create(device, size);
            self.memories[memory] = Some((created, piece));
        }
        Ok(())
    }

    fn drop_region(&mut self, region: usize) {
        if let Some(slot) = self.regions[region].take() {
            self.places[region] = Some(slot.region.address());
            drop(slot);
            self.program.push(format!("drop(region{region});"));
        }
    }

    fn build(&mut self, region: usize, granules: u64, for_peer: bool, same_place: bool) -> Checked {
        self.drop_region(region);
        let size = self.granules(granules);
        let [first, second] = self.devices;
        let mut builder = Region::builder(&self.backend).on(first).reserve(Bytes(size));
        let mut call = format!(
            "let mut region{region} = Region::builder(&backend).on(DeviceId({})).reserve(Bytes({size}))",
            first.0
        );
        if let Some(place) = self.places[region].filter(|_| same_place) {
            builder = builder.at(Placement::Prefer(place));
            call += &format!(".at(Placement::Prefer(Address({:#x})))", place.0);
        }
        if for_peer {
            builder = builder.access(second, RW);
            call += &format!(".access(DeviceId({}), Access::ReadWrite)", second.0);
        }
        let came = builder.build();
        if let Some(built) = self.answered(&format!("{call}.build()"), Ok(()), came)? {
            let reservations = vec![size.next_multiple_of(self.subject.unit().0)];
            let range = Range { reservations, for_peer, ..Range::default() };
            self.regions[region] = Some(Slot { region: built, range });
        }
        Ok(())
    }

    /// Takes the region of this number, and builds it if there is none.
    pub(super) fn take_region(&mut self, region: usize) -> Checked<Slot<B>> {
        if self.regions[region].is_none() {
            self.build(region, 8, region == 1, false)?;
        }
        Ok(self.regions[region].take().expect("it was just built"))
    }

    fn map(&mut self, region: usize, memory: usize, spot: Spot) -> Checked {
        if self.memories[memory].is_none() {
            self.create(memory, 0, 1 + memory as u64 % 3)?;
        }
        let (physical, piece) = self.memories[memory].clone().expect("it was just created");
        let mut slot = self.take_region(region)?;
        let size = self.model.size(piece);
        let offset = match spot {
            Spot::At { at, skew } => self.granules(at) + skew,
            Spot::Free(number) => self.model.free_place(&slot.range, size, number),
        };
        let right = self
            .model
            .part(&slot.range, offset, size)
            .and_then(|()| self.model.free(&slot.range, offset, size));
        let came = slot.region.map(Bytes(offset), &physical);
        let call = format!("region{region}.map(Bytes({offset}), &memory{memory})");
        let done = self.answered(&call, right, came);
        if let Ok(Some(())) = done {
            slot.range.mapped.insert(offset, Placed { piece, access: [Access::None; 2] });
        }
        self.regions[region] = Some(slot);
        done.map(drop)
    }
}
