//! Events on streams of host memory, which are always done.
#![allow(unsafe_code)] // implements traits that make promises

use crate::backend::Host;
use crate::stream;
use gpu_vmm_core::{DeviceId, Error, Event, Result, Stream};
use std::sync::Arc;

#[derive(Debug)]
struct HostEvent {
    host: Arc<Host>,
    device: DeviceId,
}

pub(crate) fn create(host: &Arc<Host>, device: DeviceId) -> Result<Box<dyn Event>> {
    host.account("make an event", device)?;
    Ok(Box::new(HostEvent { host: Arc::clone(host), device }))
}

// SAFETY: all work is done when its call returns.
unsafe impl Event for HostEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        let operation = "record an event";
        match stream::check(&self.host, operation, stream)? {
            Some(device) if device != self.device => Err(Error::ForeignStream {
                operation,
                theirs: device.to_string(),
                ours: self.device.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn is_done(&self) -> Result<bool> {
        self.host.process.check("ask an event").map(|()| true)
    }

    fn wait(&self) -> Result<()> {
        self.host.process.check("wait for an event")
    }

    fn hold(&self, stream: Stream<'_>) -> Result<()> {
        stream::check(&self.host, "hold a stream", stream).map(|_| ())
    }
}
