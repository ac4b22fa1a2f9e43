//! Requests of a client and the server's replies.

use crate::layout::{self, Layout};
use crate::protocol::{Reply, Request, VERSIONS};
use crate::sealed;
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::{Backend, Detail, Error, Operation, PhysicalMemory, Result, Vendor};
use gpu_vmm_share::extend::{self, Wait, printable};
use gpu_vmm_share::manifest::SharedPiece;
use gpu_vmm_share::{Allowed, Channel, PeerError};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The limit of a wait for a reply that depends on no other client.
const REPLY: Duration = Duration::from_secs(30);

/// The limit of a wait for memory, of which the driver may have to create much, for several clients.
const MEMORY: Duration = Duration::from_secs(600);

/// Handles with their indexes in the region, in order.
pub(super) type Imported<B> = Result<Vec<(u32, PhysicalMemory<B>)>>;

/// A connection that has begun with the choice of a version.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) operation: Operation,
    pub(super) channel: Channel,
    /// True while it belongs to a lease, whose end is reported.
    is_lease: bool,
    /// True if a reply was not received or not understood. A later one would be taken for it.
    is_lost: bool,
    /// A forked child has the same connection, and its copies of the lease's values unmap nothing. A message that it sent or
    /// received would be missing in this process, and its requests would be this process's.
    process: Process,
    /// The version that both sides speak.
    version: u16,
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
        let (lowest, highest) = VERSIONS;
        let process = Process::current();
        let mut exchange =
            Self { operation, channel, is_lease: false, is_lost: false, process, version: highest };
        exchange.send(&Request::Hello { lowest, highest }, &[])?;
        let vendor = match exchange.receive()?.0 {
            Reply::Welcome { version, vendor } if (lowest..=highest).contains(&version) => {
                exchange.version = version;
                vendor
            }
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
    ///
    /// If one cannot be imported, the others are received all the same, so that the next reply is not taken for them.
    pub(super) fn receive_handles<B: Backend>(
        &mut self,
        backend: &B,
        count: u32,
        fits: impl Fn(u32, u64) -> bool,
    ) -> Imported<B> {
        let imported = self.all_handles(backend, count, fits);
        imported.inspect_err(|_| self.is_lost = true)?
    }

    /// Returns errors of the exchange, and within them those of the imports.
    fn all_handles<B: Backend>(
        &mut self,
        backend: &B,
        count: u32,
        fits: impl Fn(u32, u64) -> bool,
    ) -> Result<Imported<B>> {
        let (mut imported, mut came, mut last) = (Ok(Vec::new()), 0, None);
        while came < count as usize {
            let (reply, descriptors) = self.receive()?;
            let Reply::Handles(pieces) = reply else { return self.out_of_turn(&reply, "handles") };
            came += pieces.len();
            if pieces.is_empty() || came > count as usize {
                return self.bad(format!("{count} handles were announced, and {came} came"));
            }
            for (piece, descriptor) in pieces.iter().zip(descriptors) {
                let index = piece.id;
                if last.is_some_and(|last| index <= last) {
                    return self.bad(format!("handle {index} came out of order"));
                }
                last = Some(index);
                if !fits(index, piece.size) {
                    return self.bad(format!("handle {index} has {:#x} bytes and does not fit", piece.size));
                }
                imported = imported.and_then(|mut imported: Vec<_>| {
                    imported.push((index, self.import(backend, piece, descriptor.as_fd())?));
                    Ok(imported)
                });
            }
        }
        Ok(imported)
    }

    fn import<B: Backend>(
        &self,
        backend: &B,
        piece: &SharedPiece,
        descriptor: BorrowedFd<'_>,
    ) -> Result<PhysicalMemory<B>> {
        let (size, properties) = piece.check(self.operation, backend)?;
        extend::import(backend, descriptor, size, properties)
    }

    /// Waits until the server has ended the lease. Epochs may be under way. If the server does not reply, it is gone or will notice the end
    /// of the connection.
    pub(super) fn wait_for_end(&mut self) {
        let wait = Wait::new(self.operation, "end of the lease", REPLY);
        // A message that has arrived is received even if the wait is over, and a server can send any number of them.
        while wait.left().is_ok() && self.take(&wait).is_ok_and(|(reply, _)| reply != Reply::Done) {}
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

    /// Fails if an earlier reply is missing.
    pub(super) fn check_in_step(&self) -> Result<()> {
        match self.is_lost {
            true => self.bad("an earlier reply was not received, so no later one is accepted".to_owned()),
            false => Ok(()),
        }
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Accepts no later message: it would be taken for one that was not received.
    pub(super) const fn lose(&mut self) {
        self.is_lost = true;
    }

    pub(super) const fn is_lease(&self) -> bool {
        self.is_lease
    }

    pub(super) const fn version(&self) -> u16 {
        self.version
    }

    /// Reports the end when it is dropped.
    pub(super) const fn begin_lease(&mut self) {
        self.is_lease = true;
    }

    /// Reports the end at once, and wakes a thread that waits for a message.
    pub(super) fn leave(mut self) {
        if self.process.is_this() {
            self.channel.set_wait(Duration::ZERO);
            let _ = self.send(&Request::Release, &[]);
            let _ = shutdown(&self.channel, Shutdown::Both);
        }
        self.end_lease();
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
