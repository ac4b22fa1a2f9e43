//! Sharing memory between processes: a descriptor over a socket, with the device and the size, which drivers do not transmit.
#![allow(unsafe_code)] // imports

use crate::fork_server::Child;
use crate::leaks;
use crate::library::tools::capability;
use crate::peer::Peer;
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Feature, PhysicalMemory, Properties, Result};
use gpu_vmm_testkit::TestKit;
use std::os::fd::{AsFd, OwnedFd};

/// The device of the memory and its size in bytes, sent with a descriptor.
type Description = (u32, u64);

/// One end of the channel between two processes.
pub(crate) trait Channel {
    fn put(self, description: Description, fd: &OwnedFd);
    fn get(self) -> (Description, OwnedFd);
}

impl Channel for &mut Child {
    fn put(self, description: Description, fd: &OwnedFd) {
        self.send(description);
        self.send_fd(fd);
    }

    fn get(self) -> (Description, OwnedFd) {
        (self.receive(), self.receive_fd())
    }
}

impl Channel for &Peer {
    fn put(self, description: Description, fd: &OwnedFd) {
        self.send(description);
        self.send_fd(fd);
    }

    fn get(self) -> (Description, OwnedFd) {
        (self.receive(), self.receive_fd())
    }
}

/// The result of a call that shares memory. Skips the case if the device's capabilities report that it cannot share.
pub(crate) fn or_cannot_share<B: TestKit, T>(subject: &Subject<B>, result: Result<T>) -> T {
    match result.map_err(Error::into_detail) {
        Err(Detail::Unsupported { reason, .. })
            if !capability(subject, Feature::FileDescriptor).available =>
        {
            skip(reason)
        }
        other => other.unwrap(),
    }
}

/// `units` units of a device's exportable memory. Skips the case if the device cannot share.
pub(crate) fn shareable_on<B: TestKit>(
    subject: &Subject<B>,
    device: DeviceId,
    units: u64,
) -> PhysicalMemory<B> {
    let properties = Properties::on(device).shareable();
    or_cannot_share(subject, PhysicalMemory::create(&subject.backend, subject.units(units), properties))
}

/// Like [`shareable_on`], of the chosen device.
pub(crate) fn shareable<B: TestKit>(subject: &Subject<B>, units: u64) -> PhysicalMemory<B> {
    shareable_on(subject, subject.device, units)
}

/// Exports memory to another process.
pub(crate) fn give<B: TestKit>(channel: impl Channel, memory: &PhysicalMemory<B>) {
    channel.put((memory.device().0, memory.size().0), &or_skip(memory.export()));
}

/// Imports memory that another process has [given](give), and closes the descriptor.
pub(crate) fn take<B: TestKit>(subject: &Subject<B>, channel: impl Channel) -> PhysicalMemory<B> {
    let ((device, size), fd) = channel.get();
    or_skip(import(subject, fd, DeviceId(device), Bytes(size)))
}

/// Imports memory from a descriptor.
pub(crate) fn import<B: TestKit>(
    subject: &Subject<B>,
    fd: impl AsFd,
    device: DeviceId,
    size: Bytes,
) -> Result<PhysicalMemory<B>> {
    let properties = Properties::on(device).shareable();
    // SAFETY: device and size are the exporter's; if a case passes another descriptor, the driver refuses it, and no memory
    // is used.
    let imported = unsafe { PhysicalMemory::import(&subject.backend, fd.as_fd(), size, properties) };
    imported.inspect(|_| leaks::counts_import())
}

/// Imports a descriptor that `memory` was exported as.
pub(crate) fn import_of<B: TestKit>(
    subject: &Subject<B>,
    fd: impl AsFd,
    memory: &PhysicalMemory<B>,
) -> PhysicalMemory<B> {
    or_skip(import(subject, fd, memory.device(), memory.size()))
}
