//! A program that uses the server's memory.

mod create;
mod digest;
mod exchange;
mod file;
mod lease;
mod load;
mod query;
mod quota;
mod write;

pub use create::CreateOptions;
#[cfg(any(test, fuzzing))]
pub(crate) use file::read as file_contents;
pub use lease::{Lease, LeaseEvent};
pub use query::{Status, drop_region, status};
pub use quota::{Quota, QuotaOptions};
pub use write::RenewContents;

use crate::protocol::{LeaseKind, Request};
pub(crate) use exchange::Exchange;
use exchange::milliseconds;
use gpu_vmm_core::{Backend, Operation, Result};
use gpu_vmm_share::Allowed;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[allow(unused_imports)] // named in documentation
use crate::ServeError;
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
#[allow(unused_imports)] // named in documentation
use gpu_vmm_share::PeerError;

/// A connection to a [`Server`](crate::Server) by the path of its socket.
///
/// Each lease has a socket of its own, which ends with it, and so does each query.
///
/// ```no_run
/// # mod gpu_vmm { pub use gpu_vmm_serve as serve; pub use gpu_vmm_core::{Backend, Bytes, Result}; }
/// # fn example<B: gpu_vmm::Backend>(backend: &B, weights: &[u8]) -> gpu_vmm::Result<()> {
/// use gpu_vmm::Bytes;
/// use gpu_vmm::serve::{Client, CreateOptions, Layout};
/// use std::time::Duration;
///
/// let client = Client::connect(backend, "/run/user/1000/gpu-vmm.sock")?;
/// let mut lease = client.create("model/weights", Bytes(weights.len() as u64), &CreateOptions::default())?;
/// lease.region_mut().write(Bytes(0), weights)?;
/// lease.commit(Some(&Layout::default()))?;
/// // In another process, or after this one has ended:
/// let lease = client.read("model/weights", Duration::from_secs(10))?;
/// println!("epoch {} at {}", lease.epoch(), lease.region().address());
/// # Ok(())
/// # }
/// ```
///
/// # Thread safety
///
/// Several threads may use one client at the same time.
#[derive(Clone, Debug)]
pub struct Client<B: Backend> {
    backend: B,
    path: PathBuf,
    allowed: Allowed,
}

impl<B: Backend> Client<B> {
    /// Connects to the server at `path`, which must run as this process's user.
    ///
    /// # Errors
    ///
    /// [`PeerError::NoListener`], [`PeerError::StaleSocket`], [`PeerError::NotAllowed`], [`PeerError::TimedOut`];
    /// [`ServeError::Version`]; [`Detail::Mismatch`] if the server's memory is another vendor's.
    pub fn connect(backend: &B, path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_to(backend, path, Allowed::same_user())
    }

    /// Connects as [`connect`](Self::connect) does to a server that `allowed` admits, such as another user's.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`].
    pub fn connect_to(backend: &B, path: impl AsRef<Path>, allowed: Allowed) -> Result<Self> {
        let client = Self { backend: backend.clone(), path: path.as_ref().to_owned(), allowed };
        client.exchange(Operation::Connect)?;
        Ok(client)
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a region to read it: maps its last epoch at its address, read-only. Waits up to `wait` until it exists and is
    /// committed.
    ///
    /// # Errors
    ///
    /// [`ServeError::NotFound`] also for a region that this user may not read; [`ServeError::AddressInUse`] if this process uses the
    /// addresses; [`Detail::Mismatch`] for a device that this process does not see; errors of the connection and of the driver.
    pub fn read(&self, name: &str, wait: Duration) -> Result<Lease<B>> {
        self.open(name, LeaseKind::Read, wait)
    }

    /// Opens a region to write to it: maps its last epoch at its address, read-only, until [`Lease::renew`] replaces a part by new
    /// memory. Waits up to `wait` until the region exists and no other client has its write lease.
    ///
    /// # Errors
    ///
    /// Those of [`Client::read`]; [`ServeError::Denied`]; [`ServeError::Busy`].
    pub fn write(&self, name: &str, wait: Duration) -> Result<Lease<B>> {
        self.open(name, LeaseKind::Write, wait)
    }

    fn open(&self, name: &str, kind: LeaseKind, wait: Duration) -> Result<Lease<B>> {
        let mut exchange = self.exchange(Operation::OpenLease)?;
        let wait_ms = milliseconds(wait);
        exchange.send(&Request::Open { name: name.to_owned(), kind, wait_ms }, &[])?;
        let (reply, descriptors) = exchange.receive_within(wait)?;
        Lease::open(&self.backend, name, exchange, reply, descriptors)
    }

    /// Removes a region from the server. Clients keep the memory that they have mapped, and are [told](LeaseEvent::Dropped).
    ///
    /// # Errors
    ///
    /// Those of [`drop_region`].
    pub fn drop_region(&self, name: &str) -> Result<()> {
        drop_region(&self.path, self.allowed, name)
    }

    /// Returns the regions that this user may read, their clients, and the server's state.
    ///
    /// # Errors
    ///
    /// Those of [`status`].
    pub fn status(&self) -> Result<Status> {
        status(&self.path, self.allowed)
    }

    fn exchange(&self, operation: Operation) -> Result<Exchange> {
        Exchange::begin(operation, &self.path, self.allowed, Some(self.backend.vendor()))
    }
}

#[cfg(test)]
mod tests;
