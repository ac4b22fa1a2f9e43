//! Requests of a client and the server's replies.

use crate::layout::{self, Layout};
use crate::protocol::{Reply, Request, VERSIONS};
use crate::sealed;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Backend, Detail, Error, Operation, PhysicalMemory, Result, Vendor};
use gpu_vmm_share::extend::{self, Wait, printable};
use gpu_vmm_share::{Allowed, Channel, PeerError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The limit of a wait for a reply that depends on no other client.
const REPLY: Duration = Duration::from_secs(30);

/// The limit of a wait for memory, of which the driver may have to create much, for several clients.
const MEMORY: Duration = Duration::from_secs(600);

/// A connection that has begun with the choice of a version.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) operation: Operation,
    pub(super) channel: Channel,
    /// True while it belongs to a lease, whose end is reported.
    is_lease: bool,
    /// A forked child has the same connection, and its copies of the lease's values unmap nothing. A message that it sent or
    /// received would be missing in this process, and its requests would be this process's.
    process: Process,
}

impl Exchange {
    /// Connects. The server's memory must be of the vendor, if one is given.
    pub(crate) fn begin(
        operation: Operation,
        path: &Path,
        allowed: Allowed,
        ours: Option<Vendor>,
    ) -> Result<Self> {
        let mut channel = Channel::connect(path, allowed, REPLY)?;
        channel.set_wait(REPLY);
        let mut exchange = Self { operation, channel, is_lease: false, process: Process::current() };
        let (lowest, highest) = VERSIONS;
        exchange.send(&Request::Hello { lowest, highest }, &[])?;
        let vendor = match exchange.receive()?.0 {
            Reply::Welcome { version, vendor } if (lowest..=highest).contains(&version) => vendor,
            other => return exchange.out_of_turn(&other, "a welcome"),
        };
        if let Some(ours) = ours.map(Vendor::name).filter(|ours| *ours != vendor) {
            let (theirs, ours) = (printable(&vendor), format!("here it is {ours}"));
            return Err(Error::new(operation, Detail::Mismatch { what: "vendor", theirs, ours }));
        }
        Ok(exchange)
    }

    pub(crate) fn send(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        self.process.check(self.operation)?;
        extend::send(&mut self.channel, self.operation, request, descriptors)
    }

    /// Waits for a reply. A refusal is an error.
    pub(crate) fn receive(&mut self) -> Result<(Reply, Vec<OwnedFd>)> {
        self.receive_within(Duration::ZERO)
    }

    /// Waits for a reply that depends on other clients for up to `wait`.
    pub(super) fn receive_within(&mut self, wait: Duration) -> Result<(Reply, Vec<OwnedFd>)> {
        self.take(&Wait::new(self.operation, "reply of the server", wait.saturating_add(REPLY)))
    }

    /// Waits for memory.
    pub(crate) fn receive_memory(&mut self) -> Result<(Reply, Vec<OwnedFd>)> {
        self.take(&Wait::new(self.operation, "memory of the server", MEMORY))
    }

    pub(super) fn take(&mut self, wait: &Wait) -> Result<(Reply, Vec<OwnedFd>)> {
        self.process.check(self.operation)?;
        let (reply, descriptors): (Reply, Vec<OwnedFd>) = extend::receive(&mut self.channel, wait)?;
        if let Reply::Refused(error) = reply {
            return Err(Error::of_extension(self.operation, error.printable()));
        }
        let (came, expected) = (descriptors.len(), reply.descriptors());
        if came != expected {
            let name = reply.name();
            return self.bad(format!("{came} descriptors came with {name}, which has {expected}"));
        }
        // From here on an error of this side, such as addresses that are taken, ends a lease.
        self.is_lease |= matches!(reply, Reply::Granted { .. });
        Ok((reply, descriptors))
    }

    /// Receives handles and imports them. `fits` returns whether a handle of this index may have this size, in bytes.
    pub(super) fn receive_handles<B: Backend>(
        &mut self,
        backend: &B,
        count: u32,
        fits: impl Fn(u32, u64) -> bool,
    ) -> Result<Vec<(u32, PhysicalMemory<B>)>> {
        let mut handles: Vec<(u32, PhysicalMemory<B>)> = Vec::new();
        while handles.len() < count as usize {
            let (reply, descriptors) = self.receive()?;
            let Reply::Handles(pieces) = reply else { return self.out_of_turn(&reply, "handles") };
            if pieces.is_empty() || handles.len() + pieces.len() > count as usize {
                let came = handles.len() + pieces.len();
                return self.bad(format!("{count} handles were announced, and {came} came"));
            }
            for (piece, descriptor) in pieces.iter().zip(descriptors) {
                let index = piece.id;
                if handles.last().is_some_and(|(last, _)| index <= *last) {
                    return self.bad(format!("handle {index} came out of order"));
                }
                if !fits(index, piece.size) {
                    return self.bad(format!("handle {index} has {:#x} bytes and does not fit", piece.size));
                }
                let (size, properties) = piece.check(self.operation, backend)?;
                handles.push((index, extend::import(backend, descriptor.as_fd(), size, properties)?));
            }
        }
        Ok(handles)
    }

    /// Reads the layout that came with a message, if one came.
    pub(super) fn layout(&self, descriptors: Vec<OwnedFd>) -> Result<Option<Layout>> {
        let Some(file) = descriptors.into_iter().next() else { return Ok(None) };
        let layout = sealed::read(file, layout::MAX_BYTES).and_then(|bytes| Layout::decode(&bytes));
        layout.map(Some).or_else(|why| self.bad(why))
    }

    pub(crate) fn out_of_turn<T>(&self, reply: &Reply, instead_of: &str) -> Result<T> {
        self.bad(format!("{} came instead of {instead_of}", reply.name()))
    }

    pub(crate) fn bad<T>(&self, why: String) -> Result<T> {
        Err(Error::of_extension(self.operation, PeerError::BadMessage { why }))
    }

    pub(super) const fn is_lease(&self) -> bool {
        self.is_lease
    }

    pub(super) const fn begin_lease(&mut self) {
        self.is_lease = true;
    }

    /// Reports nothing when it is dropped, and expects nothing from the server.
    pub(super) const fn end_lease(&mut self) {
        self.is_lease = false;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.is_lease && self.process.is_this() {
            // Without this, the memory would count until the process ends. If the server does not read now, it does.
            self.channel.set_wait(Duration::ZERO);
            let _ = self.send(&Request::Release, &[]);
        }
    }
}

/// Returns a wait in milliseconds, rounded up.
pub(super) fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
