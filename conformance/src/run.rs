//! Running many items, in processes that an item may crash.

use crate::driver;
use crate::fork_server::{Child, Request};
use crate::library::endurance_time;
use crate::outcome::Outcome;
use crate::report::Environment;
use crate::suite::{Item, Layer, Suite};
use crate::target::Target;
use crate::work::Message;
use gpu_vmm_core::DeviceId;
use gpu_vmm_testkit::TestKit;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A step of a run, reported as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// The backend is open in a worker process.
    Opened(&'a Environment),
    /// An item begins.
    Begins(&'a Item),
    /// An item has ended.
    Ended(&'a Item, &'a Outcome, Duration),
}

/// A multiple of the time of the longest case: a sweep over AMD's runtime takes most of a minute.
const PATIENCE: Duration = Duration::from_secs(240);

const OUT_OF_TURN: &str = "a worker process sent a message out of order";

impl<B: TestKit> Suite<B> {
    /// Opens a target in a process of its own and returns its environment. The chosen device is the first usable one.
    ///
    /// # Errors
    ///
    /// Returns why the target is unavailable, or the system's error.
    pub fn look(&self, target: &Arc<dyn Target<B>>) -> Result<Environment, String> {
        let mut child =
            self.server.spawn(&Request::Look { target: target.name().to_owned() }).map_err(system)?;
        let environment = opened(&mut child)?;
        // Otherwise the process could release its device memory in the middle of a case.
        child.wait(PATIENCE).map_err(system)?;
        Ok(environment)
    }

    /// Runs items in processes of their own, one after the other, and reports each step. If a process dies or hangs, the item
    /// that it was running fails, and the remaining items run in a new process.
    ///
    /// If there is a deadline, items that have not ended by then are not reported, and the process that runs one is killed.
    ///
    /// # Errors
    ///
    /// Returns why the target is unavailable, or the system's error.
    pub fn run(
        &self,
        target: &Arc<dyn Target<B>>,
        device: DeviceId,
        items: &[Item],
        deadline: Option<Instant>,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), String> {
        let mut left = items;
        let mut opened = false;
        while !left.is_empty() && !is_over(deadline) {
            let (together, rest) = left.split_at(together(left));
            let done = self.run_some(target, device, together, deadline, &mut |event| match event {
                Event::Opened(_) if std::mem::replace(&mut opened, true) => {}
                event => tell(event),
            })?;
            left = if done == together.len() { rest } else { &left[done..] };
        }
        Ok(())
    }

    /// Runs items in one process, and returns how many of them have ended.
    fn run_some(
        &self,
        target: &Arc<dyn Target<B>>,
        device: DeviceId,
        items: &[Item],
        deadline: Option<Instant>,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, String> {
        let request = Request::Work {
            target: target.name().to_owned(),
            device: device.0,
            items: items.iter().map(|item| item.index).collect(),
        };
        let mut child = self.server.spawn(&request).map_err(system)?;
        let environment = opened(&mut child)?;
        tell(Event::Opened(&environment));
        for (done, item) in items.iter().enumerate() {
            if is_over(deadline) {
                return Ok(done);
            }
            let mut printed = 0;
            let began = Instant::now();
            child.peer.set_patience(patience(deadline)).map_err(system)?;
            let ended = loop {
                match child.peer.try_receive() {
                    Ok(Message::Begins { printed: before }) => {
                        printed = before;
                        tell(Event::Begins(item));
                    }
                    Ok(Message::Ended { outcome, seconds, is_last }) => {
                        tell(Event::Ended(item, &outcome, Duration::from_secs_f64(seconds)));
                        break Some(is_last);
                    }
                    Ok(Message::Opened(_)) => return Err(OUT_OF_TURN.to_owned()),
                    Err(_) => break None,
                }
            };
            if ended.is_none() && is_over(deadline) {
                // The process is killed as it is dropped.
                return Ok(done);
            }
            if ended.is_none() {
                let patience = if began.elapsed() < longest() { PATIENCE } else { Duration::ZERO };
                let ended = child.wait(patience).map_err(system)?;
                let outcome = match self.content.rule(item.index) {
                    Some(rule) => driver::died(
                        rule,
                        &ended.to_string(),
                        &child.output_from(printed),
                        &environment.quirks,
                    ),
                    None => Outcome::failed(format!("{ended}{}", said(&mut child, printed))),
                };
                tell(Event::Ended(item, &outcome, began.elapsed()));
            }
            if ended == Some(true) {
                child.wait(PATIENCE).map_err(system)?;
            }
            if ended != Some(false) {
                return Ok(done + 1);
            }
        }
        child.wait(PATIENCE).map_err(system)?;
        Ok(items.len())
    }
}

/// Receives the environment of the backend that a process has opened.
fn opened(child: &mut Child) -> Result<Environment, String> {
    match child.peer.try_receive() {
        Ok(Message::Opened(answer)) => answer.map(|environment| *environment),
        Ok(_) => Err(OUT_OF_TURN.to_owned()),
        Err(_) => {
            let ended = child.wait(PATIENCE).map_err(system)?;
            Err(format!("the process that opens the backend: {ended}{}", said(child, 0)))
        }
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Returns how long the longest item may take: the group `endurance` runs for as long as its user says.
fn longest() -> Duration {
    PATIENCE + endurance_time()
}

/// Returns how long an item may take.
fn patience(deadline: Option<Instant>) -> Duration {
    let longest = longest();
    let left = deadline.map_or(longest, |deadline| deadline.saturating_duration_since(Instant::now()));
    // A timeout of zero would mean to wait forever.
    left.clamp(Duration::from_millis(1), longest)
}

fn system(error: io::Error) -> String {
    format!("a process for the suite: {error}")
}

/// Returns how many of the next items can share a process. The items of a layer share one, except that an isolated item
/// of the library layer runs alone.
fn together(items: &[Item]) -> usize {
    let is_other = |item: &Item| item.layer != items[0].layer;
    match items.iter().position(|item| is_other(item) || (item.layer == Layer::Library && item.isolated)) {
        Some(0) => 1,
        Some(first) => first,
        None => items.len(),
    }
}

/// Returns what the process has printed since `from`, as a suffix for how it ended.
fn said(child: &mut Child, from: u64) -> String {
    match child.output_from(from) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    }
}
