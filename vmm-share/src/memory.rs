//! One piece of memory, sent from one process to another.
#![allow(unsafe_code)]

use crate::Channel;
#[allow(unused_imports)] // named in documentation
use crate::PeerError;
use crate::manifest::{Origin, SharedPiece};
use crate::message::Message;
use crate::socket::Wait;
use crate::wire::{out_of_turn, receive_whole};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::extend::span;
use gpu_vmm_core::{Backend, Bytes, Operation, PhysicalMemory, Properties, Result};
use std::os::fd::{AsFd, BorrowedFd};

impl Channel {
    /// Sends the peer a piece of memory that was created [shareable](Properties::shareable). The peer imports it with
    /// [`Channel::receive_memory`], and sends no answer. CUDA: `cuMemExportToShareableHandle`; HIP:
    /// `hipMemExportToShareableHandle`.
    ///
    /// # Errors
    ///
    /// Those of [`PhysicalMemory::export`]; [`Detail::Unsupported`] if the device has no UUID; [`PeerError::Gone`];
    /// [`PeerError::TimedOut`] if the peer does not read.
    pub fn send_memory<B: Backend>(&mut self, backend: &B, memory: &PhysicalMemory<B>) -> Result<()> {
        let operation = Operation::SendMemory;
        memory.check_belongs_to(operation, backend)?;
        let piece = SharedPiece::of(operation, backend, 0, memory)?;
        span!(SendMemory, bytes = memory.size().0);
        let descriptor = memory.export()?;
        self.send(operation, &Message::Memory { origin: Origin::of(backend), piece }, &[descriptor.as_fd()])
    }

    /// Waits for the piece of memory that the peer sends, and imports it. CUDA: `cuMemImportFromShareableHandle`; HIP:
    /// `hipMemImportFromShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`PeerError::TimedOut`], [`PeerError::Gone`], [`PeerError::BadMessage`]; [`Detail::Mismatch`] for memory of another
    /// vendor, of a device that this process does not see, or of another granularity; the driver's error for the descriptor.
    pub fn receive_memory<B: Backend>(&mut self, backend: &B) -> Result<PhysicalMemory<B>> {
        let operation = Operation::ReceiveMemory;
        let (message, descriptors) =
            receive_whole(self, &Wait::new(operation, "piece of memory", self.wait()))?;
        let (Message::Memory { origin, piece }, [descriptor]) = (&message, descriptors.as_slice()) else {
            return out_of_turn(operation, &message, "a piece of memory");
        };
        origin.check(operation, backend)?;
        let (size, properties) = piece.check(operation, backend)?;
        span!(ReceiveMemory, bytes = size.0);
        import(backend, descriptor.as_fd(), size, properties)
    }
}

/// Imports memory from another process's descriptor. The caller has [checked](SharedPiece::check) its description.
///
/// # Errors
///
/// Those of [`PhysicalMemory::import`].
pub fn import<B: Backend>(
    backend: &B,
    descriptor: BorrowedFd<'_>,
    size: Bytes,
    properties: Properties,
) -> Result<PhysicalMemory<B>> {
    // SAFETY: the user allows the other process to take part. Its description names the same vendor, and the device was
    // found here by its UUID. The driver refuses a descriptor that is not memory. The size is compared with the memory's: on
    // host memory by `fstat`, on HIP by the length of the dma-buf, on CUDA by `cuMemMap`, which accepts only a handle's whole
    // size. A process that lies about anything else has the memory itself, and could overwrite it without a lie.
    unsafe { PhysicalMemory::import(backend, descriptor, size, properties) }
}
