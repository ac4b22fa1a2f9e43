//! Streams of host memory: names, on which nothing is ever queued, since all work is done when its call returns.
//!
//! A name is a number that no other stream of the process has, with its device in the last bits.
#![allow(unsafe_code)]

use crate::backend::Host;
use gpu_vmm_core::workbench::WorkStream;
use gpu_vmm_core::{DeviceId, Error, Result, Stream};
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many names have one number: one for each device that there can be.
const DEVICES: usize = (DeviceId::LIMIT as usize + 1).next_power_of_two();

#[derive(Debug)]
struct HostStream {
    host: Arc<Host>,
    name: usize,
}

pub(crate) fn own(host: &Arc<Host>, device: DeviceId) -> Result<Box<dyn WorkStream>> {
    // From 1 on, since null is the default stream.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    host.account("make a stream", device)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(Box::new(HostStream { host: Arc::clone(host), name: number * DEVICES + device.0 as usize }))
}

impl WorkStream for HostStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: a stream of this backend, for as long as it is borrowed; nothing is ever reached through it.
        unsafe { Stream::from_raw(without_provenance_mut(self.name)) }
    }

    fn is_done(&self) -> Result<bool> {
        self.host.process.check("ask a stream").map(|()| true)
    }
}

/// The device of a stream, which is any for the default one; an error for what is no stream of this backend.
pub(crate) fn check(host: &Host, operation: &'static str, stream: Stream<'_>) -> Result<Option<DeviceId>> {
    host.process.check(operation)?;
    let name = stream.as_raw().addr();
    if name == 0 {
        return Ok(None);
    }
    if name < DEVICES {
        let reason = format!("{name:#x} is no stream of host memory, which has only its own");
        return Err(Error::Unsupported { operation, reason });
    }
    let device = DeviceId((name % DEVICES) as u32);
    host.account(operation, device).map(|_| Some(device))
}
