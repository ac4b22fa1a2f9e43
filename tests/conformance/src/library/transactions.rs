//! Rule 3: an operation that fails at any driver call leaves everything as it was.
//!
//! Each operation is run again and again, with the first driver call failing, then the second, and so on until it
//! succeeds.

use crate::case::cases;
use crate::subject::{Subject};
use gpu_vmm_core::decorators::FaultInject;
use gpu_vmm_core::{Access, Bytes, Done, Physical, Placement, Properties, Region, Result, Workbench};

cases! { "transactions":
    /// map.
    map,
    /// unmap.
    unmap,
    /// unmap a run.
    unmap_a_run,
    /// set access.
    set_access,
    /// set access of several.
    set_access_of_several,
    /// set access across reservations.
    set_access_across_reservations,
    /// unmap across reservations.
    unmap_across_reservations,
    /// grow within.
    grow_within,
    /// grow extended.
    grow_extended,
    /// grow remapped.
    grow_remapped,
    /// shrink.
    shrink,
    /// build.
    build,
}

pub(crate) type Backend = FaultInject<B>;
/// A region under test with everything that a failure must not change.
pub(crate) struct Bench {
    pub(crate) backend: Backend,
    pub(crate) region: Region<Backend>,
    /// Behind the region, so that it cannot be extended.
    wall: Option<Region<Backend>>,
    pub(crate) memory: Physical<Backend>,
    pub(crate) unit: Bytes,
}

/// What an operation finds.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Start {
    /// One reservation of 8 units, and free addresses behind it.
    Free,
    /// The same with nothing free behind it.
    Walled,
    /// The same extended by a second reservation, in which there is memory as well.
    Extended,
}

/// What is compared.
#[derive(Debug, PartialEq)]
struct State {
    range: gpu_vmm_core::AddressRange,
    reservations: usize,
    mappings: Vec<(Bytes, Bytes, Access)>,
    wrong: Vec<u64>,
    writable: Vec<bool>,
    free: Vec<Bytes>,
}

impl Bench {
    /// Units 0, 1 to 2 and 3 to 5 mapped with the pattern in them, 6 and 7 reserved.
    pub(crate) fn new<B: Workbench>(subject: &Subject<B>, start: Start) -> Self {
        let backend = FaultInject::new(subject.backend.clone());
        let unit = subject.unit();
        let base = subject.hole(64);
        let place = Placement::Exact(base);
        let mut region =
            Region::builder(&backend).reserve(subject.units(8)).at(place).extend_by(unit).build().unwrap();
        for units in [1, 3, 6] {
            region.grow_to(subject.units(units)).unwrap();
        }
        if start == Start::Extended {
            region.grow_to(subject.units(10)).unwrap();
        }
        region.write_pattern(subject.device, Bytes(0), region.end(), 1).unwrap();
        region.set_access(unit, subject.units(2), subject.device, Access::Read).unwrap();
        let wall = (start == Start::Walled).then(|| {
            let behind = Placement::Exact(region.range().end());
            Region::builder(&backend).reserve(unit).at(behind).build().unwrap()
        });
        let memory = Physical::create(&backend, unit, Properties::on(subject.device)).unwrap();
        Self { backend, region, wall, memory, unit }
    }

    fn state<B: Workbench>(&mut self, subject: &Subject<B>) -> State {
        let mappings: Vec<_> =
            self.region.mappings().map(|mapping| (mapping.offset, mapping.length)).collect();
        let wrong = |(offset, length): &(Bytes, Bytes)| {
            self.region.count_wrong(subject.device, *offset, *length, 1 + offset.0 / 8).unwrap_or(u64::MAX)
        };
        let wrong = mappings.iter().map(wrong).collect();
        // What the books say must be what the driver does.
        let writable = mappings.iter().map(|(offset, _)| {
            let mut bytes = [0];
            self.region.read(*offset, &mut bytes).and_then(|()| self.region.write(*offset, &bytes)).is_ok()
        });
        State {
            writable: writable.collect(),
            range: self.region.range(),
            reservations: self.region.reservations().len(),
            wrong,
            mappings: mappings
                .iter()
                .map(|(offset, length)| (*offset, *length, self.region.access(*offset, subject.device)))
                .collect(),
            free: subject.free(),
        }
    }
}

/// Lets each driver call of an operation fail in turn. At least `least` of them must be there.
fn sweep<B: Workbench>(subject: &Subject<B>, start: Start, least: u64, operation: fn(&mut Bench) -> Result<()>) {
    for failing in 0.. {
        let mut bench = Bench::new(subject, start);
        let before = bench.state(subject);
        bench.backend.fail(failing, 1);
        let result = operation(&mut bench);
        let calls = bench.backend.stop();
        match result {
            // A wish that is not granted has a plainer one behind it: twice the addresses, then as many as needed.
            Ok(()) if failing < calls && failed_call_was_a_wish(&bench) => {}
            Ok(()) => {
                assert_eq!(calls, failing, "a call failed and nobody heard of it");
                assert!(failing >= least, "{failing} calls failed, {least} were expected");
                assert_ne!(bench.state(subject), before, "the operation did nothing");
                return;
            }
            Err(error) => {
                assert_eq!(error.driver_error().map(|driver| driver.code), Some(-1), "{error}");
                assert_eq!(bench.state(subject), before, "after call {failing} failed: {error}");
                operation(&mut bench).unwrap_or_else(|error| panic!("the second time: {error}"));
            }
        }
    }
}

/// Only a move asks for more addresses than it needs.
fn failed_call_was_a_wish(bench: &Bench) -> bool {
    bench.wall.is_some()
}

fn map<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 1, |bench| bench.region.map(Bytes(bench.unit.0 * 7), &bench.memory));
}

fn unmap<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 2, |bench| {
        bench.region.unmap(bench.unit, Bytes(bench.unit.0 * 2), Done::when_devices_idle())
    });
}

fn unmap_a_run<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 2, |bench| {
        bench.region.unmap(Bytes(0), Bytes(bench.unit.0 * 6), Done::when_devices_idle())
    });
}

fn set_access<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 1, |bench| bench.region.set_access(Bytes(0), bench.unit, subject.device, Access::None));
}

fn set_access_of_several<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 2, |bench| {
        bench.region.set_access(Bytes(0), Bytes(bench.unit.0 * 6), subject.device, Access::Read)
    });
}

/// The first reservation's part has its new access already when the call for the second one fails.
fn set_access_across_reservations<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Extended, 3, |bench| {
        bench.region.set_access(Bytes(0), bench.region.end(), subject.device, Access::None)
    });
}

fn unmap_across_reservations<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Extended, 3, |bench| {
        bench.region.unmap(Bytes(0), bench.region.end(), Done::when_devices_idle())
    });
}

fn grow_within<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 3, |bench| bench.region.grow_to(Bytes(bench.unit.0 * 8)).map(drop));
}

/// Fills the reservation, adds one, and fills some of that.
fn grow_extended<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 6, |bench| bench.region.grow_to(Bytes(bench.unit.0 * 10)).map(drop));
}

fn grow_remapped<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Walled, 10, |bench| {
        bench.region.grow_or_move(Bytes(bench.unit.0 * 10), Done::when_devices_idle()).map(drop)
    });
}

fn shrink<B: Workbench>(subject: &Subject<B>) {
    sweep(subject, Start::Free, 2, |bench| {
        bench.region.shrink_to(bench.unit, Done::when_devices_idle()).map(drop)
    });
}

fn build<B: Workbench>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    backend.fail(0, 1);
    let error = Region::builder(&backend).reserve(subject.unit()).build().unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, "reserve");
    Region::builder(&backend).reserve(subject.unit()).build().unwrap();
}
