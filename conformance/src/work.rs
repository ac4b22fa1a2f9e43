//! What a working process does: it opens the backend and runs items one after the other, telling of each. Should it die,
//! whoever asked knows in which.

use crate::fake_driver::FakeDriver;
use crate::fork_server::{ForkServer, Request};
use crate::outcome::Outcome;
use crate::panics;
use crate::peer::Peer;
use crate::report::Environment;
use crate::subject::Subject;
use crate::suite::{Content, Suite};
use crate::target::Target;
use crate::{driver, library};
use gpu_vmm_core::{DeviceId, Operation};
use gpu_vmm_testkit::TestKit;
use serde::{Deserialize, Serialize};
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

impl<B: TestKit> Suite<B> {
    /// Makes the suite ready. Call it first of all in `main`: here the process is forked off in which drivers are never
    /// touched, and out of which later ones come.
    ///
    /// # Safety
    ///
    /// The process has one thread and has opened no driver.
    ///
    /// # Errors
    ///
    /// What the system answers.
    #[allow(unsafe_code)]
    pub unsafe fn start(targets: Vec<Arc<dyn Target<B>>>) -> std::io::Result<Self> {
        let content = Arc::new(Content { targets, cases: library::cases(), rules: driver::rules() });
        let content_there = Arc::clone(&content);
        // SAFETY: the caller's promise.
        let server = unsafe {
            ForkServer::start(move |request, peer, server| {
                serve(&Self { content: content_there, server }, request, &peer);
            })
        }?;
        Ok(Self { content, server })
    }
}

/// What a forked process does.
fn serve<B: TestKit>(suite: &Suite<B>, request: Request, peer: &Peer) {
    let find = |name: &str| Arc::clone(suite.content.target(name).expect("a target of the suite"));
    match request {
        Request::Look { target } => look(&find(&target), peer),
        Request::Work { target, device, items } => {
            work(suite, &find(&target), DeviceId(device), &items, peer);
        }
        Request::Child { target, case, device } => {
            let target = find(&target);
            let case = suite.content.cases.iter().find(|known| known.name == case).expect("a case");
            let backend = target.open().expect("the backend that the first process has opened");
            let subject = Subject {
                backend,
                device: DeviceId(device),
                target,
                case: case.name,
                server: Some(Arc::clone(&suite.server)),
            };
            (case.child.expect("a case of two processes"))(&subject, peer);
            FakeDriver::check_violations(None).unwrap();
        }
    }
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
    panics::note();
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
