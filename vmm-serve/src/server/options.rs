//! The limits of a server.

use gpu_vmm_core::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// The limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The memory that regions and programs may have together, on each device and on the host: the memory of earlier epochs that clients
    /// still use, and what programs may create by themselves. By default the device's memory, and no limit on the host.
    ///
    /// Contexts and other code of the programs take memory of a device too: leave room for them.
    pub budget: Option<Bytes>,
    /// What one program may have of the budget of a device; no limit by default.
    pub program_limit: Option<Bytes>,
    /// What one user may have on a device, as the owner of regions and by its programs; no limit by default.
    pub user_limit: Option<Bytes>,
    /// The limits of users that have others, by their numbers.
    pub user_limits: BTreeMap<u32, Bytes>,
    /// The time in which a program answers when it is asked for memory; 10 s by default. A program that does not is passed over, and not
    /// asked again before it has answered.
    pub answer_within: Duration,
    /// The number of clients that can be connected at one time, 1,024 by default. One user can have half of them.
    pub clients: usize,
    /// The number of regions, 4,096 by default.
    pub regions: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            budget: None,
            program_limit: None,
            user_limit: None,
            user_limits: BTreeMap::new(),
            answer_within: Duration::from_secs(10),
            clients: 1024,
            regions: 4096,
        }
    }
}

impl ServerOptions {
    pub(super) fn limit_of_user(&self, user: u32) -> Option<Bytes> {
        self.user_limits.get(&user).copied().or(self.user_limit)
    }

    /// Returns the time in which a program answers, which the clock can add.
    pub(super) fn to_answer(&self) -> Duration {
        const MOST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        self.answer_within.min(MOST)
    }

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
