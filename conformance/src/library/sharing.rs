//! Memory that goes from one process to another: a descriptor over a socket, and beside it what no driver tells the one
//! who imports.
#![allow(unsafe_code)] // imports

use crate::fork_server::Child;
use crate::leaks;
use crate::library::tools::told;
use crate::peer::Peer;
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Feature, PhysicalMemory, Properties, Result};
use gpu_vmm_testkit::TestKit;
use std::os::fd::{AsFd, OwnedFd};

/// What goes with a descriptor: whose memory, and how many bytes.
type Told = (u32, u64);

/// Either end of the channel between two processes.
pub(crate) trait Channel {
    fn put(self, told: Told, fd: &OwnedFd);
    fn get(self) -> (Told, OwnedFd);
}

impl Channel for &mut Child {
    fn put(self, told: Told, fd: &OwnedFd) {
        self.send(told);
        self.send_fd(fd);
    }

    fn get(self) -> (Told, OwnedFd) {
        (self.receive(), self.receive_fd())
    }
}

impl Channel for &Peer {
    fn put(self, told: Told, fd: &OwnedFd) {
        self.send(told);
        self.send_fd(fd);
    }

    fn get(self) -> (Told, OwnedFd) {
        (self.receive(), self.receive_fd())
    }
}

/// What comes of sharing memory, or the end of the case where the device's capabilities say that it cannot.
pub(crate) fn or_cannot_share<B: TestKit, T>(subject: &Subject<B>, result: Result<T>) -> T {
    match result.map_err(Error::into_detail) {
        Err(Detail::Unsupported { reason, .. }) if !told(subject, Feature::FileDescriptor).available => {
            skip(reason)
        }
        other => other.unwrap(),
    }
}

/// So many units of a device's memory that can be exported, or the end of the case.
pub(crate) fn shareable_on<B: TestKit>(
    subject: &Subject<B>,
    device: DeviceId,
    units: u64,
) -> PhysicalMemory<B> {
    let properties = Properties::on(device).shareable();
    or_cannot_share(subject, PhysicalMemory::create(&subject.backend, subject.units(units), properties))
}

/// The same of the chosen device.
pub(crate) fn shareable<B: TestKit>(subject: &Subject<B>, units: u64) -> PhysicalMemory<B> {
    shareable_on(subject, subject.device, units)
}

/// Exports memory to another process.
pub(crate) fn give<B: TestKit>(channel: impl Channel, memory: &PhysicalMemory<B>) {
    channel.put((memory.device().0, memory.size().0), &or_skip(memory.export()));
}

/// Imports what another process has [given](give); the descriptor is closed after that.
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
    // SAFETY: device and size are those of whoever exported; where a case gives a descriptor of something else, the driver
    // says so, and there is no memory that could be used.
    let imported = unsafe { PhysicalMemory::import(&subject.backend, fd.as_fd(), size, properties) };
    imported.inspect(|_| leaks::counts_import())
}

/// The memory behind a descriptor that this memory was exported as.
pub(crate) fn import_of<B: TestKit>(
    subject: &Subject<B>,
    fd: impl AsFd,
    memory: &PhysicalMemory<B>,
) -> PhysicalMemory<B> {
    or_skip(import(subject, fd, memory.device(), memory.size()))
}
