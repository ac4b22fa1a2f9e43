//! The end of leases and of clients.

use super::Server;
use super::books::Handle;
use super::connection::{Connection, Role};
use crate::protocol::{ClientInfo, LeaseKind};
use gpu_vmm_core::Backend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A process whose connection ended without notice. It may still map the memory, which counts until the process ends.
#[derive(Debug)]
pub(super) struct Lingering<B: Backend> {
    /// Readable when the process has ended.
    pub(super) process: OwnedFd,
    pub(super) info: ClientInfo,
    /// Kept until the process ends.
    pub(super) holds: Vec<Arc<Handle<B>>>,
}

impl<B: Backend> Server<B> {
    /// Ends a lease whose client has unmapped everything. The client waits for the connection's end.
    pub(super) fn release(&mut self, id: u64) {
        self.give_up(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.put(crate::protocol::Reply::Done);
            connection.end_when_sent();
        }
    }

    /// Ends a connection, and the lease with it.
    pub(super) fn end(&mut self, id: u64) {
        self.give_up(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        let info = info(&connection, true);
        let Connection { peer, role: Role::Leases(lease), .. } = connection else { return };
        if let (Some(process), Some(info)) = (peer.handle, info)
            && !lease.holds.is_empty()
            && !has_ended(&process)
        {
            self.lingering.push(Lingering { process, info, holds: lease.holds });
        }
    }

    /// Frees the lease for others.
    fn give_up(&mut self, id: u64) {
        self.forget_region_in_creation(id);
        let Some(lease) = self.connections.get_mut(&id).and_then(|one| one.lease_mut()) else { return };
        lease.job = None;
        lease.fresh.clear();
        if lease.kind == LeaseKind::Write
            && let Some(region) = self.regions.get_mut(&lease.name, lease.region)
        {
            region.writer = None;
        }
    }

    /// Removes the region that a client was creating.
    pub(super) fn forget_region_in_creation(&mut self, id: u64) {
        let Some(lease) = self.connections.get(&id).and_then(|one| one.lease()) else { return };
        if self.regions.get(&lease.name, lease.region).is_some_and(|region| region.epoch == 0) {
            self.regions.0.remove(&lease.name);
        }
    }

    /// Forgets the processes at these places, which have ended.
    pub(super) fn end_lingering(&mut self, places: &[usize]) {
        for place in places.iter().rev() {
            self.lingering.swap_remove(*place);
        }
    }
}

/// Returns the description of a client with a lease, or one that waits for it.
pub(super) fn info<B: Backend>(connection: &Connection<B>, lingers: bool) -> Option<ClientInfo> {
    let (process, user) = (connection.peer.process, connection.peer.user_number());
    match &connection.role {
        Role::New { .. } | Role::Idle { .. } => None,
        Role::Waits(wait) => Some(ClientInfo {
            process,
            user,
            region: wait.name.clone(),
            lease: wait.kind,
            waits: true,
            epoch: 0,
            bytes: 0,
            lingers,
        }),
        Role::Leases(lease) => Some(ClientInfo {
            process,
            user,
            region: lease.name.clone(),
            lease: lease.kind,
            waits: lease.job.is_some(),
            epoch: lease.applied,
            bytes: lease.holds.iter().map(|handle| handle.size().0).sum(),
            lingers,
        }),
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready != 0)
}
