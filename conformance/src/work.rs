//! What a working process does: it opens the backend and runs items one after the other, telling of each. Should it die,
//! whoever asked knows in which.

use crate::driver;
use crate::outcome::{Outcome, Verdict};
use crate::peer::Peer;
use crate::report::Environment;
use crate::suite::Suite;
use crate::target::Target;
use gpu_vmm_core::{DeviceId, Operation};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::Missing;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

/// What a working process tells, of one item after the other in the order in which they were asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The backend is open, or why not.
    Opened(Result<Box<Environment>, String>),
    /// An item begins, when so many bytes have been printed.
    Begins { printed: u64 },
    /// It has ended; its time is in seconds. After the last one the process ends, whatever else was asked of it.
    Ended { outcome: Outcome, seconds: f64, is_last: bool },
}

/// Runs items and tells of them. When nobody listens any more, there is nothing to go on for.
pub(crate) fn work<B: TestKit>(
    suite: &Suite<B>,
    target: &Arc<dyn Target<B>>,
    device: DeviceId,
    items: &[usize],
    peer: &Peer,
) {
    let tell = |told: &Told| peer.try_send(told).is_ok();
    let opened = open(target, device);
    let environment =
        opened.as_ref().map(|backend| Box::new(Environment::of(target.name(), backend, device)));
    if !tell(&Told::Opened(environment.map_err(Clone::clone))) {
        return;
    }
    let Ok(backend) = opened else { return };
    note_panics();
    let mut drivers = None;
    let mut is_last = false;
    for item in items {
        // The process's own output is a file, in which both streams stand where the last one has written.
        let printed = rustix::fs::tell(std::io::stderr()).unwrap_or(0);
        if !tell(&Told::Begins { printed }) {
            return;
        }
        let began = Instant::now();
        let outcome = match suite.content.cases.get(*item) {
            Some(case) => suite.run_case(target, &backend, device, case),
            None => match suite.content.rule(*item) {
                Some(rule) => {
                    let drivers = drivers.get_or_insert_with(|| driver::Drivers::new(&backend, device));
                    let outcome = drivers.look(rule);
                    is_last = drivers.is_spoiled();
                    outcome
                }
                None => Outcome::failed("there is no such item"),
            },
        };
        let seconds = began.elapsed().as_secs_f64();
        if !tell(&Told::Ended { outcome, seconds, is_last }) || is_last {
            return;
        }
    }
}

/// Opens a target, chooses the first device that can be used, and tells what there is.
pub(crate) fn look<B: TestKit>(target: &Arc<dyn Target<B>>, peer: &Peer) {
    let environment = target.open().and_then(|backend| {
        let first = backend.devices().iter().find(|device| device.unusable.is_none());
        let device = first.map(|device| device.id).unwrap_or_default();
        let backend = usable(backend, device)?;
        Ok(Box::new(Environment::of(target.name(), &backend, device)))
    });
    // Who asked may be gone; then nobody wants to know.
    let _ = peer.try_send(&Told::Opened(environment));
}

/// Opens a target and looks whether its device can be used.
pub(crate) fn open<B: TestKit>(target: &Arc<dyn Target<B>>, device: DeviceId) -> Result<B, String> {
    usable(target.open()?, device)
}

fn usable<B: TestKit>(backend: B, device: DeviceId) -> Result<B, String> {
    backend.device(Operation::QueryDevice, device).map_err(|error| error.to_string())?;
    Ok(backend)
}

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From here on panics are told by their place, and not printed.
fn note_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
        PLACE.with(|last| *last.borrow_mut() = place);
    }));
}

/// Where this thread has panicked last, since [`note_panics`].
fn last_panic_place() -> Option<String> {
    PLACE.with(|last| last.borrow_mut().take())
}

/// What a case or a rule came to that has ended itself.
pub(crate) fn ended_by(panic: Box<dyn Any + Send>) -> Outcome {
    let panic = match panic.downcast::<Missing>() {
        Ok(missing) => return Outcome::new(Verdict::Skipped, missing.0),
        Err(panic) => panic,
    };
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let said = said.unwrap_or_else(|| "it panicked".to_owned());
    Outcome::failed(match last_panic_place() {
        Some(place) => format!("{said} ({place})"),
        None => said,
    })
}
