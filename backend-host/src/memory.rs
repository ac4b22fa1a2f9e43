//! Physical memory, held jointly by a handle and its mappings.

use crate::device::{Charge, DeviceMemory};
use crate::host::Host;
use crate::{memory_types, share};
use gpu_vmm_core::extend::system::{is_no_memory, refusal};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Operation, Properties, Result};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(crate) const CREATE: Operation = Operation::CreateMemory;

/// Pages of a memfd, and the amount that they take from their device.
pub(crate) struct Memory {
    host: Arc<Host>,
    place: Storage,
    size: Bytes,
    /// None for imported memory, which counts in the process that created it.
    charge: Option<Charge>,
}

#[derive(Debug)]
enum Storage {
    /// A part of the backend's store.
    Stored { offset: u64 },
    /// A file of its own, since a descriptor gives access to the whole file.
    Shared(OwnedFd),
}

impl fmt::Debug for Memory {
    /// Omits the host, whose mappings contain this memory: printing it would not end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("place", &self.place).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Memory {
    pub(crate) fn create(host: &Arc<Host>, size: Bytes, properties: &Properties) -> Result<Arc<Self>> {
        memory_types::check(CREATE, properties)?;
        let device = properties.device;
        let device_memory = host.device_memory(CREATE, device)?;
        let charge = charge(CREATE, device_memory, device, size)?;
        let place = if properties.is_shareable() {
            share::new_shared_file(size).map(Storage::Shared)
        } else {
            host.store.take(size).map(|offset| Storage::Stored { offset })
        };
        match place {
            Ok(place) => Ok(Arc::new(Self { host: Arc::clone(host), place, size, charge: Some(charge) })),
            Err(source) => {
                drop(charge);
                let context = format!("{size} on {device}");
                Err(or_out_of_memory(Error::driver(CREATE, source, context), device_memory, device, size))
            }
        }
    }

    pub(crate) fn import(host: &Arc<Host>, fd: BorrowedFd<'_>, size: Bytes) -> Result<Arc<Self>> {
        let place = Storage::Shared(share::import(fd, size)?);
        Ok(Arc::new(Self { host: Arc::clone(host), place, size, charge: None }))
    }

    pub(crate) const fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the file that has the pages, and their offset in it.
    pub(crate) fn pages(&self) -> (BorrowedFd<'_>, u64) {
        match &self.place {
            Storage::Stored { offset } => (self.host.store.file(), *offset),
            Storage::Shared(file) => (file.as_fd(), 0),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A forked child shares the parent's file: punching a hole would discard the parent's bytes.
        if !self.host.process.is_this() {
            return;
        }
        if let Storage::Stored { offset } = self.place
            && let Err(source) = self.host.store.give_back(offset, self.size)
        {
            let context = format!("{} at offset {offset:#x} of the store", self.size);
            self.host.log.record(Error::new(Operation::ReleaseMemory, Detail::Driver { source, context }));
            if let Some(charge) = self.charge.take() {
                charge.keep();
            }
        }
    }
}

/// Takes memory from a device's free amount; the error has the device's numbers.
pub(crate) fn charge(
    operation: Operation,
    device_memory: &Arc<DeviceMemory>,
    device: DeviceId,
    size: Bytes,
) -> Result<Charge> {
    device_memory.take(size).ok_or_else(|| {
        let why = "the device's configured memory is used up";
        let source = refusal("the host backend", Errno::NOMEM, why);
        let error = Error::new(operation, Detail::Driver { source, context: String::new() });
        or_out_of_memory(error, device_memory, device, size)
    })
}

/// Returns the error, with the device's numbers if it means that memory is used up.
pub(crate) fn or_out_of_memory(
    error: Error,
    device_memory: &DeviceMemory,
    device: DeviceId,
    requested: Bytes,
) -> Error {
    error.map_detail(|detail| match detail {
        Detail::Driver { source, .. } if is_no_memory(&source) => {
            let info = device_memory.info();
            Detail::OutOfMemory { device, requested, free: info.free, total: info.total, source }
        }
        other => other,
    })
}
