//! The limits of a server.

use gpu_vmm_core::Bytes;

/// The limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The memory that the server may hold, the memory of earlier epochs that clients still use included; no limit by default.
    pub budget: Option<Bytes>,
    /// The number of clients that can be connected at one time, 1,024 by default. One user can have half of them.
    pub clients: usize,
    /// The number of regions, 4,096 by default.
    pub regions: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { budget: None, clients: 1024, regions: 4096 }
    }
}

impl ServerOptions {
    pub(super) fn clients_per_user(&self) -> usize {
        self.clients.div_ceil(2)
    }

    /// Returns the number of a user's further connections that can wait for the reason. Beyond it they are closed, so that they
    /// take no room of other users'.
    pub(super) fn refusals_per_user(&self) -> usize {
        const MOST: usize = 16;
        ((self.clients - self.clients_per_user()) / 2).clamp(1, MOST)
    }
}
