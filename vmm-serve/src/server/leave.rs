//! The end of leases and of clients.

use super::Server;
use super::books::{Handle, Promise};
use super::connection::{Connection, Role};
use super::program::Program;
use crate::protocol::{ClientInfo, LeaseKind};
use gpu_vmm_core::{Backend, DeviceId};
use gpu_vmm_share::Channel;
use gpu_vmm_share::extend::process_inode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A process whose connection ended without notice. It may still map the memory, which counts until the process ends.
#[derive(Debug)]
pub(super) struct Lingering<B: Backend> {
    /// Readable when the process has ended.
    pub(super) process: OwnedFd,
    pub(super) left: Left<B>,
}

/// What is kept until a process ends.
#[derive(Debug)]
pub(super) enum Left<B: Backend> {
    Lease { info: ClientInfo, holds: Vec<Arc<Handle<B>>> },
    Program { program: Box<Program>, user: u32, number: u32 },
}

impl<B: Backend> Lingering<B> {
    /// Returns the process's number, or 0.
    pub(super) const fn number(&self) -> u32 {
        match &self.left {
            Left::Lease { info, .. } => info.process,
            Left::Program { number, .. } => *number,
        }
    }

    pub(super) const fn user(&self) -> u32 {
        match &self.left {
            Left::Lease { info, .. } => info.user,
            Left::Program { user, .. } => *user,
        }
    }

    /// Returns the part of a budget that it has.
    pub(super) fn grant(&self) -> Option<&Promise> {
        match &self.left {
            Left::Lease { .. } => None,
            Left::Program { program, .. } => Some(&program.grant),
        }
    }

    /// Returns true for a program with a part of a device's budget.
    pub(super) fn is_program_on(&self, place: DeviceId) -> bool {
        matches!(&self.left, Left::Program { program, .. } if program.place == place)
    }

    /// Returns the memory of leases.
    pub(super) fn holds(&self) -> &[Arc<Handle<B>>] {
        match &self.left {
            Left::Lease { holds, .. } => holds,
            Left::Program { .. } => &[],
        }
    }
}

/// A connection that is being closed.
#[derive(Debug)]
pub(super) struct Closing {
    user: Option<u32>,
    thread: JoinHandle<()>,
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
        let Some(mut connection) = self.connections.remove(&id) else { return };
        self.has_ended = true;
        let has_released = connection.has_released();
        let info = info(&connection, true);
        let Connection { peer, role, channel, .. } = connection;
        self.close(peer.user, channel);
        let (user, number) = (peer.user_number(), peer.process);
        let stays = peer.handle.filter(|process| !has_released && !has_ended(process));
        match (role, stays) {
            (Role::Leases(lease), Some(process)) => {
                if let Some(info) = info {
                    self.linger(process, info, lease.holds);
                }
            }
            (Role::Program(mut program), stays) => {
                let place = program.place;
                (program.wants, program.asked) = (None, None);
                if let Some(process) = stays
                    && program.grant.left() > 0
                {
                    let left = Left::Program { program, user, number };
                    self.lingering.push(Lingering { process, left });
                }
                self.pressure(place).restart();
            }
            _ => {}
        }
    }

    /// Keeps memory until a process ends. What it keeps by an earlier lease is recorded once, so that a process that loses one lease
    /// after the other takes no more than its memory.
    fn linger(&mut self, process: OwnedFd, mut info: ClientInfo, mut holds: Vec<Arc<Handle<B>>>) {
        let mut same = Vec::new();
        for one in &mut self.lingering {
            if is_same_process((&one.process, one.number()), (&process, info.process))
                && let Left::Lease { info, holds: held } = &mut one.left
            {
                holds.retain(|handle| !held.iter().any(|held| held.id == handle.id));
                same.push((info, held));
            }
        }
        if holds.is_empty() {
            return;
        }
        info.bytes = holds.iter().map(|handle| handle.size().0).sum();
        match same.into_iter().find(|(known, _)| known.region == info.region) {
            Some((known, held)) => {
                *known = ClientInfo { bytes: known.bytes + info.bytes, ..info };
                held.extend(holds);
            }
            None => self.lingering.push(Lingering { process, left: Left::Lease { info, holds } }),
        }
    }

    /// Closes a connection in a thread of its own. It can have descriptors that the client has sent, received or not, and closing
    /// them can take as long as the client likes: a socket lingers, a file system in user space does not answer.
    pub(super) fn close(&mut self, user: Option<u32>, channel: Channel) {
        self.closing.retain(|one| !one.thread.is_finished());
        let spawned = thread::Builder::new().name("gpu-vmm-close".to_owned()).spawn(move || drop(channel));
        // Without threads, the channel is closed already.
        self.closing.extend(spawned.map(|thread| Closing { user, thread }));
    }

    /// Returns the number of connections of a user, of those that are being closed, and of its processes that linger.
    pub(super) fn clients_of(&self, user: Option<u32>) -> usize {
        let connected = self.connections.values().filter(|other| other.peer.user == user).count();
        let closing = self.closing.iter().filter(|one| one.user == user && !one.thread.is_finished()).count();
        let user = user.unwrap_or(u32::MAX);
        connected + closing + self.lingering.iter().filter(|one| one.user() == user).count()
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
            let one = self.lingering.swap_remove(*place);
            if let Left::Program { program, .. } = one.left {
                self.pressure(program.place).restart();
            }
        }
    }
}

/// Returns the description of a client with a lease, or one that waits for it.
pub(super) fn info<B: Backend>(connection: &Connection<B>, lingers: bool) -> Option<ClientInfo> {
    let (process, user) = (connection.peer.process, connection.peer.user_number());
    match &connection.role {
        Role::New { .. } | Role::Idle { .. } | Role::Lists { .. } | Role::Program(_) => None,
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

/// Returns true if two descriptors are of one process, which has not ended. The number of a process that is not in this process's
/// namespace is 0.
pub(super) fn is_same_process((one, first): (&OwnedFd, u32), (other, second): (&OwnedFd, u32)) -> bool {
    match (process_inode(one.as_fd()), process_inode(other.as_fd())) {
        (Some(one), Some(other)) => one == other,
        _ => first == second && first != 0 && !has_ended(one),
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready != 0)
}
