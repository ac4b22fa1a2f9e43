//! A program's part of a device's budget, and requests that wait for memory.

use super::books::Promise;
use crate::protocol::ProgramReport;
use gpu_vmm_core::{DeviceId, DeviceUuid};
use std::time::{Duration, Instant};

/// A request that has waited this long goes before all later ones, whatever their priority.
const TO_AGE: Duration = Duration::from_secs(10);

/// What the server knows of a connected pool.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) device: DeviceUuid,
    pub(super) place: DeviceId,
    pub(super) priority: i8,
    /// Its part of the budget. The pool creates the memory itself.
    pub(super) grant: Promise,
    pub(super) wants: Option<Wanted>,
    pub(super) asked: Option<OpenQuestion>,
    pub(super) report: ProgramReport,
    /// When the report came, or was requested.
    pub(super) described: Option<Instant>,
}

/// What a program, or the writer of a region, has requested and waits for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The program's number of the request.
    pub(super) number: u64,
    /// The user that it counts against.
    pub(super) user: u32,
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) since: Instant,
    pub(super) until: Instant,
    /// The rounds of questions on the device that had ended when the request came.
    pub(super) rounds: u64,
    /// True once all others were asked for it.
    pub(super) was_in_vain: bool,
}

/// A request that waits, with what decides its order.
#[derive(Debug)]
pub(super) struct Waits<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) place: DeviceId,
    pub(super) priority: i8,
    pub(super) is_writers: bool,
    /// True if it is served although an earlier request, for which a round was in vain, waits: for a program that has a part of the budget,
    /// and for writers.
    pub(super) passes: bool,
}

impl Waits<'_> {
    /// Returns the order in which requests are served: those that have waited long, then those of a high priority, then earlier ones.
    pub(super) fn order(&self, now: Instant) -> impl Ord + use<> {
        let is_old = now.saturating_duration_since(self.wanted.since) >= TO_AGE;
        (!is_old, if is_old { 0 } else { -i16::from(self.priority) }, self.wanted.since)
    }
}

impl Wanted {
    pub(super) fn waited_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
}

/// A question that a program has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenQuestion {
    pub(super) ask: u64,
    pub(super) until: Instant,
    /// True once the time is over: others are asked meanwhile.
    pub(super) is_late: bool,
}

impl Program {
    /// Returns true if it has not answered the last question in time.
    pub(super) fn is_late(&self) -> bool {
        self.asked.is_some_and(|asked| asked.is_late)
    }

    /// Returns its name with its process, for other users without the name.
    pub(super) fn shown(&self, process: u32, is_seen: bool) -> String {
        if is_seen { format!("{:?} (process {process})", self.name) } else { format!("process {process}") }
    }
}
