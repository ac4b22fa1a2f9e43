//! Events on host streams: positions in their queues.
#![allow(unsafe_code)] // implements traits that make promises

use crate::host::Host;
use crate::stream;
use crate::work::{Position, Work};
use gpu_vmm_core::{DeviceId, Event, Operation, Result, Stream};
use std::sync::Arc;

#[derive(Debug)]
struct HostEvent {
    host: Arc<Host>,
    device: DeviceId,
    /// None if all work was done when the event was recorded, or if it was never recorded.
    marked: Option<Position>,
    /// The capture in which the event was recorded.
    captured: Option<u64>,
}

pub(crate) fn create(host: &Arc<Host>, device: DeviceId) -> Result<Box<dyn Event>> {
    host.device_memory(Operation::CreateEvent, device)?;
    Ok(Box::new(HostEvent { host: Arc::clone(host), device, marked: None, captured: None }))
}

// SAFETY: the queues know which work is done.
unsafe impl Event for HostEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::RecordEvent;
        let name = stream::on(&self.host, operation, self.device, stream)?;
        self.marked = self.host.queues.place(operation, name)?;
        self.captured = self.host.queues.capture_of(name);
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        let operation = Operation::QueryEvent;
        self.host.queues.check_asking(operation, self.captured)?;
        self.host.queues.is_done(operation, self.marked)
    }

    fn wait(&self) -> Result<()> {
        let operation = Operation::WaitForEvent;
        self.host.queues.check_asking(operation, self.captured)?;
        self.host.queues.wait(operation, self.marked)
    }

    /// The default stream belongs to the event's device.
    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::StreamWaitEvent;
        let (device, name) = stream::of(&self.host, operation, self.device, stream)?;
        match self.marked {
            None => Ok(()),
            Some(place) => self.host.queues.push(operation, device, name, Work::Hold(place)),
        }
    }
}
