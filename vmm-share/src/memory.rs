//! One piece of memory between processes.
#![allow(unsafe_code)]

use crate::Channel;
#[cfg(doc)]
use crate::PeerError;
use crate::manifest::{Origin, SharedPiece};
use crate::message::Message;
use crate::socket::Wait;
use crate::wire::{out_of_turn, receive_whole};
#[cfg(doc)]
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Backend, Bytes, Operation, PhysicalMemory, Properties, Result};
use std::os::fd::{AsFd, BorrowedFd};

impl Channel {
    /// Gives the other process a piece of memory, which must have been created [shareable](Properties::shareable). The
    /// other end takes it with [`Channel::receive_memory`]; nothing is answered. CUDA: `cuMemExportToShareableHandle`, HIP:
    /// `hipMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::export`], [`Detail::Unsupported`] where the device has no UUID,
    /// [`PeerError::Gone`], and [`PeerError::TimedOut`] where the other process
    /// does not read.
    pub fn send_memory<B: Backend>(&mut self, backend: &B, memory: &PhysicalMemory<B>) -> Result<()> {
        let operation = Operation::SendMemory;
        memory.check_belongs_to(operation, backend)?;
        let piece = SharedPiece::of(operation, backend, 0, memory)?;
        let descriptor = memory.export()?;
        self.send(operation, &Message::Memory { origin: Origin::of(backend), piece }, &[descriptor.as_fd()])
    }

    /// Takes the piece of memory that the other process gives. CUDA: `cuMemImportFromShareableHandle`, HIP:
    /// `hipMemImportFromShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`], [`PeerError::Gone`],
    /// [`PeerError::BadMessage`]; [`Detail::Mismatch`] where it is another
    /// vendor's memory, of a device that is not here, or in units that are not those here; what the driver says of the
    /// descriptor.
    pub fn receive_memory<B: Backend>(&mut self, backend: &B) -> Result<PhysicalMemory<B>> {
        let operation = Operation::ReceiveMemory;
        let (message, descriptors) =
            receive_whole(self, &Wait::new(operation, "piece of memory", self.wait()))?;
        let (Message::Memory { origin, piece }, [descriptor]) = (&message, descriptors.as_slice()) else {
            return out_of_turn(operation, &message, "a piece of memory");
        };
        origin.check(operation, backend)?;
        let (size, properties) = piece.check(operation, backend)?;
        import(backend, descriptor.as_fd(), size, properties)
    }
}

/// Takes in memory from a descriptor of another process, whose description has been checked.
pub(crate) fn import<B: Backend>(
    backend: &B,
    descriptor: BorrowedFd<'_>,
    size: Bytes,
    properties: Properties,
) -> Result<PhysicalMemory<B>> {
    // SAFETY: the other process is one that the user lets take part; it says that its driver is the same vendor's, and
    // the device has been found here by its UUID. That the descriptor is memory and not something else the driver finds
    // out. Its size is held against what was said: on host memory by `fstat`, on HIP by the length of the dma-buf, on CUDA
    // by `cuMemMap`, which takes a handle's whole size and nothing else. A process that lies about more than that has the
    // memory itself, and could spoil its contents without any lie.
    unsafe { PhysicalMemory::import(backend, descriptor, size, properties) }
}
