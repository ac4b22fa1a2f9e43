//! Events of the simulated device.
#![allow(unsafe_code)] // implements unsafe traits

use crate::chance::Chance;
use crate::machine::{Machine, Position};
use gpu_vmm_core::{Detail, Error, Event, Operation, Result, Stream};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct SimulatedEvent {
    machine: Arc<Machine>,
    chance: Chance,
    place: Option<Position>,
}

impl SimulatedEvent {
    pub(crate) fn new(machine: &Arc<Machine>, chance: Chance) -> Self {
        Self { machine: Arc::clone(machine), chance, place: None }
    }
}

// SAFETY: it is complete once the machine has finished all work that was queued before it was recorded.
unsafe impl Event for SimulatedEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        self.machine.switch();
        self.chance.stream_call(Operation::RecordEvent)?;
        self.place = Some(self.machine.place(stream));
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        self.machine.switch();
        let operation = Operation::QueryEvent;
        self.chance.stream_call(operation)?;
        let Some(place) = self.place else { return Ok(true) };
        self.machine.check_asking(operation, place)?;
        Ok(self.machine.is_past(place))
    }

    fn wait(&self) -> Result<()> {
        let operation = Operation::WaitForEvent;
        self.chance.stream_call(operation)?;
        if let Some(place) = self.place {
            self.machine.check_asking(operation, place)?;
            self.machine.wait_until(|machine| machine.is_past(place).then_some(()));
        }
        Ok(())
    }

    fn hold(&self, _: Stream<'_>) -> Result<()> {
        let reason = "no test makes a stream wait".to_owned();
        Err(Error::new(Operation::StreamWaitEvent, Detail::Unsupported { reason }))
    }
}
