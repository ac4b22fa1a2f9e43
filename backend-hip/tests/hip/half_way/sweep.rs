//! Runs an operation once per HSA call, with that call failing.

use super::known::{KNOWN, Known, MAKE_STREAMS, STREAMS_ALLOCATE, TAKEN_FOR_GRANTED};
use super::simulation::Simulation;
use crate::counts::Counts;
use crate::rig::{Rig, ZERO};
use gpu_vmm_core::{Backend, Bytes, Error, ErrorKind, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The parts of a tried operation: `prepare` makes the state for `run`, and `finish` checks the result.
pub(super) struct Tried<P, R, F> {
    pub(super) prepare: P,
    pub(super) run: R,
    pub(super) finish: F,
}

pub(super) struct Sweep<'a> {
    rig: &'a Rig,
    simulation: Option<Simulation>,
    /// The operations and functions that failed as [`KNOWN`] says.
    seen: RefCell<BTreeSet<(&'static str, &'static str)>>,
    wrong: RefCell<Vec<String>>,
    tried: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(rig: &'a Rig) -> Self {
        Self {
            rig,
            simulation: Simulation::find(),
            seen: RefCell::default(),
            wrong: RefCell::default(),
            tried: RefCell::default(),
        }
    }

    fn known(&self, operation: &str, function: &str) -> Option<&'static Known> {
        let version = self.rig.backend.driver().version_number;
        KNOWN.iter().find(|known| {
            (known.operation, known.function) == (operation, function) && known.versions.contains(&version)
        })
    }

    /// Makes each call of an operation fail once.
    pub(super) fn each<S>(
        &self,
        operation: &'static str,
        prepare: impl Fn() -> S,
        run: impl Fn(&mut S) -> Result<()>,
        finish: impl Fn(S),
    ) {
        let Some(simulation) = &self.simulation else { return };
        self.tried.borrow_mut().insert(operation);
        let tried = Tried { prepare, run, finish };
        // The first run does the initialization of the process, the second one counts.
        let mut made = Vec::new();
        for _ in 0..2 {
            let mut state = (tried.prepare)();
            let before: Vec<_> = simulation.names().map(|name| simulation.count(name)).collect();
            (tried.run)(&mut state).unwrap();
            let calls = simulation.names().zip(before);
            made = calls.map(|(name, before)| (name, simulation.count(name) - before)).collect();
            (tried.finish)(state);
        }
        for (name, count) in made {
            let function = name.to_str().expect("a name");
            let is_for_stream = function == STREAMS_ALLOCATE && MAKE_STREAMS.contains(&operation);
            // HIP returns success, and a later reservation gets the kept addresses with the mapping that still exists.
            let spoils_kept = function == "hsa_amd_vmem_unmap" && self.rig.has_quirk("free-races");
            if is_for_stream || spoils_kept || TAKEN_FOR_GRANTED.contains(&function) {
                continue;
            }
            for after in 0..count {
                let trial = || self.one(simulation, name, after as u16, &tried);
                let Err(wrong) =
                    catch_unwind(AssertUnwindSafe(trial)).unwrap_or_else(|panic| Err(text(&*panic)))
                else {
                    continue;
                };
                simulation.stop();
                if self.known(operation, function).is_some() {
                    self.seen.borrow_mut().insert((operation, function));
                } else {
                    self.wrong.borrow_mut().push(format!("{operation}: {function} number {after}: {wrong}"));
                }
            }
        }
    }

    /// Runs the operation with one failing call.
    fn one<S>(
        &self,
        simulation: &Simulation,
        name: &CStr,
        after: u16,
        tried: &Tried<impl Fn() -> S, impl Fn(&mut S) -> Result<()>, impl Fn(S)>,
    ) -> Result<(), String> {
        let first = Marks::now(self.rig);
        let mut state = (tried.prepare)();
        let prepared = Marks::now(self.rig);
        simulation.fail(name, after);
        let answer = (tried.run)(&mut state);
        simulation.stop();
        let mut problems = Vec::new();
        if let Err(error) = answer {
            problems.extend(is_sensible(&error).err());
            // Memory that stays with its addresses is returned with them, so its size is not compared.
            let checked =
                if self.rig.has_quirk("memory-stays-until-free") { Ok(()) } else { prepared.check(self.rig) };
            problems.extend(checked.err().map(|left| format!("after {error}: {left}")));
            if let Err(second) = (tried.run)(&mut state) {
                problems.push(format!("after {error}: when it is repeated: {second}"));
            }
        }
        (tried.finish)(state);
        problems.extend(first.check(self.rig).err().map(|left| format!("at the end: {left}")));
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Makes no more calls fail, for checks of the state between two attempts.
    pub(super) fn stop(&self) {
        self.simulation.iter().for_each(Simulation::stop);
    }

    /// Fails for errors that are not known, and for known errors that did not occur.
    pub(super) fn end(self) {
        let went_well = KNOWN.iter().filter(|known| {
            self.tried.borrow().contains(known.operation)
                && self
                    .known(known.operation, known.function)
                    .is_some_and(|found| std::ptr::eq(found, *known))
                && !self.seen.borrow().contains(&(known.operation, known.function))
        });
        let went_well = went_well.map(|known| {
            format!("{}: {}: no longer wrong: {}", known.operation, known.function, known.reason)
        });
        let wrong: Vec<_> = self.wrong.take().into_iter().chain(went_well).collect();
        self.rig.forgets_what_is_left();
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Counts of the objects below HIP and of the process, for comparison with later counts.
struct Marks {
    counts: Option<Counts>,
    free: Bytes,
    descriptors: usize,
    failed_drops: u64,
}

impl Marks {
    fn now(rig: &Rig) -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("a list").count();
        let failed_drops = rig.backend.drop_log().count();
        Self { counts: Counts::now(), free: rig.free(ZERO), descriptors, failed_drops }
    }

    fn check(&self, rig: &Rig) -> Result<(), String> {
        let now = Self::now(rig);
        Counts::check(self.counts, 0, |id| rig.has_quirk(id))?;
        if now.failed_drops != self.failed_drops {
            return Err(format!("a drop failed: {:?}", rig.backend.drop_log().take_last()));
        }
        if (now.free, now.descriptors) != (self.free, self.descriptors) {
            return Err(format!(
                "{} free and {} descriptors instead of {} and {}",
                now.free, now.descriptors, self.free, self.descriptors
            ));
        }
        Ok(())
    }
}

fn is_sensible(error: &Error) -> Result<(), String> {
    match error.kind() {
        ErrorKind::DeviceLost | ErrorKind::Forked => Err(format!("the error is {:?}: {error}", error.kind())),
        _ => Ok(()),
    }
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}
