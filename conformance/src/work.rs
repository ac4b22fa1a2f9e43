//! The worker process: it opens the backend, runs items one after the other and reports each. If it dies, the requesting
//! process knows which item was running.

use crate::fake_driver::FakeDriver;
use crate::fork_server::{ForkServer, Request};
use crate::outcome::{Outcome, Verdict};
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

/// A message from a worker process. It reports the items in the order of the request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The backend is open, or why it is not.
    Opened(Result<Box<Environment>, String>),
    /// An item begins, after the process has printed `printed` bytes.
    Begins { printed: u64 },
    /// The item has ended after `seconds`. After the last one the process ends, even if more items were requested.
    Ended { outcome: Outcome, seconds: f64, is_last: bool },
}

impl<B: TestKit> Suite<B> {
    /// Prepares the suite. Call it first in `main`: it forks the server process that opens no driver and forks all later
    /// processes.
    ///
    /// # Safety
    ///
    /// The process must have one thread and must have opened no driver.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    #[allow(unsafe_code)]
    pub unsafe fn start(targets: Vec<Arc<dyn Target<B>>>) -> std::io::Result<Self> {
        let content = Arc::new(Content { targets, cases: library::cases(), rules: driver::rules() });
        let content_there = Arc::clone(&content);
        // SAFETY: the caller guarantees it.
        let server = unsafe {
            ForkServer::start(move |request, peer, server| {
                serve(&Self { content: content_there, server }, request, &peer);
            })
        }?;
        Ok(Self { content, server })
    }
}

/// Serves a request in a forked process.
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
                brief: false,
            };
            (case.child.expect("a case of two processes"))(&subject, peer);
            FakeDriver::check_violations(None).unwrap();
        }
    }
}

/// Runs items and reports each. It stops when the requesting process no longer listens.
pub(crate) fn work<B: TestKit>(
    suite: &Suite<B>,
    target: &Arc<dyn Target<B>>,
    device: DeviceId,
    items: &[usize],
    peer: &Peer,
) {
    let tell = |message: &Message| peer.try_send(message).is_ok();
    let opened = open(target, device);
    let environment =
        opened.as_ref().map(|backend| Box::new(Environment::of(target.name(), backend, device)));
    if !tell(&Message::Opened(environment.map_err(Clone::clone))) {
        return;
    }
    let Ok(backend) = opened else { return };
    panics::note();
    let mut drivers = None;
    let mut is_last = false;
    for item in items {
        // This process's output is one file. Both streams share its position, which follows the last write.
        let printed = rustix::fs::tell(std::io::stderr()).unwrap_or(0);
        if !tell(&Message::Begins { printed }) {
            return;
        }
        let began = Instant::now();
        let outcome = match suite.content.cases.get(*item) {
            Some(case) => suite.run_case(target, &backend, device, case),
            None => match suite.content.rule(*item) {
                Some(rule) => {
                    if let Some(reason) = library::unsuited(&backend, device, rule.name) {
                        Outcome::new(Verdict::Skipped, reason)
                    } else {
                        let drivers = drivers.get_or_insert_with(|| driver::Drivers::new(&backend, device));
                        let outcome = drivers.look(rule);
                        is_last = drivers.is_spoiled();
                        outcome
                    }
                }
                None => Outcome::failed("there is no such item"),
            },
        };
        let seconds = began.elapsed().as_secs_f64();
        if !tell(&Message::Ended { outcome, seconds, is_last }) || is_last {
            return;
        }
    }
}

/// Opens a target, chooses the first usable device, and reports the environment.
pub(crate) fn look<B: TestKit>(target: &Arc<dyn Target<B>>, peer: &Peer) {
    let environment = target.open().and_then(|backend| {
        let first = backend.devices().iter().find(|device| device.unusable.is_none());
        let device = first.map(|device| device.id).unwrap_or_default();
        let backend = usable(backend, device)?;
        Ok(Box::new(Environment::of(target.name(), &backend, device)))
    });
    // The requesting process may have ended; then no process reads the result.
    let _ = peer.try_send(&Message::Opened(environment));
}

/// Opens a target and checks that its device can be used.
pub(crate) fn open<B: TestKit>(target: &Arc<dyn Target<B>>, device: DeviceId) -> Result<B, String> {
    usable(target.open()?, device)
}

fn usable<B: TestKit>(backend: B, device: DeviceId) -> Result<B, String> {
    backend.device(Operation::QueryDevice, device).map_err(|error| error.to_string())?;
    Ok(backend)
}
