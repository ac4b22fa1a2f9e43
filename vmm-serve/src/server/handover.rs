//! The end of a server that another process replaces.

use super::Server;
use super::books::Handle;
use super::connection::{Connection, Lease, Role, Source};
use super::devices;
use super::job::{Job, Plan};
use super::leave::Left;
use super::program::{Program, Wanted};
use super::region::{Layout, Region};
use super::state::{
    ConnectionState, HandleState, JobState, LayoutState, LeaseState, LingeringState, PlanState, ProgramState,
    RegionState, RoleState, SourceState, State, VERSION, WantedState,
};
use crate::ServeError;
use crate::protocol::{Reply, Request};
use crate::sealed;
use gpu_vmm_core::{Backend, Operation, Result};
use gpu_vmm_share::extend::{MAX_DESCRIPTORS, Wait, channel_state, leave_path, listener_path, receive, send};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OPERATION: Operation = Operation::HandOver;

/// The time in which the new process must have taken over. Clients wait meanwhile.
const TO_TAKE: Duration = Duration::from_secs(60);

/// Everything that the state refers to by numbers.
struct Referred<B: Backend> {
    handles: BTreeMap<u64, Arc<Handle<B>>>,
    layouts: BTreeMap<u64, Arc<Layout>>,
}

impl<B: Backend> Server<B> {
    /// Returns true after another process has taken over. The server does nothing any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Hands everything over to the process that asks. If it fails there, this server goes on.
    pub(super) fn hand_over(&mut self, id: u64) -> std::result::Result<(), ServeError> {
        let Some(asking) = self.connections.get(&id) else { return Ok(()) };
        let us = geteuid().as_raw();
        if asking.peer.user != Some(us) && !asking.peer.is_root() {
            let them = asking.peer.user_number();
            return Err(ServeError::bad(format!("user {them} may not replace the server of user {us}")));
        }
        let broken = |connection: &Connection<B>| channel_state(&connection.channel).is_none();
        let ended: Vec<u64> =
            self.connections.iter().filter(|(_, one)| broken(one)).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.end(id));
        let Some(mut asking) = self.connections.remove(&id) else { return Ok(()) };
        asking.channel.set_wait(TO_TAKE);
        let handed = self.send_state(&mut asking);
        match handed {
            Ok(()) => {
                self.is_over = true;
                // The path is the new server's.
                leave_path(&mut self.listener);
                // The new server goes on, whether or not it receives this.
                let _ = send(&mut asking.channel, OPERATION, &Reply::Done, &[]);
            }
            Err(error) => {
                // If the process is gone, there is no need to say so.
                let refused = Reply::Refused(ServeError::bad(format!("the server goes on: {error}")));
                let _ = send(&mut asking.channel, OPERATION, &refused, &[]);
            }
        }
        Ok(())
    }

    fn send_state(&self, asking: &mut Connection<B>) -> Result<()> {
        let referred = self.referred();
        let state = self.state(&referred);
        let encoded = postcard::to_allocvec(&(VERSION, &state));
        let encoded = encoded.map_err(|error| {
            let why = format!("the state cannot be encoded: {error}");
            gpu_vmm_core::Error::of_extension(OPERATION, ServeError::bad(why))
        })?;
        let file = sealed::file(OPERATION, &encoded)?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
        descriptors.extend(referred.handles.values().map(|handle| handle.descriptor.as_fd()));
        descriptors.extend(referred.layouts.values().map(|layout| layout.file.as_fd()));
        descriptors.extend(self.connections.values().map(|one| one.channel.as_fd()));
        descriptors.extend(self.lingering.iter().map(|one| one.process.as_fd()));
        let count = descriptors.len() as u32;
        send(&mut asking.channel, OPERATION, &Reply::State { descriptors: count }, &[file.as_fd()])?;
        for some in descriptors.chunks(MAX_DESCRIPTORS) {
            let reply = Reply::Descriptors { count: some.len() as u32 };
            send(&mut asking.channel, OPERATION, &reply, some)?;
        }
        let wait = Wait::new(OPERATION, "confirmation by the new server", TO_TAKE);
        match receive(&mut asking.channel, &wait)? {
            (Request::Taken, none) if <[OwnedFd]>::is_empty(&none) => Ok(()),
            _ => {
                let error = ServeError::bad("the new server confirms by something else");
                Err(gpu_vmm_core::Error::of_extension(OPERATION, error))
            }
        }
    }

    /// Collects the handles and layouts that anything has.
    fn referred(&self) -> Referred<B> {
        let mut found = Referred { handles: BTreeMap::new(), layouts: BTreeMap::new() };
        for region in self.regions.0.values() {
            region.handles.iter().for_each(|handle| found.handle(handle));
            region.layout.iter().for_each(|layout| found.layout(layout));
        }
        for connection in self.connections.values() {
            for source in connection.queue().flat_map(|(_, sources)| sources) {
                match source {
                    Source::Handle(handle) => found.handle(handle),
                    Source::Layout(layout) => found.layout(layout),
                }
            }
            let Some(lease) = connection.lease() else { continue };
            let made = lease.job.iter().flat_map(|job| &job.made).map(|(_, handle)| handle);
            let all = lease.holds.iter().chain(lease.fresh.values()).chain(made);
            all.for_each(|handle| found.handle(handle));
            lease.layout.iter().for_each(|layout| found.layout(layout));
        }
        for lingering in &self.lingering {
            lingering.holds().iter().for_each(|handle| found.handle(handle));
        }
        found
    }

    fn state(&self, referred: &Referred<B>) -> State {
        let handles = referred.handles.iter();
        let layouts = referred.layouts.iter();
        State {
            next: self.next,
            returns_ms: self.returns_until.saturating_duration_since(Instant::now()).as_millis() as u64,
            is_again: self.is_again,
            socket: self.listener.path().as_os_str().as_bytes().to_vec(),
            removes: listener_path(&self.listener),
            handles: handles.map(|(id, handle)| HandleState { id: *id, piece: handle.piece }).collect(),
            layouts: layouts.map(|(id, layout)| LayoutState { id: *id, size: layout.size }).collect(),
            regions: self
                .regions
                .0
                .iter()
                .map(|(name, one)| (name.clone(), self.region_state(one)))
                .collect(),
            connections: self
                .connections
                .iter()
                .filter_map(|(id, one)| Some((*id, self.connection_state(one)?)))
                .collect(),
            lingering: self
                .lingering
                .iter()
                .map(|one| match &one.left {
                    Left::Lease { info, holds } => {
                        LingeringState::Lease { info: info.clone(), holds: ids(holds) }
                    }
                    Left::Program { program, user, number } => {
                        let program = program_state(program);
                        LingeringState::Program { program, user: *user, number: *number }
                    }
                })
                .collect(),
        }
    }

    fn region_state(&self, region: &Region<B>) -> RegionState {
        RegionState {
            id: region.id,
            owner: region.owner,
            group: region.group,
            mode: region.mode,
            address: region.address,
            size: region.size,
            device: devices::uuid(&self.backend, &region.properties),
            kind: region.properties.into(),
            epoch: region.epoch,
            handles: ids(&region.handles),
            layout: region.layout.as_ref().map(|layout| layout.id),
            writer: region.writer,
        }
    }

    fn connection_state(&self, connection: &Connection<B>) -> Option<ConnectionState> {
        let role = match &connection.role {
            Role::New { .. } => RoleState::New,
            Role::Idle { .. } => RoleState::Idle,
            Role::Waits(wait) => RoleState::Waits {
                name: wait.name.clone(),
                kind: wait.kind,
                wait_ms: wait.wait_ms,
                left_ms: wait.until.saturating_duration_since(Instant::now()).as_millis() as u64,
            },
            Role::Leases(lease) => RoleState::Leases(self.lease_state(lease)),
            Role::Lists { .. } => RoleState::Lists,
            Role::Program(program) => RoleState::Program(program_state(program)),
        };
        let queue = connection.queue();
        let queue =
            queue.map(|(reply, sources)| (reply.clone(), sources.iter().map(SourceState::of).collect()));
        let channel = channel_state(&connection.channel)?;
        Some(ConnectionState {
            channel,
            version: connection.version,
            role,
            queue: queue.collect(),
            ends: connection.ends(),
        })
    }

    fn lease_state(&self, lease: &Lease<B>) -> LeaseState {
        LeaseState {
            name: lease.name.clone(),
            region: lease.region,
            kind: lease.kind,
            sent: lease.sent,
            sent_handles: lease.sent_handles.clone(),
            layout: lease.layout.as_ref().map(|layout| layout.id),
            applied: lease.applied,
            holds: ids(&lease.holds),
            fresh: lease.fresh.iter().map(|(index, handle)| (*index, handle.id)).collect(),
            job: lease.job.as_ref().map(|job| self.job_state(job)),
            is_dropped: lease.is_dropped,
        }
    }

    fn job_state(&self, job: &Job<B>) -> JobState {
        JobState {
            device: devices::uuid(&self.backend, &job.properties),
            kind: job.properties.into(),
            left: job.promise.left(),
            lacks: job.lacks.as_ref().map(wanted_state),
            made: job.made.iter().map(|(index, handle)| (*index, handle.id)).collect(),
            plan: match &job.plan {
                Plan::New { handle, least } => PlanState::New { handle: handle.0, least: least.bytes().0 },
                Plan::Renewal(rest) => {
                    PlanState::Renewal(rest.iter().map(|(index, size)| (*index, size.0)).collect())
                }
            },
        }
    }
}

impl<B: Backend> Referred<B> {
    fn handle(&mut self, handle: &Arc<Handle<B>>) {
        self.handles.insert(handle.id, Arc::clone(handle));
    }

    fn layout(&mut self, layout: &Arc<Layout>) {
        self.layouts.insert(layout.id, Arc::clone(layout));
    }
}

fn program_state(program: &Program) -> ProgramState {
    ProgramState {
        name: program.name.clone(),
        device: program.device,
        priority: program.priority,
        granted: program.grant.left(),
        wants: program.wants.as_ref().map(wanted_state),
        asked: program.asked.map(|asked| (asked.ask, asked.is_late)),
        report: program.report,
    }
}

fn wanted_state(wanted: &Wanted) -> WantedState {
    WantedState {
        number: wanted.number,
        user: wanted.user,
        least: wanted.least,
        most: wanted.most,
        waited_ms: wanted.waited_ms(),
        left_ms: wanted.until.saturating_duration_since(Instant::now()).as_millis() as u64,
    }
}

fn ids<B: Backend>(handles: &[Arc<Handle<B>>]) -> Vec<u64> {
    handles.iter().map(|handle| handle.id).collect()
}
