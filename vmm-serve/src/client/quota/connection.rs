//! The connection of a pool to the server. It ends with the pool's memory, and comes back if the server does.

use super::{OPERATION, QuotaOptions};
use crate::client::{Client, Exchange};
use crate::protocol::{Join, Reply, Request, WITH_PROGRAMS};
use gpu_vmm_core::{Backend, Detail, DeviceUuid, Error, Result, Vendor};
use gpu_vmm_share::extend::Wait;
use gpu_vmm_share::{Allowed, PeerError};
use rustix::event::{PollFd, PollFlags, poll};
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Link<B> {
    path: PathBuf,
    allowed: Allowed,
    vendor: Vendor,
    /// Without the memory that the pool holds.
    join: Join,
    /// The exchange, and its socket for the thread that waits without the lock. None while the server is gone.
    exchange: Mutex<Option<Exchange>>,
    of: PhantomData<fn() -> B>,
}

impl<B: Backend> Link<B> {
    pub(super) fn new(client: &Client<B>, options: &QuotaOptions<B>, device: DeviceUuid) -> Self {
        let join = Join { name: options.name.clone(), device, priority: options.priority, holds: 0 };
        let Client { backend, path, allowed } = client;
        let (path, vendor) = (path.clone(), backend.vendor());
        Self { path, allowed: *allowed, vendor, join, exchange: Mutex::default(), of: PhantomData }
    }

    fn exchange(&self) -> MutexGuard<'_, Option<Exchange>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects with what the pool holds.
    pub(super) fn join(&self, holds: u64) -> Result<()> {
        let mut exchange = Exchange::begin(OPERATION, &self.path, self.allowed, Some(self.vendor))?;
        if exchange.version() < WITH_PROGRAMS {
            let reason = format!(
                "the server speaks version {} of the protocol, and budgets came with {WITH_PROGRAMS}; replace it by a newer one",
                exchange.version()
            );
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        exchange.send(&Request::Join(Join { holds, ..self.join.clone() }), &[])?;
        match exchange.receive()?.0 {
            Reply::Joined => {}
            other => return exchange.out_of_turn(&other, "the reply to a program"),
        }
        exchange.begin_lease();
        *self.exchange() = Some(exchange);
        Ok(())
    }

    pub(super) fn send(&self, request: &Request) -> Result<()> {
        match &mut *self.exchange() {
            Some(exchange) => exchange.send(request, &[]),
            None => Err(self.gone()),
        }
    }

    /// Returns the socket, to wait for it without a lock.
    pub(super) fn socket(&self) -> Option<OwnedFd> {
        self.exchange().as_ref()?.channel.as_fd().try_clone_to_owned().ok()
    }

    /// Waits for a message. `None` if the connection has ended.
    pub(super) fn receive(&self, socket: &OwnedFd) -> Option<Reply> {
        loop {
            // An interrupted wait begins again.
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
            let mut exchange = self.exchange();
            match exchange.as_mut()?.take(&Wait::new(OPERATION, "question of the server", Duration::ZERO)) {
                Ok((reply, _)) => return Some(reply),
                Err(error) if matches!(error.extension(), Some(PeerError::TimedOut { .. })) => {}
                Err(_) => {
                    if let Some(mut ended) = exchange.take() {
                        ended.end_lease();
                    }
                    return None;
                }
            }
        }
    }

    /// Returns the error while the server is gone.
    pub(super) fn gone(&self) -> Error {
        let why = format!("the server at {} is gone, and the pool keeps its budget", self.path.display());
        Error::of_extension(OPERATION, PeerError::Gone { why })
    }

    /// Tells the server that the pool has no memory, and wakes the thread.
    pub(super) fn end(&self) {
        if let Some(exchange) = self.exchange().take() {
            exchange.leave();
        }
    }
}
