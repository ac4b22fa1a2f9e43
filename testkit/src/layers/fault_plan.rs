//! The plan: which driver calls fail.

use gpu_vmm_core::testkit::{check_may_map, check_may_wait};
use gpu_vmm_core::{Detail, DeviceId, DriverError, Error, Operation, Result};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

thread_local! {
    static IN_CALLS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the time that this thread has spent in calls of [`FaultInject`](super::FaultInject) backends.
#[must_use]
pub fn time_in_driver() -> Duration {
    IN_CALLS.get()
}

/// The calls in which a driver may wait for work.
const WAITS: [Operation; 8] = [
    Operation::WaitForDevice,
    Operation::WaitForStream,
    Operation::WaitForEvent,
    Operation::CopyFromHost,
    Operation::CopyToHost,
    Operation::Copy,
    Operation::Fill,
    Operation::FinishCopies,
];

/// The calls that create and map memory.
const MAPS: [Operation; 5] =
    [Operation::CreateMemory, Operation::Reserve, Operation::Map, Operation::Unmap, Operation::SetAccess];

/// A call in progress, from its count to the return of the inner backend.
#[derive(Debug)]
#[must_use = "the call's time ends when this is dropped"]
pub(super) struct Call(Instant);

impl Drop for Call {
    fn drop(&mut self) {
        IN_CALLS.set(IN_CALLS.get() + self.0.elapsed());
    }
}

/// Counts calls, and makes the planned ones fail.
#[derive(Debug, Default)]
pub(super) struct Plan(Mutex<Counting>);

/// An action that runs once, in the next call of a kind.
struct Meanwhile {
    call: Operation,
    act: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meanwhile").field("call", &self.call).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Counting {
    next: u64,
    /// The number of calls of each kind that have reached the driver.
    made: HashMap<Operation, u64>,
    failing: Vec<Range<u64>>,
    /// The kinds of calls that always fail.
    kinds: &'static [Operation],
    /// Whether a `set_access` that fails still reaches the driver.
    carry_out: bool,
    /// The devices that cannot be waited for, because a stream captures.
    capturing: BTreeSet<DeviceId>,
    meanwhile: Option<Meanwhile>,
    /// The devices whose memory other devices cannot access.
    hidden: BTreeSet<DeviceId>,
    /// Whether addresses are lost to other code as soon as their memory is returned.
    lose_addresses: bool,
}

/// Adds a device to a set, or removes it.
fn set_member(set: &mut BTreeSet<DeviceId>, device: DeviceId, whether: bool) {
    if whether {
        set.insert(device);
    } else {
        set.remove(&device);
    }
}

impl Plan {
    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, failing: Vec<Range<u64>>) {
        let mut counting = self.counting();
        counting.next = 0;
        counting.failing = failing;
    }

    pub(super) fn fail_calls(&self, kinds: &'static [Operation]) {
        self.counting().kinds = kinds;
    }

    pub(super) fn stop(&self) -> u64 {
        let mut counting = self.counting();
        counting.failing.clear();
        counting.kinds = &[];
        counting.next
    }

    pub(super) fn made(&self, call: Operation) -> u64 {
        self.counting().made.get(&call).copied().unwrap_or_default()
    }

    pub(super) fn carry_out(&self, whether: bool) {
        self.counting().carry_out = whether;
    }

    pub(super) fn carries_out(&self) -> bool {
        self.counting().carry_out
    }

    pub(super) fn lose_addresses(&self, whether: bool) {
        self.counting().lose_addresses = whether;
    }

    pub(super) fn hide_memory(&self, owner: DeviceId, whether: bool) {
        set_member(&mut self.counting().hidden, owner, whether);
    }

    pub(super) fn is_hidden(&self, owner: DeviceId) -> bool {
        self.counting().hidden.contains(&owner)
    }

    pub(super) fn loses_addresses(&self) -> bool {
        self.counting().lose_addresses
    }

    pub(super) fn capture_on(&self, device: DeviceId, whether: bool) {
        set_member(&mut self.counting().capturing, device, whether);
    }

    pub(super) fn during(&self, call: Operation, act: Box<dyn FnOnce() + Send>) {
        self.counting().meanwhile = Some(Meanwhile { call, act });
    }

    /// Runs the [`during`](Self::during) action of a call that is not counted and never fails.
    pub(super) fn act(&self, call: Operation) {
        let meanwhile = self.counting().meanwhile.take_if(|meanwhile| meanwhile.call == call);
        if let Some(Meanwhile { act, .. }) = meanwhile {
            act();
        }
    }

    /// Counts a call that waits for a device, and fails it if it is planned to fail or a stream of the device captures.
    pub(super) fn wait(&self, device: DeviceId) -> Result<Call> {
        let operation = Operation::WaitForDevice;
        let call = self.call(operation)?;
        if self.counting().capturing.contains(&device) {
            return Err(Error::new(operation, Detail::Capturing { source: None }));
        }
        Ok(call)
    }

    /// Counts a call, runs its [`during`](Self::during) action, and fails it if it is planned to fail.
    pub(super) fn call(&self, call: Operation) -> Result<Call> {
        if WAITS.contains(&call) {
            check_may_wait(call.name());
        }
        if MAPS.contains(&call) {
            check_may_map(call.name());
        }
        let begun = Call(Instant::now());
        let mut counting = self.counting();
        let number = counting.next;
        counting.next += 1;
        let fails = counting.failing.iter().any(|failing| failing.contains(&number))
            || counting.kinds.contains(&call);
        if !fails {
            *counting.made.entry(call).or_default() += 1;
        }
        let meanwhile = counting.meanwhile.take_if(|meanwhile| meanwhile.call == call);
        drop(counting);
        if let Some(Meanwhile { act, .. }) = meanwhile {
            act();
        }
        if !fails {
            return Ok(begun);
        }
        let source = DriverError {
            call: call.name(),
            code: -1,
            name: "INJECTED".into(),
            description: "failed by plan".into(),
        };
        Err(Error::new(call, Detail::Driver { source, context: format!("driver call {number}") }))
    }
}
